"""``OnnxWriter``, the view of an export rule: operands as ONNX values, nodes added; sizes as nodes.

A size that depends on free dimensions is an expression of symbols (``ir.symbolic``), each of which
is a dimension of an input, or of a result that decides it (``transforms.size_sources``);
``SizeWriter`` adds the ONNX nodes that compute it.

The same value may stand in the ONNX model in several orders of its axes.  An order is a
permutation: axis i of the ONNX tensor is axis ``perm[i]`` of the node's value.  Transposes of the
graph cost nothing by themselves: they rename axes, and data moves where an ONNX operator needs
another order than the one there is.

Every operator on quantized values stands between DequantizeLinear and QuantizeLinear, also those
that only move elements (rounding changes nothing there): runtimes recognize this pattern, and one
integer operator in between would keep them from choosing another integer type.

ONNX values have numbers until the end, when ``final_names`` knows which names are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import onnx

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Dequantize, Transpose
from quantglow.ir.symbolic.expression import (
    Atom,
    Expression,
    Maximum,
    Monomial,
    Quotient,
    Symbol,
    number,
)
from quantglow.ir.symbolic.size import (
    Dim,
    Shape,
    decide,
    has_sizes,
    is_free,
    likely,
    surely_equal,
    to_expression,
)
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.support.arrays import Array
from quantglow.support.errors import ModelError

Perm = tuple[int, ...]

FIRST_OPSET = 18
"""Reductions take their axes as an operand from here on."""

REMEDY = "Remedy: export one shape, by input_shapes={name: shape}."

ON_DEMAND = (Constant, Dequantize, Transpose)
"""Written where something reads them, in the order of axes it needs; they have no rule."""

export_rules: dict[type[Node], Rule] = {}
"""How an operator, or all operators below a base class, are written: a rule emits ONNX nodes and
returns the node's stored value."""


class SizeWriter(Protocol):
    """The part of a ``OnnxWriter`` that sizes need."""

    dimensions: dict[str, tuple[str, int]]
    """The ONNX value and the axis of each symbol."""
    sizes: dict[Expression, str]
    """Sizes that are written, as values of shape [1]."""

    def emit(self, op_type: str, inputs: Iterable[str], hint: str, **attributes: Any) -> str:
        """Append a node; the value it computes."""

    def constant(self, array: Array, hint: str) -> str:
        """An initializer."""


def size(expression: Expression, w: SizeWriter) -> str:
    """An ONNX value of shape [1], written once."""
    if expression not in w.sizes:
        w.sizes[expression] = _sum(expression, w)
    return w.sizes[expression]


def _sum(expression: Expression, w: SizeWriter) -> str:
    if (constant := expression.constant) is not None:
        return w.constant(np.array([constant], np.int64), str(constant))
    parts = [_product(monomial, factor, w) for monomial, factor in expression.terms]
    return reduce(lambda a, b: w.emit("Add", [a, b], str(expression)), parts)


def _product(monomial: Monomial, factor: int, w: SizeWriter) -> str:
    parts = [_atom(atom, w) for atom in monomial]
    if factor != 1 or not parts:
        parts.append(size(number(factor), w))
    hint = "*".join(map(str, monomial))
    return reduce(lambda a, b: w.emit("Mul", [a, b], hint), parts)


def _atom(atom: Atom, w: SizeWriter) -> str:
    match atom:
        case Symbol(name=name):
            if name not in w.dimensions:
                raise ModelError(
                    f"the size {name} is that of a value which is not in the graph: nothing reads "
                    "the value itself. Remedy: make the value an output of the model."
                )
            value, axis = w.dimensions[name]
            return w.emit("Shape", [value], name, start=axis, end=axis + 1)
        case Maximum(first=first, second=second):
            return w.emit("Max", [size(first, w), size(second, w)], str(atom))
        case Quotient(numerator=numerator, divisor=divisor):
            return _quotient(numerator, divisor, w)


