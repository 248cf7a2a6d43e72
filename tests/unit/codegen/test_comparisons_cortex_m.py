"""Comparisons of Cortex-M55 are false for NaN."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from quantglow.codegen.llvm.array_kernels.elements import map_function
from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.compiler import assembly
from quantglow.codegen.llvm.isa.cortex_m.instructions import with_ordered_comparisons
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.targets import level_target
from quantglow.codegen.llvm.values import FLOAT, vector
from quantglow.ir.ops.expression import arg, call
from tools.function_accuracy import FUNCTIONS

TARGET = level_target("cortex-m55")
HOLDS_FOR_NAN = re.compile(r"(?:vpt\w*|vcmp)\.f32\s+l[te],")
LANES = 4


def comparison(predicate: str, x: str, y: str) -> str:
    """The assembly of one comparison; an operand is ``vector``, ``number`` or a literal."""
    b = Builder(index=TARGET.isa.index)
    source, destination = b.kernel(2)
    kind = vector(LANES, FLOAT)
    known = {
        "vector": b.load(kind, source),
        "number": b.broadcast(LANES, FLOAT, b.load(FLOAT, b.at(source, 64))),
    }
    left, right = (known.get(name, f"splat (float {name})") for name in (x, y))
    chosen = b.compare(predicate, kind, left, right)
    b.store(kind, b.select(kind, chosen, left, right), destination)
    return assembly(TARGET, b.finish())


@pytest.mark.parametrize("other", ["number", "0x4008CCCCC0000000", "0x0000000000000000"])
@pytest.mark.parametrize("predicate", ["olt", "ole", "ogt", "oge"])
def test_no_comparison_with_a_number_holds_for_nan(predicate: str, other: str) -> None:
    for operands in (("vector", other), (other, "vector")):
        assert not HOLDS_FOR_NAN.search(comparison(predicate, *operands))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_function_has_a_comparison_that_holds_for_nan(name: str) -> None:
    assert not HOLDS_FOR_NAN.search(assembly(TARGET, map_function(TARGET, FUNCTIONS[name].steps)))


def test_a_maximum_with_a_constant_is_no_operand_that_may_be_nan() -> None:
    """The second limit of a quantizer costs no instruction."""
    b = Builder(index=TARGET.isa.index)
    (pointer,) = b.kernel(1)
    value = b.load(vector(LANES, FLOAT), pointer)
    b.store(vector(LANES, FLOAT), vectors.clip_float(b, LANES, value, -3.0, 3.0), pointer)
    text = b.finish()
    assert with_ordered_comparisons(text) == text


def test_llvm_still_needs_the_rewriting() -> None:
    text = map_function(TARGET, call("exp", arg(0)))
    plain = replace(TARGET, isa=level_target("portable").isa)
    assert HOLDS_FOR_NAN.search(assembly(plain, text))
