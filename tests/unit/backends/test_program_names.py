"""Kernels known by the name of their program: the same ones, found without making texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantglow.backends.llvm.cache import ObjectCache
from quantglow.backends.llvm.identity import program_name
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels import emit
from quantglow.backends.llvm.levels import resolve
from quantglow.backends.llvm.library import KernelLibrary
from quantglow.backends.llvm.target import Target
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input
from quantglow.instr.program import Alloc, Dealloc, Instruction
from quantglow.ops import Conv
from quantglow.runtime.build import plan_program
from quantglow.types import DType, ElementType, QuantParams, TensorType

NATIVE = resolve("native")


def network(width: int = 5, weight: int = 3, zero_point: int = 1, low: float = 0.0) -> Graph:
    """An int8 convolution, then a float one."""
    kind = TensorType(DType.I8, (1, 4, width, 3), QuantParams.per_tensor(0.05, zero_point))
    x = Input(name="x", tensor=kind)
    element = ElementType(DType.I8, QuantParams.symmetric(np.full(4, 0.01), 3))
    values = np.full((3, 3, 3, 4), weight, np.int8)
    w = Constant(name="w", value=values, element=element)
    b = Constant(name="b", value=np.arange(4, dtype=np.int32))
    first = Conv(name="first", x=x, w=w, b=b)
    ones = Constant(name="ones", value=np.full((1, 1, 4, 2), 0.5, np.float32))
    bias = Constant(name="bias", value=np.zeros(2, np.float32))
    second = Conv(name="second", x=first, w=ones, b=bias, low=low)
    return Graph((x,), (("y", second),))


def steps_of(graph: Graph) -> list[Instruction]:
    found = plan_program(graph).program.instructions
    return [step for step in found if not isinstance(step, Alloc | Dealloc)]


def named(graph: Graph, target: Target = NATIVE) -> str:
    name = program_name(steps_of(graph), target)
    assert name is not None
    return name


def calls_of(graph: Graph) -> list[KernelCall]:
    return [emit(step, NATIVE) for step in steps_of(graph)]


def textless(calls: list[KernelCall]) -> list[KernelCall]:
    """The calls; asking for a text fails."""

    def refuse() -> str:
        raise AssertionError("a text was made")

    return [replace(call, code=refuse) for call in calls]


def test_equal_programs_have_one_name() -> None:
    assert named(network()) == named(network())


def test_the_name_depends_on_all_that_texts_depend_on() -> None:
    names = {
        named(network()),
        named(network(width=6)),
        named(network(weight=4)),
        named(network(zero_point=2)),
        named(network(low=0.5)),
        named(network(), replace(NATIVE, vector_nbytes=16)),
    }
    assert len(names) == 6


def test_a_known_program_needs_no_texts(tmp_path: Path) -> None:
    calls, name = calls_of(network()), named(network())
    KernelLibrary(NATIVE, ObjectCache(tmp_path)).load_program(name, calls)
    later = KernelLibrary(NATIVE, ObjectCache(tmp_path))
    found = later.load_program(name, textless(calls))
    assert found == later.load([call.ir for call in calls])


@pytest.mark.parametrize("kind", ["kernel", "program"])
def test_what_is_missing_in_the_cache_is_made_again(tmp_path: Path, kind: str) -> None:
    calls, name = calls_of(network()), named(network())
    KernelLibrary(NATIVE, ObjectCache(tmp_path)).load_program(name, calls)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.o")}
    next(tmp_path.glob(f"quantglow_{kind}_*")).unlink()
    KernelLibrary(NATIVE, ObjectCache(tmp_path)).load_program(name, calls)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.o")} == before
