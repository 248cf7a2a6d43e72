"""Reading graphs from text (``graph`` has the format).  The text is not trusted."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from quantglow.ir.graph.attributes import (
    NO_SIZES,
    ArrayMark,
    BodyMark,
    Dense,
    encodable,
    is_integer,
    is_uniform,
    parse_call,
    register,
)
from quantglow.ir.graph.graph import Graph, graph_text
from quantglow.ir.graph.node import OPS, Constant, Input, Node, check_stated, operand_fields
from quantglow.ir.graph.signature import may_declare
from quantglow.ir.symbolic.size import Dim
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import FileFormatError, QuantglowError
from quantglow.support.processes.threads import run_undisturbed

STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
FORMER_NAMES = {"Map": "Elementwise", "Rows": "RowMap"}
"""Names of operators in texts of older versions -> names now."""

SAVE_AGAIN = "the file was altered or written by another version; save it again"
WITH_ARRAYS = (
    "print it with the values of its largest array, of N elements: a graph by `quantglow opt MODEL "
    "--max-elements N`, a program by program.text(arrays_written_out(N))"
)

_HEADER = re.compile(rf"graph ({STRING})")
_DECLARED = re.compile(rf"declared ({STRING}): ([\w(),]+)")
_NODE = re.compile(rf"({STRING}): ([^=]*) = (.*)")
_BODY = re.compile(rf"body ({STRING})")
_INSIDE = "  "
_OUTPUT = re.compile(rf"output ({STRING}) = ({STRING})")


def print_graph(graph: Graph) -> str:
    """One line for each node; ``parse_graph`` reads it back, given ``text_constants(graph)``."""
    return str(graph)


def text_constants(graph: Graph) -> dict[str, Array]:
    """The arrays that the text refers to, by the names of their nodes."""
    return {node.name: node.value for node in graph.every_node() if isinstance(node, Constant)}


@dataclass(frozen=True)
class ScalesMark:
    """Text form of an element type with a scale for each channel and no zero points, without its
    scales.
    """

    dtype: str
    scales: ArrayMark
    axis: int


register(ScalesMark, lambda mark: (mark.dtype, mark.scales, mark.axis), ScalesMark)


def arrays_written_out(most: int) -> Callable[[object], object]:
    """Function from an attribute value to its form in a text.

    Arrays with at most ``most`` elements, or equal ones, become their values; the rest stays.
    """

    def shown(value: object) -> object:
        if not isinstance(value, np.ndarray) or not (value.size <= most or is_uniform(value)):
            return value
        return Dense.of(value)

    return shown


def print_with_arrays(graph: Graph, most: int) -> str:
    """The text of ``print_graph``, with the values of arrays of at most ``most`` elements,
    or of equal ones.
    """
    shown = arrays_written_out(most)
    return graph_text(graph.source_hash, graph.declared, graph.nodes, graph.outputs, shown)


def print_without_scales(graph: Graph) -> str:
    """The text of ``print_graph`` without scales; ``parse_graph`` reads it back, given
    ``text_scales(graph)``.
    """
    return graph_text(
        graph.source_hash, graph.declared, graph.nodes, graph.outputs, _without_scales
    )


def text_scales(graph: Graph) -> dict[ArrayMark, Array]:
    """The scales that are missing in the text, by the names of their nodes."""
    elements = (node.element for node in graph.every_node() if isinstance(node, Constant))
    arrays = (scales for element in elements if (scales := _channel_scales(element)) is not None)
    return {ArrayMark.of(array): array for array in arrays}


def _channel_scales(value: object) -> Array | None:
    """The scales of an element type that has one for each channel, and no zero points."""
    quant = value.quant if isinstance(value, ElementType) else None
    if quant is None or quant.axis is None or any(quant.zero_points):
        return None
    return np.array(quant.scales, np.float32)


def _without_scales(value: object) -> object:
    scales = _channel_scales(value)
    if scales is None or not isinstance(value, ElementType) or value.quant is None:
        return value
    assert value.quant.axis is not None
    return ScalesMark(str(value.dtype), ArrayMark.of(scales), value.quant.axis)


def parse_graph(
    text: str,
    constants: Mapping[str, Array],
    scales: Mapping[ArrayMark, Array] | None = None,
    sizes: Mapping[str, Dim] = NO_SIZES,
) -> Graph:
    """The graph that ``print_graph`` wrote, or ``print_without_scales`` if these are given.

    ``sizes``: free dimensions by the names that the text has for them.

    Raises ``FileFormatError``, naming the line.
    """
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    header = _HEADER.fullmatch(lines[0][1]) if lines else None
    if header is None:
        raise FileFormatError(
            "line 1: expected \"graph 'source hash'\"; this is not the text of a graph"
        )
    reader = GraphReader(constants, scales or {}, sizes)
    for number, line in lines[1:]:
        try:
            reader.read(line)
        except (ValueError, RecursionError) as error:
            raise failure(number, line, error) from None
    return reader.graph(unquote(header[1]))


class LeftOutArrayError(ValueError):
    """A text that stands alone has a mark in the place of an array."""


def failure(number: int, line: str, error: Exception) -> FileFormatError:
    """The error of a line that cannot be read."""
    remedy = WITH_ARRAYS if isinstance(error, LeftOutArrayError) else SAVE_AGAIN
    return FileFormatError(f"line {number}: {error}\n  {line[:200]}\nRemedy: {remedy}.")


def unquote(literal: str) -> str:
    """The string that a Python literal stands for."""
    try:
        return encodable(str(run_undisturbed(lambda: ast.literal_eval(literal))))
    except SyntaxError as error:
        raise ValueError(f"bad string {literal[:60]}: {error}") from None


@dataclass
class GraphReader:
    """Nodes by name, while lines are read.  Its methods raise ``ValueError``."""

    constants: Mapping[str, Array]
    scales: Mapping[ArrayMark, Array]
    sizes: Mapping[str, Dim] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[tuple[str, Node]] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, GraphReader] = field(default_factory=dict)

    def graph(self, source_hash: str = "") -> Graph:
        return Graph(tuple(self.inputs), tuple(self.outputs), source_hash, self.declared)

    @cached_property
    def body(self) -> Graph:
        """The graph of a body, whose lines are all read."""
        if not self.outputs:
            raise ValueError("a body has no outputs")
        return self.graph()

    def read(self, line: str) -> None:
        if line.startswith(_INSIDE):
            if not self.bodies:
                raise ValueError("a line inside of no body")
            next(reversed(self.bodies.values())).read(line.removeprefix(_INSIDE))
        elif match := _BODY.fullmatch(line):
            self.bodies[unquote(match[1])] = type(self)(self.constants, self.scales, self.sizes)
        elif match := _OUTPUT.fullmatch(line):
            self.outputs.append((unquote(match[1]), self.node(unquote(match[2]))))
        elif match := _DECLARED.fullmatch(line):
            self.declare(unquote(match[1]), match[2])
        elif match := _NODE.fullmatch(line):
            self.define(unquote(match[1]), match[2], *parse_call(match[3], self.sizes))
        else:
            raise ValueError("expected \"'name': type = Op(…)\" or \"output 'name' = 'node'\"")

    def declare(self, name: str, kind: str) -> None:
        is_type = may_declare(DType.F32, kind) or may_declare(DType.OPAQUE, kind)
        if not is_type or name in self.declared:
            raise ValueError(f"{name!r} cannot be declared {kind}, or is declared twice")
        self.declared[name] = kind

    def node(self, name: object) -> Node:
        if not isinstance(name, str) or name not in self.nodes:
            raise ValueError(f"node {name!r} is not defined above")
        return self.nodes[name]

    def define(self, name: str, kind: str, op: str, values: dict[str, Any]) -> None:
        if name in self.nodes:
            raise ValueError(f"node {name!r} is defined twice")
        op = FORMER_NAMES.get(op, op)
        if op not in OPS:
            raise ValueError(f"there is no operator {op!r}")
        for operand in operand_fields(OPS[op]):
            if operand in values:
                values[operand] = self.operands(values[operand])
        if isinstance(mark := values.get("value"), ArrayMark | Dense):
            values["value"] = marked_array(name, mark, self.constants)
        if isinstance(values.get("element"), ScalesMark):
            values["element"] = self.element(values["element"])
        values = {key: self.read_body(value) for key, value in values.items()}
        node = build(OPS[op], name, values)
        self.add(node, kind)

    def add(self, node: Node, kind: str) -> None:
        """A node whose line has this text of its type."""
        if str(node.type) != kind:
            raise ValueError(f"{node.name!r} is of type {node.type}, not {kind}")
        self.nodes[node.name] = node
        if isinstance(node, Input):
            self.inputs.append(node)

    def read_body(self, value: Any) -> Any:
        """The graph of a mark; other values as they are."""
        if not isinstance(value, BodyMark):
            return value
        if value.label not in self.bodies:
            raise ValueError(f"body {value.label!r} is not defined above")
        return self.bodies[value.label].body

    def element(self, mark: ScalesMark) -> ElementType:
        """The element type of a text form without scales."""
        if mark.scales not in self.scales:
            raise ValueError(f"the scales {mark.scales} are missing")
        scales = self.scales[mark.scales].reshape(-1)
        return ElementType(DType(mark.dtype), QuantParams.symmetric(scales, mark.axis))

    def operands(self, names: object) -> Node | tuple[Node, ...]:
        if isinstance(names, tuple):
            return tuple(self.node(name) for name in names)
        return self.node(names)


def marked_array(name: str, mark: ArrayMark | Dense, constants: Mapping[str, Array]) -> Array:
    """The array of a constant, written out or stored apart.  Raises ``ValueError``."""
    return mark.array() if isinstance(mark, Dense) else read_array(name, mark, constants)


def read_array(name: str, mark: ArrayMark, constants: Mapping[str, Array]) -> Array:
    """The array of a constant.  Raises ``ValueError`` if it is missing or another one."""
    if not constants:
        raise LeftOutArrayError(
            f"the array of constant {name!r} was not printed, only its mark: a text that stands "
            "alone has its values, as Dense(…)"
        )
    if name not in constants:
        raise ValueError(f"the array of constant {name!r} is missing")
    try:
        actual = ArrayMark.of(constants[name])
    except TypeError as error:
        raise ValueError(f"constant {name!r}: {error}") from None
    if actual != mark:
        raise ValueError(f"the array of constant {name!r} is {actual}, expected {mark}")
    return constants[name]


def build(cls: type[Node], name: str, values: Mapping[str, Any]) -> Node:
    """``cls(name=name, **values)``.  Raises ``ValueError`` on fields of wrong name or type."""
    hints = _hints(cls)  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in hints or key in ("name", "type"):
            raise ValueError(f"{cls.__name__} has no attribute {key!r}")
        if not _conforms(value, hints[key]):
            raise ValueError(f"attribute {key!r} of {cls.__name__} cannot be {value!r:.60}")
    try:
        node = cls(name=name, **values)
        check_stated(node)
        return node
    except (QuantglowError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{cls.__name__} {name!r}: {error}") from None


@cache
def _hints(cls: type[Node]) -> dict[str, Any]:
    """The types of an operator's fields."""
    return get_type_hints(cls)


def _conforms(value: object, hint: Any) -> bool:
    """Whether a value has the annotated type: classes, unions, tuples and arrays."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_conforms(value, h) for h in inside)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inside[-1] is ...:
            return all(_conforms(v, inside[0]) for v in value)
        return len(value) == len(inside) and all(map(_conforms, value, inside))
    if hint == Array:  # since NumPy 2.5 an alias, which isinstance does not take
        return isinstance(value, np.ndarray)
    if hint is float:
        return type(value) in (int, float)
    if hint is int:
        return is_integer(value)
    return isinstance(value, origin or hint)
