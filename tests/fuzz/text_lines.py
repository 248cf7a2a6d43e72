"""Texts of graphs, line by line: arguments as syntax trees, and types that are repaired."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from quantglow.ir.graph.attributes import ArrayMark
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.graph.text import STRING, GraphReader
from quantglow.support.arrays import Array
from quantglow.support.errors import QuantglowError

NODE = re.compile(rf"( *)({STRING}): ([^=]*) = (\w+)\((.*)\)")


@dataclass(frozen=True)
class Line:
    """A node of a text: the name as it is written, and the source of each argument."""

    indent: str
    name: str
    kind: str
    op: str
    arguments: Mapping[str, str]

    @staticmethod
    def of(text: str) -> Line | None:
        """The line of a node; None for other lines."""
        match = NODE.fullmatch(text)
        if match is None:
            return None
        indent, name, kind, op, inside = match.groups()
        tree = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(tree, ast.Call)
        actual = {str(k.arg): ast.unparse(k.value) for k in tree.keywords}
        return Line(indent, name, kind, op, actual)

    def with_argument(self, key: str, source: str | None) -> Line:
        """The line with another source of an argument, without it if that is None."""
        actual = {k: v for k, v in self.arguments.items() if k != key}
        return replace(self, arguments=actual if source is None else {**actual, key: source})

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={source}" for key, source in self.arguments.items())
        return f"{self.indent}{self.name}: {self.kind} = {self.op}({inside})"


@dataclass
class RepairingReader(GraphReader):
    """Reads lines whatever types they state, and keeps the types that inference gives."""

    last_kind: str = ""

    def add(self, node: Node, kind: str) -> None:
        self.last_kind = str(node.type)
        super().add(node, self.last_kind)


@dataclass
class Repaired:
    """A text whose lines are all accepted; ``refused`` is the number of those that are left out."""

    lines: list[str] = field(default_factory=list)
    refused: int = 0
    graph: Graph | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def repaired(
    lines: list[str],
    constants: Mapping[str, Array],
    scales: Mapping[ArrayMark, Array],
    sizes: Mapping[str, int],
) -> Repaired:
    """The lines that are accepted, with the types that inference gives.  The last node is an output
    if no other is left.

    Raises whatever reading raises but for the errors that it documents.
    """
    reader, actual, last = RepairingReader(constants, scales, sizes), Repaired(lines[:1]), ""
    for text in lines[1:]:
        try:
            reader.read(text)
        except (ValueError, RecursionError):
            actual.refused += 1
            continue
        match = NODE.fullmatch(text)
        if match is not None:
            kind = innermost(reader, match[1]).last_kind
            text = f"{text[: match.start(3)]}{kind}{text[match.end(3) :]}"
            last = last if match[1] else match[2]
        actual.lines.append(text)
    if last and not reader.outputs:
        actual.lines.append(f"output 'last' = {last}")
        reader.read(actual.lines[-1])
    if reader.outputs:
        graph = reader.graph()
        try:
            graph.verify()
        except QuantglowError:
            return actual
        actual.graph = graph
    return actual


def innermost(reader: GraphReader, indent: str) -> RepairingReader:
    """The reader of a line that is indented so."""
    for _ in range(len(indent) // 2):
        reader = next(reversed(reader.bodies.values()))
    assert isinstance(reader, RepairingReader)
    return reader


def nodes_of(lines: list[str]) -> Iterator[tuple[int, Line]]:
    """The lines of nodes, by their numbers."""
    for number, text in enumerate(lines):
        line = Line.of(text)
        if line is not None:
            yield number, line
