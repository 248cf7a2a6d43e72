"""Kernels found by the names of their calls, without making texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, call_names
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Alloc, Dealloc, Instruction
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.memory.planning import plan_program
from quantglow.runtime.jit.library import KernelLibrary

NATIVE = resolve("native")


def network(
    width: int = 5,
    weight: int = 3,
    zero_point: int = 1,
    low: float = 0.0,
    scale: float = 0.01,
    out: int = 0,
) -> Graph:
    """An int8 convolution, one with float results, then one of these; ``scale``: of weights,
    ``out``: the zero point between the first two.
    """
    kind = TensorType(DType.I8, (1, 4, width, 3), QuantParams.per_tensor(0.05, zero_point))
    x = Input(name="x", tensor=kind)
    element = ElementType(DType.I8, QuantParams.symmetric(np.full(4, scale), 3))
    values = np.full((3, 3, 3, 4), weight, np.int8)
    w = Constant(name="w", value=values, element=element)
    b = Constant(name="b", value=np.arange(4, dtype=np.int32))
    middle = ElementType(DType.I8, QuantParams.per_tensor(0.3, out))
    whole = Conv(name="whole", x=x, w=w, b=b, out=middle)
    w = Constant(name="w2", value=np.full((1, 1, 4, 4), weight, np.int8), element=element)
    first = Conv(name="first", x=whole, w=w, b=Constant(name="b2", value=b.value))
    ones = Constant(name="ones", value=np.full((1, 1, 4, 2), 0.5, np.float32))
    bias = Constant(name="bias", value=np.zeros(2, np.float32))
    second = Conv(name="second", x=first, w=ones, b=bias, low=low)
    return Graph((x,), (("y", second),))


def steps_of(graph: Graph) -> list[Instruction]:
    planned = plan_program(graph, NATIVE).program.instructions
    return [step for step in planned if not isinstance(step, Alloc | Dealloc)]


def named(graph: Graph, target: Target = NATIVE) -> tuple[str, ...]:
    steps = steps_of(graph)
    names = call_names(steps, [emit(step, target) for step in steps], target)
    assert names is not None
    return tuple(names)


def calls_of(graph: Graph) -> list[KernelCall]:
    return [emit(step, NATIVE) for step in steps_of(graph)]


def textless(calls: list[KernelCall]) -> list[KernelCall]:
    """The calls; asking for a text fails."""

    def refuse() -> str:
        raise AssertionError("a text was made")

    return [replace(call, code=refuse) for call in calls]


def test_equal_programs_have_the_same_names() -> None:
    assert named(network()) == named(network())


def test_names_depend_on_all_that_texts_depend_on() -> None:
    names = {
        named(network()),
        named(network(width=6)),
        named(network(scale=1e9)),
        named(network(out=2)),
        named(network(low=0.5)),
        named(network(), replace(NATIVE, isa=replace(NATIVE.isa, vector_nbytes=16))),
    }
    assert len(names) == 6


@pytest.mark.parametrize("change", [{"weight": 4}, {"scale": 0.02}])
def test_names_do_not_depend_on_weights(change: dict[str, Any]) -> None:
    assert named(network(**change)) == named(network())
    texts = [call.ir for call in calls_of(network(**change))]
    assert texts == [call.ir for call in calls_of(network())]


def test_a_known_program_needs_no_texts(tmp_path: Path) -> None:
    calls, names = calls_of(network()), named(network())
    KernelLibrary(NATIVE, ObjectCache(tmp_path)).load_calls(names, calls)
    later = KernelLibrary(NATIVE, ObjectCache(tmp_path))
    actual = later.load_calls(names, textless(calls))
    assert actual == later.load_texts([call.ir for call in calls])


@pytest.mark.parametrize("kind", ["kernel", "call"])
def test_kernels_missing_in_the_cache_are_made_again(tmp_path: Path, kind: str) -> None:
    calls, names = calls_of(network()), named(network())
    KernelLibrary(NATIVE, ObjectCache(tmp_path)).load_calls(names, calls)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.o")}
    next(tmp_path.glob(f"quantglow_{kind}_*")).unlink()
    KernelLibrary(NATIVE, ObjectCache(tmp_path)).load_calls(names, calls)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.o")} == before


def test_a_process_makes_a_text_once() -> None:
    library = KernelLibrary(NATIVE, ObjectCache(None))
    before, names = calls_of(network()), named(network())
    actual = library.load_calls(names, before)
    assert library.load_calls(names, textless(calls_of(network(weight=4)))) == actual


def test_without_names_all_texts_are_made() -> None:
    library, calls = KernelLibrary(NATIVE, ObjectCache(None)), calls_of(network())
    assert library.load_calls(None, calls) == library.load_calls(named(network()), calls)
