"""Operators other than convolutions and products with weights, by the rules of the quantizer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.graph.traits import Trait
from quantglow.ops import MatMul, Quantize, Rescale, Softmax, Table
from quantglow.ops.arithmetic import dequantize, quantize
from quantglow.ops.binary import Binary
from quantglow.ops.contraction import Contraction
from quantglow.passes.layout import per_axis
from quantglow.quantization.convert.rules import rule_of
from quantglow.quantization.plan.eligibility import ineligibility
from quantglow.quantization.plan.functions import composed, function_of
from quantglow.quantization.qdq.movement import computes, integers_below, is_int8
from quantglow.types import ElementType


@dataclass
class Site:
    """A float operator between Dequantize and Quantize, as the rules of the quantizer see it."""

    node: Node
    result: ElementType | None
    uses: Uses
    per_channel: bool = True

    def int8(self, node: Node, element: ElementType | None = None) -> Node:
        """The integers that the operand dequantizes, rescaled if the rule asks for it."""
        if isinstance(node, Constant):
            wanted = element or self.element(node)
            name = self.uses.fresh(f"{node.name}:q")
            return Constant(name=name, value=quantize(node.value, wanted), element=wanted)
        x = integers_below(node)
        assert x is not None, "sites have quantized operands"
        if element is None or x.type.element == element:
            return x
        return Rescale(name=self.uses.fresh(f"{x.name}:q"), x=x, out=element)

    def is_int8(self, node: Node) -> bool:
        """Whether a function may be skipped on the way up: nothing else reads it."""
        return node is self.node or (function_of(node) is not None and self.uses.single(node))

    def decided(self, node: Node, x: ElementType) -> None:
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
        return fused(node, Site(node, None, uses))
    if not isinstance(node, Quantize) or per_axis(node) or not computes(node):
        return None
    f = node.x
    if isinstance(f, MatMul) and f.out is None and not f.type.quant and uses.single(f):
        made = fused(f, Site(f, node.out, uses)) or with_result(f, node.out)
    elif not uses.single(f) or isinstance(f, Contraction) or f.has(Trait.CHOOSES):
        return None
    else:
        made = fused(f, Site(f, node.out, uses))
    is_operand = made in uses.counts  # if a function changes nothing
    return made if made is None or is_operand else replace(made, name=node.name)


def with_result(product: MatMul, out: ElementType) -> Node | None:
    """An int8 product that gives float so far, rounded."""
    return replace(product, out=out) if computes(product.x) and computes(product.y) else None


def fused(f: Node, site: Site) -> Node | None:
    """The int8 form of ``f``, if it has one and its operands are int8."""
    rule = rule_of(type(f))
    if rule is None or ineligibility(f):
        return None
    if function_of(f) is not None:
        return tabulated(f, site)
    integers = [x for x in f.operands if computes(integers_below(x))]
    constants = [x for x in f.operands if isinstance(x, Constant)] if takes_constants(f) else []
    if isinstance(f, Softmax) and not all(map(is_int8, map(integers_below, f.operands))):
        return None
    if not integers or len(integers) + len(constants) < len(f.operands):
        return None
    return rule(f, site)


def tabulated(f: Node, site: Site) -> Node | None:
    """A table of the results for all codes, in the float32 steps of the operators themselves; or
    the operand, if the results are its codes.
    """
    source, function = composed(f, site.is_int8)
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


def takes_constants(f: Node) -> bool:
    """Whether the int8 form takes float Constants as they are."""
    return isinstance(f, Binary) or f.op in ("PRelu", "LayerNormalization")
