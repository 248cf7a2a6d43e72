"""What the quantizer did with each node, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from quantglow.graph.graph import Graph
from quantglow.graph.node import Input, Node
from quantglow.ops import Dequantize


@dataclass(frozen=True)
class NodeReport:
    """One operator of the float graph; ``reason`` says why it stayed float."""

    name: str
    op: str
    precision: str
    reason: str = ""


@dataclass(frozen=True)
class QuantizationReport:
    """Every operator of the float graph, in order."""

    nodes: tuple[NodeReport, ...]

    def count(self, precision: str) -> int:
        """Operators of a precision, ``int8`` or ``float``."""
        return sum(node.precision == precision for node in self.nodes)

    @property
    def kept_float(self) -> tuple[NodeReport, ...]:
        return tuple(node for node in self.nodes if node.precision == "float")

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(node) for node in self.nodes]

    def __str__(self) -> str:
        kinds = Counter((n.op, n.precision) for n in self.nodes)
        ops = sorted({op for op, _ in kinds})
        lines = [f"{self.count('int8')} of {len(self.nodes)} operators are int8"]
        lines += [
            f"  {op:20} int8 {kinds[op, 'int8']:4}  float {kinds[op, 'float']:4}" for op in ops
        ]
        lines += [f"  float: {n.op} {n.name!r}: {n.reason}" for n in self.kept_float]
        return "\n".join(lines)


def float_islands(graph: Graph) -> tuple[Node, ...]:
    """Float operators between int8 ones: fed by a Dequantize and feeding a Quantize, at length."""
    after = _float_nodes_after_dequantize(graph)
    before: set[Node] = set()
    for node in reversed(graph.nodes):
        if any(user.op == "Quantize" or user in before for user in graph.users[node]):
            before.add(node)
    return tuple(n for n in graph.nodes if n in after and n in before)


def _float_nodes_after_dequantize(graph: Graph) -> set[Node]:
    found: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node, Input | Dequantize) or not node.type.dtype.is_float:
            continue
        if any(isinstance(o, Dequantize) or o in found for o in node.operands):
            found.add(node)
    return found
