"""Values of LLVM IR know their types, which are made of parts and never read out of texts."""

from __future__ import annotations

import pytest

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.values import (
    DOUBLE,
    FLOAT,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    ConstantValue,
    Type,
    bits_type,
    f32,
    poison,
    proper_vector,
    splat,
    vector,
)

SCALARS = (I1, I8, I16, I32, I64, FLOAT, DOUBLE, PTR)


@pytest.mark.parametrize("element", SCALARS)
@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_a_type_has_its_parts(element: Type, lanes: int) -> None:
    kind = vector(lanes, element)
    assert (kind.lanes, kind.element, kind.nbits) == (lanes, element, element.nbits)
    assert kind.mask == vector(lanes, I1) and kind.is_float == element.is_float


def test_texts_are_those_of_llvm() -> None:
    kind = vector(4, FLOAT)
    assert (kind, kind.suffix, kind.with_element(I32)) == ("<4 x float>", "v4f32", "<4 x i32>")
    assert (proper_vector(1, I64), bits_type(16)) == ("<1 x i64>", "i16")
    assert splat(kind, f32(1.0)) == "splat (float 0x3FF0000000000000)"
    assert splat(I32, "7") == "7"


def test_results_of_instructions_have_types() -> None:
    b = Builder()
    (pointer,) = b.kernel(1)
    kind = vector(8, FLOAT)
    x = b.load(kind, pointer)
    types = {
        b.op("fadd", kind, x, x): kind,
        b.compare("olt", kind, x, x): vector(8, I1),
        b.cast("fptosi", kind, x, vector(8, I32)): vector(8, I32),
        b.shuffle(kind, x, "poison", range(4)): vector(4, FLOAT),
        b.extract(x, 3): FLOAT,
        b.insert(poison(kind), "0.0", 1): kind,
        b.at(pointer, 8): PTR,
        b.mul(b.add("%begin", 1), 2): I64,
    }
    assert {value: value.type for value in types} == types
    assert not any(isinstance(value, ConstantValue) for value in types)


def test_indices_that_cost_nothing_are_constants() -> None:
    b = Builder(index=I32)
    zero = b.mul("0", 5)
    assert isinstance(zero, ConstantValue) and (zero, zero.type) == ("0", I32)
    assert b.add(zero, 3) == "3" and not b.lines
