"""Operators declare the kinds of elements that they take; files state no others."""

from __future__ import annotations

import pytest

from quantglow.ir.graph.kinds import Kind, element_kind
from quantglow.ir.graph.node import OPS, Input, attribute_fields, operand_fields
from quantglow.ir.graph.text import parse_graph
from quantglow.ir.ops import Add, MatMul, Pad, Relu, TopK
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from quantglow.support.errors import FileFormatError, TypeRuleError

PER_TENSOR = QuantParams.per_tensor(0.5, 0)
PER_AXIS = QuantParams.symmetric([0.5, 0.25], 0)


def tensor(dtype: DType, quant: QuantParams | None = None) -> Input:
    return Input(name="x", tensor=TensorType(dtype, (2, 2), quant))


@pytest.mark.parametrize(
    ("dtype", "quant", "kind"),
    [
        (DType.F32, None, Kind.FLOAT),
        (DType.BOOL, None, Kind.BOOL),
        (DType.U8, None, Kind.INTEGER),
        (DType.I64, None, Kind.LONG),
        (DType.U8, PER_TENSOR, Kind.BYTE),
        (DType.I16, PER_TENSOR, Kind.SHORT),
        (DType.I32, PER_TENSOR, Kind.WIDE),
        (DType.I8, PER_AXIS, Kind.CHANNELS),
        (DType.I32, PER_AXIS, Kind.WIDE_CHANNELS),
        (DType.F32, PER_TENSOR, Kind(0)),
        (DType.BOOL, PER_TENSOR, Kind(0)),
        (DType.I64, PER_AXIS, Kind(0)),
    ],
)
def test_kinds(dtype: DType, quant: QuantParams | None, kind: Kind) -> None:
    assert element_kind(ElementType(dtype, quant)) == kind


def test_declarations_name_fields() -> None:
    for cls in OPS.values():
        assert {*cls.takes} <= {*operand_fields(cls), *attribute_fields(cls)}, cls.__name__


def test_other_kinds_of_operands_are_refused() -> None:
    with pytest.raises(TypeRuleError, match="x must be float; operands"):
        Relu(name="y", x=tensor(DType.I8, PER_TENSOR))
    with pytest.raises(TypeRuleError, match=r"x must be float or .*codes"):
        TopK(name="y", x=tensor(DType.BOOL), k=1)


def test_other_kinds_of_results_are_refused() -> None:
    x = tensor(DType.I8, PER_TENSOR)
    for element in (ElementType(DType.BOOL), ElementType(DType.I8, PER_AXIS)):
        with pytest.raises(TypeRuleError, match="out must be 8-bit codes or int16 codes"):
            MatMul(name="y", x=x, y=x, out=element)


def test_a_quantized_sum_with_a_computed_float_is_refused() -> None:
    y = Input(name="float", tensor=f32(2, 2))
    out = ElementType(DType.I8, PER_TENSOR)
    with pytest.raises(TypeRuleError, match="'float' is a float tensor that is not constant"):
        Add(name="y", x=tensor(DType.I8, PER_TENSOR), y=y, out=out)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.5, 128.0])
def test_a_padding_that_is_not_an_element_is_refused(value: float) -> None:
    with pytest.raises(TypeRuleError, match="is not an element of"):
        Pad(name="y", x=tensor(DType.I8), before=(1, 0), after=(0, 0), value=value)


STATED = {
    "scales": ("f32[4x64]", "ElementType('i8', (0.5, 0.5), (0, 0), 1)", "2 scales do not fit"),
    "axis": ("f32[4x64]", "ElementType('i8', (0.5, 0.5), (0, 0), 7)", "2 scales do not fit axis 7"),
    "negative": ("f32[4x64]", "ElementType('i8', (0.5,) , (0,), -1)", "do not fit axis -1"),
}


@pytest.mark.parametrize(("kind", "element", "message"), STATED.values(), ids=STATED)
def test_parameters_that_do_not_fit_are_refused(kind: str, element: str, message: str) -> None:
    text = (
        "graph ''\n"
        f"'x': {kind} = Input(tensor=TensorType('f32', (4, 64)))\n"
        f"'q': i8[4x64] = Quantize(x='x', out={element})\n"
    )
    with pytest.raises(FileFormatError, match=message):
        parse_graph(text, {})


@pytest.mark.parametrize("shape", ["(4611686018427387904, 4)", "(0, 4294967296)"])
def test_sizes_that_no_program_has_are_refused(shape: str) -> None:
    """Tables would be made of them, also where an empty axis leaves no element."""
    with pytest.raises(FileFormatError, match="elements at most"):
        parse_graph(f"graph ''\n'x': f32[1] = Input(tensor=TensorType('f32', {shape}))\n", {})


def test_names_are_text() -> None:
    line = "'\\ud800': f32[1] = Input(tensor=TensorType('f32', (1,)))"
    with pytest.raises(FileFormatError, match="is not text: surrogates not allowed"):
        parse_graph(f"graph ''\n{line}\n", {})
