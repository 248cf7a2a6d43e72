"""Convolutions on AMX tiles: the generated code, with the tile instructions played by NumPy, gives
the interpreter's integers, and its assembly has the instructions."""

from __future__ import annotations

import dataclasses

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantglow.backends.llvm import executable, levels
from quantglow.backends.llvm.cache import ObjectCache
from quantglow.backends.llvm.compiler import machine
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels import emit
from quantglow.backends.llvm.levels import AMX, resolve, runs_here
from quantglow.backends.llvm.library import KernelLibrary
from quantglow.backends.llvm.target import Target
from quantglow.graph.graph import Graph
from quantglow.instr.program import Compute
from quantglow.interpreter import interpret
from quantglow.ops import Constant, Conv, Input
from quantglow.types import DType, ElementType, QuantParams, TensorType
from tests.matrix.guarded import guarded
from tests.matrix.harness import planned
from tests.matrix.tile_machine import TileMachine

needs_avx512 = pytest.mark.skipif(
    not runs_here("avx512vnni"), reason="the rest of the code needs AVX-512 VNNI"
)


def convolution(
    size: tuple[int, int],
    c: int,
    o: int,
    kernel: tuple[int, int] = (1, 1),
    strides: tuple[int, int] = (1, 1),
    pad: int = 0,
    group: int = 1,
    residual: bool = False,
    batch: int = 1,
) -> Graph:
    """An int8 Conv with weights and zero points at their limits."""
    rng = np.random.default_rng(c + 100 * o)
    kind = TensorType(DType.I8, (batch, *size, c * group), QuantParams.per_tensor(0.05, -128))
    x = Input(name="x", tensor=kind)
    values = rng.choice([-127, 127, 3, -1], (*kernel, c, o * group)).astype(np.int8)
    scales = rng.uniform(1e-5, 1e-3, o * group).astype(np.float32)
    element = ElementType(DType.I8, QuantParams.symmetric(scales, 3))
    w = Constant(name="w", value=values, element=element)
    b = Constant(name="b", value=rng.integers(-5000, 5000, o * group).astype(np.int32))
    out = ElementType(DType.I8, QuantParams.per_tensor(0.4, 3))
    pads = (pad, pad, pad, pad)
    conv = Conv(name="y", x=x, w=w, b=b, out=out, group=group, strides=strides, pads=pads)
    if not residual:
        return Graph((x,), (("y", conv),))
    added = TensorType(DType.I8, conv.type.shape, QuantParams.per_tensor(0.3, 5))
    other = Input(name="r", tensor=added)
    return Graph((x, other), (("y", dataclasses.replace(conv, residual=other)),))


def played(monkeypatch: pytest.MonkeyPatch) -> tuple[TileMachine, Target]:
    """Tile registers that kernels of the target call; the rest is this processor's."""
    registers, best = TileMachine(), resolve("avx512vnni")
    library = KernelLibrary(best, ObjectCache(None))

    def addresses(_: Target, steps: object, calls: list[KernelCall]) -> list[int]:
        return library.load([registers.translated(call.ir) for call in calls])

    monkeypatch.setattr(executable, "kernel_addresses", addresses)
    return registers, dataclasses.replace(best, tiles=True)


def assert_tiles_agree(graph: Graph, seed: int = 0) -> int:
    """The interpreter's integers, without a fault; how many products of tiles it took."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in graph.inputs:
        values = rng.choice([-128, 127, 0, 50], node.type.shape).astype(np.int8)
        feeds[node.name] = guarded(values, at_end=bool(seed % 2))
    with pytest.MonkeyPatch.context() as monkeypatch:
        registers, tiles = played(monkeypatch)
        found = executable.compile_program(*planned(graph), tiles).run(feeds)
    assert registers.faults == []
    np.testing.assert_array_equal(found[0], interpret(graph, feeds)[0])
    return registers.products


@needs_avx512
@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(3, 40)),
    c=st.sampled_from([16, 20, 48, 63, 64, 65, 96, 128, 130]),
    o=st.sampled_from([1, 8, 15, 16, 17, 32, 33, 65]),
    kernel=st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 1)]),
    strides=st.sampled_from([(1, 1), (2, 2), (1, 2)]),
    pad=st.integers(0, 1),
    group=st.sampled_from([1, 1, 2]),
    residual=st.booleans(),
    batch=st.sampled_from([1, 1, 2]),
    seed=st.integers(0, 999),
)
@example((7, 7), 512, 33, (3, 3), (1, 1), 1, 1, True, 1, 0)
@example((14, 14), 96, 64, (1, 1), (2, 2), 0, 1, False, 2, 1)
def test_tiles_give_the_integers_of_the_interpreter(
    size: tuple[int, int],
    c: int,
    o: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pad: int,
    group: int,
    residual: bool,
    batch: int,
    seed: int,
) -> None:
    pad = max(pad, int(size[0] < kernel[0] or size[1] < kernel[1]))
    graph = convolution(size, c, o, kernel, strides, pad, group, residual, batch)
    assert_tiles_agree(graph, seed)


@needs_avx512
@pytest.mark.parametrize(
    ("size", "c", "o", "kernel", "products"),
    [
        ((4, 8), 64, 32, (1, 1), 4),  # 32 pixels: two blocks by two vectors
        ((4, 8), 128, 32, (1, 1), 8),
        ((2, 16), 96, 16, (1, 1), 4),  # two blocks by a full part and a rest
        ((4, 16), 64, 16, (3, 3), 2 * 9),  # 2 rows of 14 pixels
    ],
)
def test_no_product_of_tiles_is_wasted(
    size: tuple[int, int], c: int, o: int, kernel: tuple[int, int], products: int
) -> None:
    assert assert_tiles_agree(convolution(size, c, o, kernel)) == products


@needs_avx512
def test_a_row_of_few_pixels_is_left_to_vectors() -> None:
    assert assert_tiles_agree(convolution((1, 1), 256, 64)) == 0


def test_the_assembly_has_the_tile_instructions() -> None:
    program, _ = planned(convolution((7, 20), 96, 40, (3, 3)))
    amx = resolve(AMX)
    (step,) = (s for s in program.instructions if isinstance(s, Compute) and s.op.op == "Conv")
    text = machine(amx).emit_assembly(llvm.parse_assembly(emit(step, amx).ir))
    for instruction in ("ldtilecfg", "tileloadd", "tdpbusd", "tilestored", "tilerelease"):
        assert instruction in text


@pytest.mark.parametrize("allowed", [True, False])
def test_tiles_are_for_processes_that_may_use_them(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = frozenset(levels._NEEDS[AMX])
    monkeypatch.setattr(levels, "host_features", lambda: features)
    monkeypatch.setattr(levels, "tiles_allowed", lambda: allowed)
    assert runs_here(AMX) is allowed
    assert levels._native().tiles is allowed
    assert levels._native().name == (AMX if allowed else "avx512vnni")
