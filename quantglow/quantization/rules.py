"""The integer form of each operator: ``quant_rules[Op](node, conversion)``.

A rule gets the float node, and takes its operands from the conversion in int8, or in int16 where
the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    AveragePool,
    Clip,
    Conv,
    Dequantize,
    Gather,
    LayerNormalization,
    MatMul,
    PRelu,
    Quantize,
    ReduceMean,
    Relu,
    Softmax,
    Table,
)
from quantglow.ir.ops.arithmetic import quantization
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.unary import Unary
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.quantization.plan.eligibility import compose, unary_function
from quantglow.quantization.plan.params import (
    QuantizedWeights,
    quantize_weights,
    stored_weights,
    with_bias,
)
from quantglow.support.arrays import Array

Operands = Mapping[str, Constant | None]
"""The Constants ``w`` and ``b`` of a layer."""


class Conversion(Protocol):
    """The interface of the graph under construction; nodes are those of the float graph."""

    per_channel: bool

    def int8(self, node: Node, element: ElementType | None = None) -> Node:
        """The value as int8, with its own parameters or those given."""

    def is_int8(self, node: Node) -> bool:
        """Whether the node computes on int8 operands."""

    def decided_operands(self, node: Node, x: ElementType) -> Operands | None:
        """The integer operands of a layer with input ``x``, if they are known already."""

    def real(self, node: Node) -> Node:
        """The value as float32."""

    def element(self, node: Node) -> ElementType:
        """The int8 type of the value."""

    def out(self, node: Node) -> ElementType | None:
        """The int8 type of the result, or None if it is only read as float32."""

    def fresh(self, name: str) -> str:
        """A name for a new node: ``name``, numbered if it is taken."""


Rule = Callable[[Any, Conversion], Node]
AnyRule = TypeVar("AnyRule", bound=Rule)
quant_rules: dict[type[Node], Rule] = {}
"""The rule of an operator, or of a base class for all operators below it."""


def quant_rule(*kinds: type[Node]) -> Callable[[AnyRule], AnyRule]:
    def register(rule: AnyRule) -> AnyRule:
        quant_rules.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def keeps_params(node: Node, conversion: Conversion) -> Node:
    """Operators whose result has the parameters of their operands."""
    element = conversion.element(node)
    return node.with_operands(tuple(conversion.int8(o, element) for o in node.operands))


def find_rule(kind: type[Node]) -> Rule | None:
    """The rule of the operator or of its nearest base class that has one, or of its traits."""
    rule = next((quant_rules[c] for c in kind.__mro__ if c in quant_rules), None)
    return keeps_params if rule is None and Trait.KEEPS_QUANTIZATION in kind.traits else rule


@quant_rule(Contraction)
def contraction(node: Any, conversion: Conversion) -> Node:
    """int8 weights by channel, int32 bias, one rounding."""
    x, out = conversion.int8(node.x), conversion.out(node)
    names = operand_names(node.name, conversion.fresh)
    integers = conversion.decided_operands(node, x.type.element)
    if integers is None:
        quantized = _layer_integers(node, x, conversion.per_channel)
        if quantized is None:
            return _compute_in_float(node, conversion)
        integers = integer_operands(names, quantized, x.type.params)
    else:
        integers = rename_operands(integers, names)
    changes: dict[str, Any] = {"x": x, "out": out, **integers}
    if isinstance(node, Conv) and node.residual is not None:
        read = conversion.real if out is None else conversion.int8
        changes["residual"] = read(node.residual)
    result: Node = replace(node, **changes)
    return result


def _layer_integers(node: Any, x: Node, per_channel: bool) -> QuantizedWeights | None:
    """The integers of a layer with input ``x``: those of the model if it has them, else rounded.
    None if those of the model leave no room for the bias."""
    bias = None if node.b is None else node.b.value
    params, dtype = x.type.params, x.type.dtype
    stored = stored_weights(node)
    if stored is not None:
        return with_bias(stored, bias, params, dtype)
    return quantize_weights(node.w.value, bias, params, per_channel, dtype)


def _compute_in_float(node: Any, conversion: Conversion) -> Node:
    """The layer in float, its result rounded."""
    out = conversion.out(node)
    real: Node = node.with_operands(tuple(conversion.real(operand) for operand in node.operands))
    if out is None:
        return real
    name = conversion.fresh(f"{node.name}:real")
    return Quantize(name=node.name, x=replace(real, name=name), out=out)


def operand_names(layer: str, fresh: Callable[[str], str]) -> dict[str, str]:
    """Names for the Constants ``w`` and ``b`` of a layer."""
    return {"w": fresh(f"{layer}:w:q"), "b": fresh(f"{layer}:b:q")}


def rename_operands(operands: Operands, names: Mapping[str, str]) -> dict[str, Any]:
    """Operands that were made for this layer in another graph, under its names in this one."""
    return {
        key: constant
        if constant is None or constant.name == names[key]
        else replace(constant, name=names[key])
        for key, constant in operands.items()
    }


def integer_operands(
    names: Mapping[str, str], quantized: QuantizedWeights, x: QuantParams
) -> dict[str, Any]:
    """The operands ``w`` and ``b`` of a layer."""
    b = None
    if quantized.bias is not None:
        scales = quantized.scales.astype(np.float64) * x.scale
        b = _constant(names["b"], quantized.bias, DType.I32, _per_channel(scales, 0))
    by_channel = _per_channel(quantized.scales, quantized.weights.ndim - 1)
    return {"w": _constant(names["w"], quantized.weights, DType.I8, by_channel), "b": b}


def _constant(name: str, value: Array, dtype: DType, params: QuantParams) -> Constant:
    return Constant(name=name, value=value, element=ElementType(dtype, params))


def _per_channel(scales: Array, axis: int) -> QuantParams:
    # A product of two tiny scales may be below float32; it serves printing only.
    return QuantParams.symmetric(np.maximum(scales, np.finfo(np.float32).tiny), axis)


@quant_rule(MatMul)
def mat_mul(node: MatMul, conversion: Conversion) -> Node:
    x, y = conversion.int8(node.x), conversion.int8(node.y)
    return replace(node, x=x, y=y, out=conversion.out(node))


@quant_rule(Binary)
def binary(node: Any, conversion: Conversion) -> Node:
    """Float constants stay as they are: the integer form takes them exactly."""
    function = unary_function(node)
    if function is not None and not is_wide(function[0], conversion):
        return function_table(node, conversion)
    x, y = (
        operand if isinstance(operand, Constant) else conversion.int8(operand)
        for operand in (node.x, node.y)
    )
    result: Node = replace(node, x=x, y=y, out=conversion.element(node))
    return result


@quant_rule(PRelu, AveragePool, ReduceMean, Softmax)
def rounds_once(node: Any, conversion: Conversion) -> Node:
    """Operators with a quantized ``x`` and an ``out`` of their own."""
    result: Node = replace(node, x=conversion.int8(node.x), out=conversion.element(node))
    return result


@quant_rule(LayerNormalization)
def layer_normalization(node: LayerNormalization, conversion: Conversion) -> Node:
    """Gamma and beta stay float."""
    gamma, beta = (None if p is None else conversion.real(p) for p in (node.gamma, node.beta))
    x, out = conversion.int8(node.x), conversion.element(node)
    return replace(node, x=x, gamma=gamma, beta=beta, out=out)


@quant_rule(Gather)
def gather(node: Gather, conversion: Conversion) -> Node:
    """The indices are integers already."""
    x = conversion.int8(node.x, conversion.element(node))
    return replace(node, x=x, indices=conversion.real(node.indices))


@quant_rule(Unary)
def function_table(node: Any, conversion: Conversion) -> Node:
    """A table of all results of the exact function, or of a chain of functions."""
    if node.has(Trait.EXACT_STEPS) and is_wide(node.x, conversion):
        return in_float(node, conversion)
    source, function = compose(node, conversion.is_int8)
    x, out = conversion.int8(source), conversion.element(node)
    table = Constant(
        name=conversion.fresh(f"{node.name}:table"),
        value=tabulate(function, x.type.element, out),
        element=out,
    )
    return Table(name=node.name, x=x, table=table, out=out, function=node.op)


def in_float(node: Any, conversion: Conversion) -> Node:
    """The function between Dequantize and Quantize: for int16 faster than a table of 65,536."""
    x = Dequantize(name=conversion.fresh(f"{node.name}:x"), x=conversion.int8(node.x))
    real = replace(node, name=conversion.fresh(f"{node.name}:real"), x=x)
    return Quantize(name=node.name, x=real, out=conversion.element(node))


@quant_rule(Relu, Clip)
def clip(node: Any, conversion: Conversion) -> Node:
    """A table, or ``x`` itself if its integer type holds only values inside the bounds."""
    x, out = conversion.int8(node.x), conversion.element(node)
    low, high = (0.0, math.inf) if isinstance(node, Relu) else (node.low, node.high)
    if x.type.element == out and _inside(out, low, high):
        return x
    return function_table(node, conversion)


def is_wide(value: Node, conversion: Conversion) -> bool:
    """Whether the value is int16."""
    return not isinstance(value, Constant) and conversion.element(value).dtype is DType.I16


def _inside(element: ElementType, low: float, high: float) -> bool:
    params = quantization(element)
    steps = [limit - params.zero_point for limit in element.dtype.limits]
    tolerance = params.scale / 2
    return (
        low - tolerance <= steps[0] * params.scale and steps[1] * params.scale <= high + tolerance
    )


def tabulate(function: Callable[[Any], Any], x: ElementType, out: ElementType) -> Array:
    """``saturate(rint(function(real) / scale) + zero_point)`` for all codes of x.

    Computed in float64.  A function undefined at a code that calibration never produced (the
    logarithm of a negative number) gives the lowest integer there; see ``_finite_results`` for one
    that is infinite at a code.
    """
    lowest, highest = x.dtype.limits
    codes = np.arange(lowest, highest + 1, dtype=np.float64)
    params, source = quantization(out), quantization(x)
    low, high = out.dtype.limits
    reals = (codes - source.zero_point) * source.scale
    with np.errstate(all="ignore"):
        ends = [(end - params.zero_point) * params.scale for end in (low, high)]
        results = _finite_results(function, reals, source.scale, *ends)
        steps = np.rint(results / params.scale) + params.zero_point
    clipped = np.clip(np.nan_to_num(steps, nan=low), low, high)
    return np.asarray(clipped, out.dtype.numpy)


def _finite_results(
    function: Callable[[Any], Any], reals: Array, step: float, low: float, high: float
) -> Array:
    """``function(reals)``; at a pole its value for a number that rounds to the pole.

    Calibration refuses infinite results, so numbers that rounded to the pole of 1/x or log(x) lay
    beside it: at most half a step away, a quarter on average.  The side counts whose value is
    nearer to the range from ``low`` to ``high`` of finite results: 1/x of negative numbers must not
    become the largest positive one at 0.
    """
    results = np.asarray(function(reals), np.float64)
    sides = [np.asarray(function(reals + part * step), np.float64) for part in (0.25, -0.25)]
    beyond = [np.abs(side - np.clip(side, low, high)) for side in sides]
    is_below = np.isnan(beyond[0]) | (beyond[1] < beyond[0])
    return np.where(np.isinf(results), np.where(is_below, sides[1], sides[0]), results)