def _quotient(numerator: Expression, divisor: Expression, w: SizeWriter) -> str:
    """Rounded down: ONNX rounds towards zero, so a remainder that may be negative is taken off."""
    hint, x, y = f"({numerator})/({divisor})", size(numerator, w), size(divisor, w)
    if numerator.bounds[0] < 0:
        x = w.emit("Sub", [x, w.emit("Mod", [x, y], f"{hint}:rest")], f"{hint}:whole")
    return w.emit("Div", [x, y], hint)


class OnnxValue(NamedTuple):
    """An ONNX value and the order of its axes."""

    name: str
    perm: Perm


Rule = Callable[[Any, "OnnxWriter"], OnnxValue]
AnyRule = TypeVar("AnyRule", bound=Rule)
AnyDim = TypeVar("AnyDim", bound=Dim)


def export_rule(*kinds: type[Node]) -> Callable[[AnyRule], AnyRule]:
    """Register a function as the export rule of ``kinds``."""

    def register(rule: AnyRule) -> AnyRule:
        export_rules.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def find_rule(kind: type[Node]) -> Rule | None:
    """The rule of the operator or of its nearest base class that has one."""
    return next((export_rules[c] for c in kind.__mro__ if c in export_rules), None)


def identity(rank: int) -> Perm:
    return tuple(range(rank))


def channels_first(rank: int) -> Perm:
    """The order of ONNX images: the last axis moved to position 1."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else identity(rank)


def permute(values: Sequence[AnyDim], perm: Perm) -> tuple[AnyDim, ...]:
    return tuple(values[p] for p in perm)


def moves_only_ones(shape: Shape, perm: Perm) -> bool:
    """Whether transposing keeps the row-major order of the elements, at all sizes."""
    real = [p for p in perm if is_free(shape[p]) or decide(shape[p] != 1)]
    return real == sorted(real)


def of_rank(shape: Shape, rank: int) -> Shape:
    """The shape with leading ones."""
    return (1,) * (rank - len(shape)) + shape


def source(node: Node, perm: Perm) -> tuple[Node, Perm]:
    """The value below all Transposes, and the order of its axes that gives ``perm`` of node's."""
    while isinstance(node, Transpose):
        perm, node = permute(node.perm, perm), node.x
    return node, perm


