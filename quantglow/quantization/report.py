"""The report of the quantizer: the precision of each operator, and why it stayed float."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.ops import Quantize


@dataclass(frozen=True)
class NodeReport:
    """One operator of the float graph; ``reason`` says why it stayed float.

    ``op``: the operators of the user's model whose work it does, ``Transpose for Conv`` for a move
    that the compiler put in.  ``precision``: ``float``, or the
    width of its integer results, ``int8`` or ``int16``.  ``moves``: it has the quantization
    parameters of its operand.
    """

    name: str
    op: str
    precision: str
    reason: str = ""
    moves: bool = False


@dataclass(frozen=True)
class QuantizationReport:
    """Every operator of the float graph, in order."""

    nodes: tuple[NodeReport, ...]

    def count(self, precision: str) -> int:
        """Number of operators of a precision: ``int8``, ``int16`` or ``float``."""
        return sum(node.precision == precision for node in self.nodes)

    def named(self, precision: str) -> list[str]:
        """The names of the operators of a precision."""
        return [node.name for node in self.nodes if node.precision == precision]

    @property
    def kept_float(self) -> tuple[NodeReport, ...]:
        return tuple(node for node in self.nodes if node.precision == "float")

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(node) for node in self.nodes]

    def __str__(self) -> str:
        kinds = Counter((n.op, "float" if n.precision == "float" else "int8") for n in self.nodes)
        ops = sorted({op for op, _ in kinds})
        integers = len(self.nodes) - self.count("float")
        lines = [f"{integers} of {len(self.nodes)} operators are int8"]
        if wide := self.named("int16"):
            lines.append(f"  {len(wide)} of them give int16: {', '.join(wide)}")
        lines += [
            f"  {op:20} int8 {kinds[op, 'int8']:4}  float {kinds[op, 'float']:4}" for op in ops
        ]
        lines += [f"  float: {n.op} {n.name!r}: {n.reason}" for n in self.kept_float]
        return "\n".join(lines)


def float_islands(graph: Graph) -> tuple[Node, ...]:
    """Operators computing in float that get int8 results and lead to int8 operators again."""
    after = _behind_integers(graph)
    before: set[Node] = set()
    for node in reversed(graph.nodes):
        if any(isinstance(user, Quantize) or user in before for user in graph.users[node]):
            before.add(node)
    return tuple(n for n in after if n in before and not _touches_integers(n))


def _behind_integers(graph: Graph) -> dict[Node, None]:
    """Nodes that compute on integers, and all that depend on them, in order."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if _touches_integers(node) or any(o in found for o in node.operands):
            found[node] = None
    return found


def _touches_integers(node: Node) -> bool:
    """Whether an operand is int8; a Quantize is part of the way back, not of an island."""
    return isinstance(node, Quantize) or any(o.type.quant for o in node.operands)
