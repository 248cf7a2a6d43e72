"""The view of an importer: one ONNX node as a ``Call``, and the table of importers.

An importer is a function of a ``Call`` that returns the node (or nodes) computing its outputs,
or an array when the result is known.  It raises ``Unsupported`` with the reason otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import onnx

from quantglow.importer.onnx.budget import Meter
from quantglow.importer.onnx.nodes.values import (
    Blocked,
    Coded,
    Foreign,
    IntegerValue,
    ItemsValue,
    KnownSizes,
    KnownValue,
    Layout,
    ObjectValue,
    Value,
    as_element,
    as_float32,
    element_in_words,
    graph_dtype,
    is_float_type,
    node_origin,
    value_onnx_type,
    value_shape,
)
from quantglow.ir.graph.family import MOST_DECIDING, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.origins import Origin, Origins
from quantglow.ir.graph.signature import Shapes
from quantglow.ir.ops.expression import arg, call, lconst
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.quantization import Dequantize, Table
from quantglow.ir.ops.shape import Concat, Reshape, Transpose
from quantglow.ir.symbolic.expression import SMALLEST, USUAL, symbol
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import Dim, Shape, decide, integer, size
from quantglow.ir.symbolic.text import identifiers
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property


class Unsupported(Exception):
    """Reason why a node cannot be imported; becomes one line of an ``UnsupportedOpError``."""


class OfLateShapes(Unsupported):
    """The reason why a loop is not a part of a graph.  Its body may be a model of its own."""


class AlreadyReported(Exception):
    """The node reads the result of a refused node: nothing new to say."""


def _operator_key(proto: onnx.NodeProto) -> str:
    """The name of the first value that a node computes, which no other has."""
    return next(filter(None, proto.output), "")


@dataclass
class ImportScope:
    """Everything named so far.  ``reserved`` holds the value names of the model's main graph.

    ``fallback``: nodes without an importer become External nodes, of the types that inference or
    the model (``declared``) gives them.  ``late_results``: what becomes of types without a shape,
    and of loops whose bodies may be models of their own.  ``placeholders`` are nodes that stand for
    values nobody made, ``missed`` those whose values an importer had to know.
    ``has_free_inputs``: the model leaves dimensions free, and is compiled for all of them.
    ``unrolls``: recurrences are steps, as in files that were saved before there were loops.
    ``conditions``: values, and what each must be for the branch that is imported to be taken.
    ``loops``: how many loops are around the nodes that are imported.  ``current``: the node of the
    model that is imported; ``in_definition``: by other nodes, which the model does not have.
    ``origins``: the node for which a name was claimed.  ``guards``: those of free sizes.
    ``late``: shapes of results that their nodes decide, for which the graph is made.  ``objects``:
    sequences and optionals that something reads as they are.
    """

    opsets: dict[str, int]
    meter: Meter
    reserved: frozenset[str]
    used: frozenset[str]
    fallback: bool = False
    late_results: LateResults = LateResults.REFUSED
    has_free_inputs: bool = False
    unrolls: bool = False
    declared: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    values: MutableMapping[str, Value] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    placeholders: set[Value] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    missed: list[Node] = field(default_factory=list)
    conditions: list[tuple[Node, bool]] = field(default_factory=list)
    loops: int = 0
    claimed: set[str] = field(default_factory=set)
    shared: dict[tuple[object, str], Node] = field(default_factory=dict)
    current: Origin | None = None
    in_definition: bool = False
    origins: dict[str, Origins] = field(default_factory=dict)
    guards: Guards = field(default_factory=lambda: Guards({}))
    late: Shapes = field(default_factory=dict)
    objects: dict[ItemsValue, ObjectValue] = field(default_factory=dict)

    @property
    def is_late(self) -> bool:
        """Whether the sizes of results that their nodes decide are symbols."""
        return self.late_results is LateResults.SYMBOLIC

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.opsets[""]

    def claim(self, name: str, derived: bool = False) -> str:
        """``name``, numbered if it is taken; derived names yield to those of the model."""
        candidate, number = name, 1
        while candidate in self.claimed or (derived and candidate in self.reserved):
            number += 1
            candidate, derived = f"{name}:{number}", True
        self.claimed.add(candidate)
        if self.current is not None:
            self.origins[candidate] = Origins((self.current,))
        return candidate

    def late_size(self, name: str, axis: int) -> Dim:
        """A size of a result that its node decides: a symbol, but for 0 and 1."""
        label = f"{name}_{axis}"
        identifier = identifiers([label])[label]
        sizes = self.late.get(name, ())[axis : axis + 1]
        if not sizes:
            return size(symbol(self.guards.add_guess(identifier, USUAL)), self.guards)
        if sizes[0] < SMALLEST:
            return sizes[0]
        return size(symbol(self.guards.add_symbol(identifier, sizes[0])), self.guards)

    @contextmanager
    def importing(self, proto: onnx.NodeProto) -> Iterator[None]:
        """Note ``proto`` as the origin of what is made in the block; of a definition's nodes that
        is the node that it defines."""
        if self.in_definition:
            yield
            return
        outer, self.current = self.current, node_origin(proto, self.current)
        try:
            with self.guards.ask(_operator_key(proto)):
                yield
        finally:
            self.current = outer

    def is_atomic(self, proto: onnx.NodeProto) -> bool:
        """Whether a node of the model is to be imported as it is, not as the nodes of its
        definition: these hold for some sizes only."""
        is_whole = self.fallback and not self.in_definition
        return is_whole and _operator_key(proto) in self.guards.atomic

    def with_origins(self, graph: Graph) -> Graph:
        """The graph and its bodies with the nodes of the model that their nodes come from."""
        return replace(graph.map_bodies(self.with_origins), origins=self.origins)

    @property
    def deciding(self) -> tuple[str, ...]:
        """The small inputs that decide what was missed; one that data also decides needs data."""
        groups = [_inputs_behind(node) for node in self.missed if self.is_decided(node)]
        return tuple(sorted({entry.name for inputs in groups for entry in inputs}))

    def is_decided(self, node: Node) -> bool:
        """Whether small inputs alone decide a value."""
        return all(map(self.may_decide, _inputs_behind(node)))

    def may_decide(self, node: Input) -> bool:
        """Whether a node is an input of the model, of few integers or conditions."""
        is_few = decide(node.type.size <= MOST_DECIDING) and not node.type.dtype.is_float
        return is_few and any(node is entry for entry in self.inputs)

    def share(self, source: object, tag: str, make: Callable[[], Node]) -> Node:
        """One node for each ``(source, tag)``, made on first use."""
        key = (source, tag)
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    def tensor(self, name: str) -> Node:
        """The graph node of a value of any element type; constants become ``Constant`` nodes."""
        value = self.values[name]
        if isinstance(value, Node):
            return value
        if isinstance(value, Foreign) and value.reported:
            raise AlreadyReported
        dtype = graph_dtype(value.onnx_type)
        if dtype is None:
            kind = element_in_words(value)
            raise Unsupported(f"{name!r} is {kind}, an element type that is not computed")
        if isinstance(value, ObjectValue):
            raise Unsupported(f"the shape of {name!r} is known when the model runs")
        if isinstance(value, IntegerValue):
            return self.share(value, "integers", lambda: _integer_values(name, value, dtype, self))
        if isinstance(value, KnownSizes):
            return self.share(value, "", lambda: _size_node(value, self))
        constant = cast(KnownValue, value)
        if 0 in constant.shape:
            raise Unsupported(f"{name!r} has no elements")
        return self.share(constant, "", lambda: self._constant(constant))

    def _constant(self, value: KnownValue) -> Node:
        if isinstance(value, Blocked):
            value = value.coded()
        if isinstance(value, Coded):
            return integer_node(value, value.name, self)
        return Constant(name=self.claim(value.name), value=as_element(value.array))

    def node(self, name: str) -> Node:
        """``tensor``, which must be float."""
        value = self.values[name]
        if not is_float_type(value_onnx_type(value)) and not getattr(value, "reported", False):
            kind = element_in_words(value)
            raise Unsupported(f"{name!r} is {kind}; this operator computes float tensors only")
        return self.tensor(name)


def integer_node(coded: Coded, name: str, scope: ImportScope) -> Node:
    """Known integers behind a Dequantize; as rows of equal parameters where their type cannot say
    these."""
    element = coded.element()
    if element is None:
        return _integer_rows(coded, name, scope)
    codes = np.ascontiguousarray(coded.codes).reshape(coded.codes.shape)
    stored = Constant(name=scope.claim(f"{name}:codes", True), value=codes, element=element)
    return Dequantize(name=scope.claim(name, name not in scope.values), x=stored)


def _integer_rows(coded: Coded, name: str, scope: ImportScope) -> Node:
    """Transpose(Reshape(Dequantize(rows))) of integers in blocks."""
    axis, length = coded.runs()
    last = coded.laid_out(lambda array: np.moveaxis(array, axis, -1))
    shape = last.codes.shape
    rows = integer_node(
        last.laid_out(lambda array: array.reshape(-1, length)), f"{name}:rows", scope
    )
    is_moved = axis < len(shape) - 1
    result = scope.claim(name, name not in scope.values)
    whole = scope.claim(f"{name}:moved", True) if is_moved else result
    reshaped: Node = Reshape(name=whole, x=rows, shape=shape)
    if not is_moved:
        return reshaped
    perm = (*range(axis), len(shape) - 1, *range(axis, len(shape) - 1))
    return Transpose(name=result, x=reshaped, perm=perm)


def _size_node(value: KnownSizes, scope: ImportScope) -> Node:
    """Known integers that depend on free dimensions as a value of the graph."""
    flat = value.array.reshape(-1).tolist()
    parts = [_one_size(scope.claim(f"{value.name}:size", derived=True), size) for size in flat]
    shape, name = tuple(value.array.shape), scope.claim(value.name)
    if len(parts) == 1:
        return Reshape(name=name, x=parts[0], shape=shape)
    joined = Concat(
        name=scope.claim(f"{value.name}:sizes", derived=True), parts=tuple(parts), axis=0
    )
    return Reshape(name=name, x=joined, shape=shape)


def _one_size(name: str, size: int) -> Node:
    zero = Constant(name=f"{name}:zero", value=np.zeros(1, np.int64))
    value = call("iadd", arg(0), lconst(size))
    return Elementwise(name=name, args=(zero,), expression=value, out=ElementType(DType.I64))


def _integer_values(name: str, value: IntegerValue, dtype: DType, scope: ImportScope) -> Node:
    """The integers themselves, as ONNX has them."""
    label = scope.claim(f"{name}:integers", derived=True)
    return recode(label, value.node, ElementType(dtype), value.offset, scope)


def recode(name: str, x: Node, out: ElementType, offset: int, scope: ImportScope) -> Node:
    """The codes of x plus ``offset`` as another element type: a Table."""
    lowest, highest = x.type.dtype.limits
    codes = np.arange(lowest, highest + 1) + offset
    entries = Constant(
        name=scope.claim(f"{name}:codes", derived=True),
        value=codes.astype(out.dtype.numpy),
        element=out if out.quant else None,
    )
    return Table(name=name, x=x, table=entries, out=out, function="codes")


def _inputs_behind(node: Node) -> set[Input]:
    """The inputs that a value is computed from."""
    visited, waiting = {node}, [node]
    while waiting:
        new = set(waiting.pop().operands) - visited
        visited |= new
        waiting.extend(new)
    return {operand for operand in visited if isinstance(operand, Input)}


@dataclass(frozen=True)
class Call:
    """One ONNX node with its operands."""

    proto: onnx.NodeProto
    scope: ImportScope

    @property
    def opset(self) -> int:
        return self.scope.opset

    @cached_property
    def attributes(self) -> dict[str, Any]:
        read = onnx.helper.get_attribute_value
        return {a.name: read(a) for a in self.proto.attribute}

    def integer(self, name: str, default: int) -> int:
        return int(self.attributes.get(name, default))

    def number(self, name: str, default: float) -> float:
        """A float attribute, exactly as its float32 value."""
        return float(np.float32(self.attributes.get(name, default)))

    def text(self, name: str, default: str) -> str:
        value = self.attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(v) for v in self.attributes.get(name, default))

    def has(self, position: int) -> bool:
        """Whether the optional operand is there."""
        return position < len(self.proto.input) and bool(self.proto.input[position])

    def value_name(self, position: int) -> str:
        return str(self.proto.input[position])

    def value(self, position: int) -> Value:
        return self.scope.values[self.value_name(position)]

    def node(self, position: int) -> Node:
        """An operand as a float node of the graph."""
        return self.scope.node(self.value_name(position))

    def nodes(self) -> list[Node]:
        """All operands of a variadic op, floats."""
        return [self.scope.node(name) for name in self.proto.input]

    def tensor(self, position: int) -> Node:
        """An operand of any element type as a node of the graph."""
        return self.scope.tensor(self.value_name(position))

    def tensors(self) -> list[Node]:
        """All operands of a variadic op, of any element type."""
        return [self.scope.tensor(name) for name in self.proto.input]

    def is_float(self, position: int) -> bool:
        """Whether an operand is computed as float32."""
        return is_float_type(value_onnx_type(self.value(position)))

    def shape(self, position: int) -> Shape:
        """The shape of an operand of any type."""
        value = self.value(position)
        shape = value_shape(value)
        if shape is None and isinstance(value, ObjectValue | ItemsValue):
            name = self.value_name(position)
            raise Unsupported(f"{name!r} is {value.kind}, which has no shape before the model runs")
        if shape is None:
            raise AlreadyReported
        return shape

    def is_known(self, position: int) -> bool:
        return isinstance(self.value(position), KnownValue)

    def array(self, position: int, role: str) -> Array:
        """An operand that must be known at import, in its own element type."""
        value = self.value(position)
        if isinstance(value, KnownValue):
            return value.array
        if isinstance(value, Foreign) and value.reported:
            raise AlreadyReported
        if isinstance(value, Node):
            self.scope.missed.append(value)
        raise Unsupported(f"{role} {self.value_name(position)!r} is computed at run time")

    def parameter(self, name: str, position: int) -> Shape | None:
        """Integers given as attribute (old opsets) or operand (new ones); None if absent."""
        if self.has(position):
            return tuple(map(integer, self.array(position, name).reshape(-1).tolist()))
        return self.integers(name, ()) if name in self.attributes else None

    def weights(self, position: int, tag: str, layout: Layout) -> Node:
        """A known operand as a float32 constant of its own, in the layout an op wants.

        Integers known with their parameters stay integers, behind a Dequantize.
        """
        value, name = self.value(position), f"{self.value_name(position)}:{tag}"
        if isinstance(value, Blocked):
            value = value.coded()
        if isinstance(value, Coded):
            return integer_node(value.laid_out(layout), name, self.scope)
        array = as_float32(layout(self.array(position, "weight")))
        return Constant(name=self.scope.claim(name, derived=True), value=array)

    def reserve(self, shape: Sequence[Dim], itemsize: int) -> None:
        """Refuse an array of this shape, before it is made, if the import has no room for it."""
        self.scope.meter.reserve(str(self.proto.output[0]), shape, itemsize)

    def constant(self, tag: str, array: Array) -> Constant:
        """A float32 constant that only this node needs."""
        return Constant(name=self.derive(tag), value=as_float32(array))

    @cached_property
    def result(self) -> str:
        """The name of the node that computes the first output."""
        return self.result_name(0)

    def result_name(self, position: int) -> str:
        return self.scope.claim(str(self.proto.output[position]))

    def derive(self, tag: str) -> str:
        """A unique name for a helper node: ``output:tag``."""
        return self.scope.claim(f"{self.proto.output[0]}:{tag}", derived=True)


Result = Node | Array | KnownValue | IntegerValue | ObjectValue | ItemsValue
Imported = Result | Sequence[Result]
Importer = Callable[[Call], Imported]
AnyImporter = TypeVar("AnyImporter", bound=Importer)

IMPORTERS: dict[str, Importer] = {}
"""Importers by ``qualify`` op type."""


def qualify(proto: onnx.NodeProto) -> str:
    """The op type; outside the standard domain ``domain.op_type``."""
    return f"{proto.domain}.{proto.op_type}" if proto.domain else str(proto.op_type)


def importer(*op_types: str) -> Callable[[AnyImporter], AnyImporter]:
    """Register a function as the importer of ``op_types``.  Raises ``TypeError`` if one of them
    has an importer."""

    def register(function: AnyImporter) -> AnyImporter:
        for op_type in op_types:
            if op_type in IMPORTERS:
                raise TypeError(f"{op_type} has an importer already. Remedy: change that one.")
            IMPORTERS[op_type] = function
        return function

    return register