@dataclass
class OnnxWriter:
    """Collects the ONNX nodes of one graph.

    ``parts``: outputs of nodes that came from ONNX as they are; ``domains``: versions of other
    operator sets; ``loops``: the results of loops; ``dimensions``: the value and axis that each
    symbol is the size of; ``sizes``: values of sizes that depend on symbols.
    """

    opset: int = FIRST_OPSET
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, Array] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    held: dict[Node, dict[Perm, str]] = field(default_factory=dict)
    reals: dict[tuple[Node, Perm], str] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    parts: dict[tuple[bytes, tuple[Node, ...]], list[str]] = field(default_factory=dict)
    domains: dict[str, int] = field(default_factory=dict)
    loops: dict[tuple[Graph, tuple[Node, ...]], list[str]] = field(default_factory=dict)
    dimensions: dict[str, tuple[str, int]] = field(default_factory=dict)
    sizes: dict[Expression, str] = field(default_factory=dict)

    def inside(self) -> OnnxWriter:
        """The writer of a body: its nodes are apart, its constants and names are not."""
        return replace(
            self,
            nodes=[],
            held={node: dict(orders) for node, orders in self.held.items()},
            reals=dict(self.reals),
            sizes=dict(self.sizes),
            parts=dict(self.parts),
            loops=dict(self.loops),
        )

    def require(self, opset: int) -> None:
        """Write for this opset, or a newer one."""
        self.opset = max(self.opset, opset)

    def number(self, hint: str) -> str:
        """A new ONNX value, to be called ``hint`` if that name is free in the end."""
        value = f"#{len(self.hints)}"
        self.hints[value] = hint
        return value

    def emit(self, op_type: str, inputs: Iterable[str], hint: str, **attributes: Any) -> str:
        """Append a node; the value it computes.

        Raises ``ModelError`` for attributes that depend on free dimensions.
        """
        for name, value in attributes.items():
            if has_sizes(value):
                raise ModelError(
                    f"{hint!r}: {name} of {op_type} would depend on a free dimension, and ONNX has "
                    f"no form of that. {REMEDY}"
                )
        result = self.number(hint)
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [result], **attributes))
        return result

    def constant(self, array: Array, hint: str) -> str:
        """An initializer."""
        value = self.number(hint)
        self.initializers[value] = array
        return value

    def integers(self, values: Iterable[Dim], hint: str) -> str:
        """A list of int64, as shapes and axes are given; free sizes are computed."""
        listed = list(values)
        if not any(map(is_free, listed)):
            return self.constant(np.array(listed, np.int64), hint)
        parts = [size(to_expression(value), self) for value in listed]
        return parts[0] if len(parts) == 1 else self.emit("Concat", parts, hint, axis=0)

    def write(self, node: Node) -> None:
        """Write one node by its rule; its operands are there."""
        if isinstance(node, ON_DEMAND):
            return
        rule = find_rule(type(node))
        assert rule is not None, "the graph was found exportable"
        name, perm = rule(node, self)
        self.held[node] = {perm: name}
        if name not in self.bound:
            self.bound.add(name)
            self.hints[name] = node.name

    def order(self, node: Node) -> Perm:
        """The order of axes in which the value can be had for nothing."""
        if isinstance(node, Transpose):
            return tuple(node.perm.index(p) for p in self.order(node.x))
        if isinstance(node, Dequantize):
            return self.order(node.x)
        if isinstance(node, Constant):
            return identity(node.type.rank)
        return next(iter(self.held[node]))

    def common_order(self, operands: Iterable[Node], rank: int) -> Perm:
        """The order of the largest operand, of those the one that is not as in the graph."""
        orders = [
            (likely(o.type.size), self.order(o) != identity(rank), self.order(o))
            for o in operands
            if o.type.rank == rank and not isinstance(o, Constant)
        ]
        return max(orders)[2] if orders else identity(rank)

    def stored(self, node: Node, perm: Perm | None = None) -> str:
        """The value as its type says, integers if quantized, in the given order of axes."""
        node, perm = source(node, perm or identity(node.type.rank))
        if isinstance(node, Dequantize):
            return self.real(node.x, perm)
        orders = self.held.setdefault(node, {})
        if perm not in orders:
            orders[perm] = self._move(node, perm)
        return orders[perm]

    def _move(self, node: Node, perm: Perm) -> str:
        if isinstance(node, Constant):
            return self.constant(node.value.transpose(perm), node.name)
        have = self.order(node)
        step = tuple(have.index(p) for p in perm)
        shape = permute(node.type.shape, have)
        moved = self.transposed(self.real(node, have), shape, step, node.name)
        return self.rounded(node, moved, perm).name

    def transposed(self, name: str, shape: Shape, perm: Perm, hint: str) -> str:
        """``Transpose`` of a value of that shape; Reshape where no data moves."""
        if moves_only_ones(shape, perm):
            return self.reshaped(name, permute(shape, perm), hint)
        return self.emit("Transpose", [name], f"{hint}:t", perm=perm)

    def reshaped(self, name: str, shape: Iterable[Dim], hint: str) -> str:
        """``Reshape``; a free size may be 0, which would be that of the operand by default."""
        sizes = list(shape)
        zero = {"allowzero": 1} if any(map(is_free, sizes)) else {}
        operands = [name, self.integers(sizes, f"{hint}:shape")]
        return self.emit("Reshape", operands, f"{hint}:r", **zero)

    def real(self, node: Node, perm: Perm | None = None) -> str:
        """The value as float32, in the given order of axes."""
        node, perm = source(node, perm or identity(node.type.rank))
        if node.type.quant is None:
            return self.stored(node, perm)
        if (node, perm) not in self.reals:
            stored = self.stored(node, perm)
            self.reals[node, perm] = self.dequantize(stored, node.type, perm, node.name)
        return self.reals[node, perm]

    def spread(self, node: Node, rank: int, perm: Perm) -> str:
        """``real`` of an operand that broadcasts to ``rank`` axes in the given order."""
        if node.type.rank == rank:
            return self.real(node, perm)
        shape = of_rank(node.type.shape, rank)
        if isinstance(node, Constant) and node.type.quant is None:
            return self.constant(node.value.reshape(shape).transpose(perm), node.name)
        if perm == identity(rank) or surely_equal(shape, (1,) * rank):
            return self.real(node)
        whole = self.real(node)
        if not moves_only_ones(shape, perm):
            whole = self.reshaped(whole, shape, node.name)
        return self.transposed(whole, shape, perm, node.name)

    def dequantize(self, name: str, kind: TensorType, perm: Perm, hint: str) -> str:
        """DequantizeLinear of integers."""
        parameters = self.parameters(kind.element, hint)
        axis = _axis_attribute(kind.params, perm)
        return self.emit("DequantizeLinear", [name, *parameters], f"{hint}:dq", **axis)

    def quantized(self, name: str, element: ElementType, perm: Perm, hint: str) -> str:
        """QuantizeLinear of a float32 value; ``element`` may be float, then the value itself."""
        if element.quant is None:
            return name
        parameters = self.parameters(element, hint)
        axis = _axis_attribute(element.quant, perm)
        return self.emit("QuantizeLinear", [name, *parameters], f"{hint}:q", **axis)

    def opaque(self, name: str, hint: str) -> str:
        """The same float32 value, out of sight of runtimes that would fuse what surrounds it."""
        lowest = self.constant(np.array(-np.inf, np.float32), f"{hint}:lowest")
        return self.emit("Max", [name, lowest], f"{hint}:opaque")

    def parameters(self, element: ElementType, hint: str) -> tuple[str, str]:
        """Scale and zero point as initializers.  int16 needs opset 21."""
        if element.dtype is DType.I16:
            self.require(21)
        assert element.quant is not None
        scales = np.array(element.quant.scales, np.float32)
        zero_points = np.array(element.quant.zero_points, element.dtype.numpy)
        if element.quant.axis is None:
            scales, zero_points = scales.reshape(()), zero_points.reshape(())
        return (
            self.constant(scales, f"{hint}:scale"),
            self.constant(zero_points, f"{hint}:zero_point"),
        )

    def rounded(self, node: Node, name: str, perm: Perm) -> OnnxValue:
        """A float32 result as the node stores it."""
        return OnnxValue(self.quantized(name, node.type.element, perm, node.name), perm)


def _axis_attribute(params: QuantParams, perm: Perm) -> dict[str, int]:
    """The axis attribute of QuantizeLinear and DequantizeLinear."""
    return {} if params.axis is None else {"axis": perm.index(params.axis)}


def output_value(writer: OnnxWriter, name: str, node: Node, used: set[str]) -> str:
    """The value of a graph output, one that no other output, input or initializer is."""
    value = writer.stored(node)
    if isinstance(node, Input) and node.name == name:
        return value
    if value in used or value in writer.initializers:
        value = writer.emit("Identity", [value], name)
    used.add(value)
    return value


def final_names(writer: OnnxWriter, graph: Graph, outputs: Mapping[str, str]) -> dict[str, str]:
    """The name of each ONNX value: those of inputs and ``outputs``, then hints, numbered if
    taken."""
    names = {writer.stored(node): node.name for node in graph.inputs}
    names.update(outputs)
    used = set(names.values())
    for value, hint in writer.hints.items():
        if value not in names:
            names[value] = fresh_name(hint, used)
            used.add(names[value])
    return names


def fresh_name(name: str, used: set[str]) -> str:
    candidate, number = name, 2
    while candidate in used:
        candidate, number = f"{name}:{number}", number + 1
    return candidate
