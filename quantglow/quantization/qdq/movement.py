"""Roundings and element moves trade places, which changes no integer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.graph.traits import Trait
from quantglow.ops import Dequantize, Pad, PRelu, Quantize, Rescale, Reshape, Table, Transpose
from quantglow.ops.arithmetic import dequantize, quant_of, representable
from quantglow.ops.binary import Binary
from quantglow.passes.layout import per_axis
from quantglow.types import DType, ElementType


def integers_below(node: Node) -> Node | None:
    """The integers, quantized per tensor, that the node dequantizes."""
    if isinstance(node, Dequantize) and not per_axis(node.x):
        return node.x
    return None


def computes(node: Node | None) -> bool:
    """Whether operators have a form for these integers: int8, or int16 with zero point 0, per
    tensor."""
    if node is None or node.type.quant is None or node.type.quant.axis is not None:
        return False
    dtype, zero_point = node.type.dtype, node.type.params.zero_point
    return dtype is DType.I8 or (dtype is DType.I16 and zero_point == 0)


def is_int8(node: Node | None) -> bool:
    """Whether functions of these integers are tables of 256 entries."""
    return computes(node) and node is not None and node.type.dtype is DType.I8


@rewrite_pass("merge-roundings")
def merge_roundings(node: Node, uses: Uses) -> Node | None:
    """Quantize(Dequantize(x)) -> x, or Rescale(x) where the parameters differ"""
    if not isinstance(node, Quantize) or per_axis(node):
        return None
    if isinstance(node.x, Table) and uses.single(node.x) and node.x.type.dtype.is_float:
        return rounded_table(node.x, node, uses)
    x = integers_below(node.x)
    if x is None:
        return None
    return x if x.type == node.type else Rescale(name=node.name, x=x, out=node.out)


def rounded_table(table: Table, node: Quantize, uses: Uses) -> Node | None:
    """Quantize(Table(x)) -> Table(x)"""
    if not isinstance(table.table, Constant):
        return None
    entries = Constant(
        name=uses.fresh(f"{node.name}:table"),
        value=node.evaluate(table.table.value),
        element=node.out,
    )
    return replace(table, name=node.name, table=entries, out=node.out)


@rewrite_pass("raise-quantize")
def raise_quantize(node: Node, uses: Uses) -> Node | None:
    """Quantize(f(x)) -> f(Quantize(x)) for f that chooses elements"""
    if not isinstance(node, Quantize) or per_axis(node):
        return None
    f = node.x
    if not f.has(Trait.CHOOSES) or not uses.single(f):
        return None
    rounded = {x: rounded_operand(x, node.out, uses) for x in f.operands}
    made = f.with_operands(tuple(rounded[x] for x in f.operands))
    return replace(made, name=node.name)


def rounded_operand(x: Node, out: ElementType, uses: Uses) -> Node:
    name = uses.fresh(f"{x.name}:q")
    if isinstance(x, Constant):
        value = Quantize(name=name, x=x, out=out).evaluate(x.value)
        return Constant(name=name, value=value, element=out)
    return Quantize(name=name, x=x, out=out)


@rewrite_pass("lower-dequantize")
def lower_dequantize(node: Node, uses: Uses) -> Node | None:
    """f(Dequantize(x)) -> Dequantize(f(x)) for f that chooses elements"""
    if not node.has(Trait.CHOOSES):
        return None
    integers = [integers_below(x) for x in node.operands]
    elements = {None if x is None else x.type.element for x in integers}
    if len(elements) != 1 or None in elements:
        return None
    found = tuple(x for x in integers if x is not None)
    if all(isinstance(x, Constant) for x in found):
        return moved_constant(node, found[0], uses)
    if isinstance(node, Pad) and not pads_exactly(node, found[0]):
        return None
    name = uses.fresh(f"{node.name}:q")
    return Dequantize(name=node.name, x=replace(node.with_operands(found), name=name))


def moved_constant(node: Node, x: Node, uses: Uses) -> Node | None:
    """Reshape or Transpose of known integers."""
    if not isinstance(x, Constant) or not isinstance(node, Reshape | Transpose):
        return None
    value = np.array(node.evaluate(x.value), order="C")
    name = uses.fresh(f"{node.name}:codes")
    return Dequantize(name=node.name, x=Constant(name=name, value=value, element=x.element))


def pads_exactly(node: Pad, x: Node) -> bool:
    """Whether the padding is one of the reals that the integers stand for."""
    code = np.array(representable(x.type, node.value))
    return float(dequantize(code, quant_of(x.type))) == node.value


@rewrite_pass("real-constants")
def real_constants(node: Node, uses: Uses) -> Node | None:
    """Dequantize(Constant) -> Constant, for operators that compute in float"""
    if isinstance(node, Dequantize) and isinstance(node.x, Constant):
        return Constant(name=node.name, value=node.evaluate(node.x.value))
    return None


@rewrite_pass("real-operands")
def real_operands(node: Node, uses: Uses) -> Node | None:
    """x + Dequantize(Constant) -> x + Constant, and other element-wise operators: their int8 forms
    take float Constants exactly"""
    if not isinstance(node, Binary | PRelu):
        return None
    operands = [real_constants.rule(x, uses) for x in node.operands]
    if not any(operands):
        return None
    found = zip(operands, node.operands, strict=True)
    return node.with_operands(
        tuple(
            x if made is None else replace(made, name=uses.fresh(f"{x.name}:real"))
            for made, x in found
        )
    )
