"""What other backends than quantglow's own compiled, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantglow.ops.external import External
from quantglow.report.tables import Table
from quantglow.runtime.build import Build, ProgramBackend


@dataclass(frozen=True)
class DelegatedNode:
    """One operator, who runs it, and why not we."""

    name: str
    op: str
    backend: str
    reason: str = ""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DelegatedNode:
        return DelegatedNode(**{key: str(value) for key, value in data.items()})


def delegated_nodes(build: Build) -> tuple[DelegatedNode, ...]:
    """The operators of all segments that quantglow's own code generators do not run."""
    foreign = [s for s in build.segments if not isinstance(s.backend, ProgramBackend)]
    return tuple(
        DelegatedNode(node.name, node.op_type, segment.backend.name, node.reason)
        if isinstance(node, External)
        else DelegatedNode(node.name, node.op, segment.backend.name, "its backend asked for it")
        for segment in foreign
        for node in segment.nodes
    )


def delegated_table(nodes: Sequence[DelegatedNode]) -> Table:
    rows = [(n.name, n.op, n.backend, n.reason) for n in nodes]
    counts = Counter(n.backend for n in nodes)
    title = "Delegated: " + ", ".join(f"{count} to {name}" for name, count in counts.items())
    return Table(title, ("layer", "op", "runs in", "why"), rows)
