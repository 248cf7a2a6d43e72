"""Convolutions on AMX tiles.

The generated code, with the tile instructions emulated in NumPy, gives the interpreter's integers,
and its assembly has the instructions.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import sys
from collections.abc import Iterator

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quantglow.codegen.llvm import targets
from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.compiler import target_machine
from quantglow.codegen.llvm.emission import emit_free_program
from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.isa.target import Host, Target
from quantglow.codegen.llvm.isa.x86 import features as tile_permission
from quantglow.codegen.llvm.isa.x86.levels import AMX, LEVELS, TRIPLE
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.machine import host
from quantglow.codegen.llvm.targets import level_target, resolve, runs_here
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv, Input
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.guards import Relation
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.runtime.jit.library import KernelLibrary
from quantglow.runtime.native import compilation
from quantglow.support.errors import BackendError
from tests.matrix.general import general
from tests.matrix.harness import TARGETS, assert_agree, planned
from tests.matrix.tile_machine import TileMachine
from tests.support.effort import moderate
from tests.support.guarded import guarded

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
    """Tile registers that kernels of the target call; other instructions are this processor's."""
    registers, best = TileMachine(), resolve("avx512vnni")
    library = KernelLibrary(best, ObjectCache(None))

    def symbols_of(emitted: EmittedProgram) -> tuple[str, ...]:
        texts = (registers.translated(row.kernel.ir) for row in emitted.rows)
        return tuple(library.load_texts(texts))

    monkeypatch.setattr(compilation, "library", lambda target: library)
    monkeypatch.setattr(compilation, "kernel_symbols", symbols_of)
    return registers, dataclasses.replace(best, isa=dataclasses.replace(best.isa, has_tiles=True))


