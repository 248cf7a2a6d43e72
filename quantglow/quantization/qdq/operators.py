"""Exchange of roundings with element moves, and int8 forms of operators by the quantizer's rules.

Exchanging a rounding with a move changes no integer.  Convolutions and products with weights are in
``contraction``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    Dequantize,
    MatMul,
    Pad,
    PRelu,
    Quantize,
    Rescale,
    Reshape,
    Softmax,
    Table,
    Transpose,
)
from quantglow.ir.ops.arithmetic import dequantize, quantization, quantize, representable
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import DType, ElementType
from quantglow.quantization.plan.eligibility import compose, ineligibility, unary_function
from quantglow.quantization.rules import find_rule
from quantglow.transforms.float.layout import per_axis
from quantglow.transforms.rewrite import Uses, rewrite_pass


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
        return _round_table(node.x, node, uses)
    x = integers_below(node.x)
    if x is None:
        return None
    return x if x.type == node.type else Rescale(name=node.name, x=x, out=node.out)


def _round_table(table: Table, node: Quantize, uses: Uses) -> Node | None:
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
    rounded = {x: _round_operand(x, node.out, uses) for x in f.operands}
    moved = f.with_operands(tuple(rounded[x] for x in f.operands))
    return replace(moved, name=node.name)


def _round_operand(x: Node, out: ElementType, uses: Uses) -> Node:
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
    operands = tuple(x for x in integers if x is not None)
    if all(isinstance(x, Constant) for x in operands):
        return _move_constant(node, operands[0], uses)
    if isinstance(node, Pad) and not _pads_exactly(node, operands[0]):
        return None
    name = uses.fresh(f"{node.name}:q")
    return Dequantize(name=node.name, x=replace(node.with_operands(operands), name=name))


def _move_constant(node: Node, x: Node, uses: Uses) -> Node | None:
    """Reshape or Transpose of known integers."""
    if not isinstance(x, Constant) or not isinstance(node, Reshape | Transpose):
        return None
    value = np.array(node.evaluate(x.value), order="C")
    name = uses.fresh(f"{node.name}:codes")
    return Dequantize(name=node.name, x=Constant(name=name, value=value, element=x.element))


def _pads_exactly(node: Pad, x: Node) -> bool:
    """Whether the padding is one of the reals that the integers stand for."""
    code = np.array(representable(x.type, node.value))
    return float(dequantize(code, quantization(x.type))) == node.value


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
    pairs = zip(operands, node.operands, strict=True)
    return node.with_operands(
        tuple(
            x if real is None else replace(real, name=uses.fresh(f"{x.name}:real"))
            for real, x in pairs
        )
    )


@dataclass
class FusionSite:
    """A float operator between Dequantize and Quantize, as the rules of the quantizer see it."""

    node: Node
    result: ElementType | None
    uses: Uses
    per_channel: bool = True

    def int8(self, node: Node, element: ElementType | None = None) -> Node:
        """The integers that the operand dequantizes, rescaled if the rule asks for it."""
        if isinstance(node, Constant):
            target = element or self.element(node)
            name = self.uses.fresh(f"{node.name}:q")
            return Constant(name=name, value=quantize(node.value, target), element=target)
        x = integers_below(node)
        assert x is not None, "sites have quantized operands"
        if element is None or x.type.element == element:
            return x
        return Rescale(name=self.uses.fresh(f"{x.name}:q"), x=x, out=element)

    def is_int8(self, node: Node) -> bool:
        """Whether a function may be skipped on the way up: nothing else reads it."""
        return node is self.node or (unary_function(node) is not None and self.uses.single(node))

    def decided_operands(self, node: Node, x: ElementType) -> None:
        """Nothing: the model has its integers in itself."""

    def real(self, node: Node) -> Node:
        return node

    def element(self, node: Node) -> ElementType:
        assert self.result is not None, "only products give float"
        return self.result

    def out(self, node: Node) -> ElementType | None:
        return self.result

    def fresh(self, name: str) -> str:
        """``name``, numbered if the graph has it."""
        return self.uses.fresh(name)


@rewrite_pass("fuse-operator")
def fuse_operator(node: Node, uses: Uses) -> Node | None:
    """Quantize(f(Dequantize(x), …)) -> f(x, …) in int8; MatMul also without the Quantize"""
    if isinstance(node, MatMul) and node.out is None:
        return _integer_form(node, FusionSite(node, None, uses))
    if not isinstance(node, Quantize) or per_axis(node) or not computes(node):
        return None
    f = node.x
    if isinstance(f, MatMul) and f.out is None and not f.type.quant and uses.single(f):
        integers = _integer_form(f, FusionSite(f, node.out, uses)) or _with_result(f, node.out)
    elif not uses.single(f) or isinstance(f, Contraction) or f.has(Trait.CHOOSES):
        return None
    else:
        integers = _integer_form(f, FusionSite(f, node.out, uses))
    is_operand = integers in uses.counts  # if a function changes nothing
    return integers if integers is None or is_operand else replace(integers, name=node.name)


def _with_result(product: MatMul, out: ElementType) -> Node | None:
    """An int8 product that gives float so far, rounded."""
    return replace(product, out=out) if computes(product.x) and computes(product.y) else None


def _integer_form(f: Node, site: FusionSite) -> Node | None:
    """The int8 form of ``f``, if it has one and its operands are int8."""
    rule = find_rule(type(f))
    if rule is None or ineligibility(f):
        return None
    if unary_function(f) is not None:
        return _tabulate_codes(f, site)
    integers = [x for x in f.operands if computes(integers_below(x))]
    constants = [x for x in f.operands if isinstance(x, Constant)] if _takes_constants(f) else []
    if isinstance(f, Softmax) and not all(map(is_int8, map(integers_below, f.operands))):
        return None
    if not integers or len(integers) + len(constants) < len(f.operands):
        return None
    return rule(f, site)


def _tabulate_codes(f: Node, site: FusionSite) -> Node | None:
    """A table of the results for all codes, in the float32 steps of the operators themselves; or
    the operand, if the results are its codes.
    """
    source, function = compose(f, site.is_int8)
    x, out = integers_below(source), site.element(f)
    if x is None or not computes(x):
        return None
    lowest, highest = x.type.dtype.limits
    codes = np.arange(lowest, highest + 1).astype(x.type.dtype.numpy)
    with np.errstate(all="ignore"):
        reals = np.asarray(function(dequantize(codes, x.type.params)), np.float32)
    entries = quantize(reals, out)
    if x.type.element == out and np.array_equal(entries, codes):
        return x
    table = Constant(name=site.uses.fresh(f"{f.name}:table"), value=entries, element=out)
    return Table(name=f.name, x=x, table=table, out=out, function=f.op)


def _takes_constants(f: Node) -> bool:
    """Whether the int8 form takes float Constants as they are."""
    return isinstance(f, Binary) or f.op in ("PRelu", "LayerNormalization")