def assert_tiles_agree(graph: Graph, seed: int = 0) -> int:
    """Check for the interpreter's integers without a fault; the number of tile products."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in graph.inputs:
        values = rng.choice([-128, 127, 0, 50], node.type.shape).astype(np.int8)
        feeds[node.name] = guarded(values, at_end=bool(seed % 2))
    with pytest.MonkeyPatch.context() as monkeypatch:
        registers, tiles = played(monkeypatch)
        actual = compilation.compile_program(*planned(graph), tiles).run(feeds)
    assert registers.faults == []
    np.testing.assert_array_equal(actual[0], interpret(graph, feeds)[0])
    return registers.products


@pytest.mark.slow
@needs_avx512
@moderate
@given(
    size=st.tuples(st.integers(1, 9), st.integers(3, 40) | st.sampled_from([240, 256, 288])),
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
@example((7, 7), 1024, 65, (1, 1), (1, 1), 0, 1, False, 1, 1)  # sums too long to unroll
@example((7, 7), 130, 33, (3, 3), (1, 1), 1, 1, False, 2, 0)  # blocks that go on from row to row
@example((9, 56), 64, 64, (3, 3), (1, 1), 1, 1, True, 1, 1)  # tiles of several groups of pixels
@example((1, 300), 64, 64, (1, 1), (1, 1), 0, 1, True, 1, 1)  # and a smaller last one
@example((3, 256), 64, 64, (1, 3), (1, 1), 1, 1, False, 1, 0)  # a row of groups is a tile
@example((5, 97), 20, 17, (3, 3), (1, 1), 0, 1, True, 1, 0)
@example((14, 14), 256, 400, (1, 1), (1, 1), 0, 1, False, 1, 1)  # panels whose weights are fetched
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


@pytest.mark.slow_variants
@pytest.mark.parametrize("batch", [2, 3, 4, 7, 11])
def test_code_for_a_free_batch_serves_batches_of_any_size(batch: int) -> None:
    target = level_target(AMX)
    built = general(
        lambda sizes: convolution((6, 8), 512, 512, (3, 3), pad=1, batch=sizes["batch"]),
        {"batch": batch},
        target,
    ).lowered
    program, guards = built.planned.program, built.guards
    emitted = emit_free_program(program, built.order, target, guards, np.ascontiguousarray)
    assert any("prefetch" in row.kernel.ir for row in emitted.rows)
    assert not [str(guard) for guard in guards.recorded if guard.relation is Relation.EQUAL]


@needs_avx512
def test_a_row_of_few_pixels_is_left_to_vectors() -> None:
    assert assert_tiles_agree(convolution((1, 1), 256, 64)) == 0


def test_the_assembly_has_the_tile_instructions() -> None:
    program, _ = planned(convolution((7, 20), 96, 40, (3, 3)))
    target = level_target(AMX)
    (step,) = (s for s in program.instructions if isinstance(s, Compute) and s.op.op == "Conv")
    text = target_machine(target).emit_assembly(llvm.parse_assembly(emit(step, target).ir))
    for instruction in ("ldtilecfg", "tileloadd", "tdpbusd", "tilestored", "tilerelease"):
        assert instruction in text


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (5, 5)])
@pytest.mark.parametrize("channels", [(0, 0), (0, 3), (3, 0), (3, 3)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_empty_convolutions_need_no_tiles(
    batch: int, size: tuple[int, int], channels: tuple[int, int], kernel: tuple[int, int]
) -> None:
    graph = convolution(size, *channels, kernel, pad=kernel[0] - 1, batch=batch)
    program, _ = planned(graph)
    for step in program.instructions:
        if isinstance(step, Compute):
            assert bool(emit(step, level_target(AMX)).items) == bool(step.output.type.size)
    feeds = {"x": np.full(graph.inputs[0].type.shape, 3, np.int8)}
    for target in TARGETS:
        assert_agree(graph, feeds, target)


@dataclasses.dataclass
class Tiles:
    """The emulated system call that requests tiles: its error number, and its number of calls."""

    error: int = 0
    requests: int = 0

    def request(self) -> int:
        self.requests += 1
        return self.error


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiles]:
    """A processor with AMX whose Linux grants requests for tiles."""
    if "QUANTGLOW_AS" in os.environ:
        pytest.skip("`as_other` replaces what asks for tiles")
    tiles = Tiles()
    monkeypatch.setattr(targets, "host", lambda: processor_of(*(level.name for level in LEVELS)))
    monkeypatch.setattr(tile_permission, "request_tiles", tiles.request)
    clear_caches()
    yield tiles
    clear_caches()


def processor_of(*levels: str) -> Host:
    """A processor with the features of these levels."""
    needs = {name for level in LEVELS if level.name in levels for name in level.needs}
    return Host(TRIPLE, "x86-64", ",".join(f"+{name}" for name in sorted(needs)))


def clear_caches() -> None:
    tile_permission.tile_refusal.cache_clear()
    resolve.cache_clear()


@pytest.mark.parametrize("name", [AMX, "native"])
def test_resolving_a_target_with_tiles_asks_for_them_once(name: str, tiles: Tiles) -> None:
    assert resolve(name).isa.tiles
    assert resolve(name).isa.tiles
    assert runs_here(AMX)
    assert tiles.requests == 1


@pytest.mark.parametrize("name", ["avx512vnni", "x86-64"])
def test_targets_without_tiles_ask_for_none(name: str, tiles: Tiles) -> None:
    assert not resolve(name).isa.tiles
    assert tiles.requests == 0


def test_generating_code_for_tiles_asks_for_none(tiles: Tiles) -> None:
    assert level_target(AMX).isa.tiles
    assert tiles.requests == 0


def test_refused_tiles_are_an_error_that_says_why(tiles: Tiles) -> None:
    tiles.error = errno.EOPNOTSUPP
    message = re.escape(
        "target 'amx-int8' does not run here: Linux refuses AMX tiles to this process "
        f"({os.strerror(errno.EOPNOTSUPP)}). Remedy: target='native'"
    )
    with pytest.raises(BackendError, match=message):
        resolve(AMX)
    assert not runs_here(AMX)
    assert resolve("native").name == "avx512vnni"


def test_a_processor_without_tiles_is_an_error(
    tiles: Tiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "host", lambda: processor_of("avx512vnni"))
    with pytest.raises(BackendError, match="this processor lacks amx-tile, amx-int8"):
        resolve(AMX)
    assert tiles.requests == 0


@pytest.mark.skipif(sys.platform != "linux", reason="a system call of Linux")
def test_the_system_call_gives_an_error_where_there_are_no_tiles() -> None:
    assert host().has("amx-tile") or tile_permission.request_tiles() > 0
