"""onnxruntime as a backend: for External nodes, and for all nodes that ONNX can express.

``FallbackNode`` is the entry in a report for an operator that another backend runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.external import External
from quantglow.ort.session import NAME, Session, open_session
from quantglow.support.arguments import fields_named
from quantglow.support.arrays import Array
from quantglow.transforms.partition import Backend, Executable, Segment


@dataclass(frozen=True)
class FallbackNode:
    """One operator, the backend that runs it, and the reason."""

    name: str
    op: str
    backend: str
    reason: str = ""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> FallbackNode:
        """The entry from the result of ``dataclasses.asdict``.  Raises ``TypeError`` for other
        entries.
        """
        return FallbackNode(**{key: str(value) for key, value in data.items()})


def whole_model(reasons: Sequence[str]) -> tuple[FallbackNode, ...]:
    """Entry of a model that onnxruntime runs as a whole, in place of its operators."""
    return tuple(FallbackNode("(all)", "the whole model", NAME, reason) for reason in reasons)


@runtime_checkable
class Driver(Backend, Protocol):
    """A backend whose executables take arrays of any sizes, and show an observer what they run."""

    def entries(self, segment: Segment) -> tuple[FallbackNode, ...]:
        """Entries of the operators of a segment that onnxruntime runs."""


def segment_entries(segment: Segment) -> tuple[FallbackNode, ...]:
    """Entries of the operators of a segment that are not compiled."""
    if isinstance(segment.backend, Driver):
        return segment.backend.entries(segment)
    return _entries(segment)


def _entries(segment: Segment) -> tuple[FallbackNode, ...]:
    """Entries of all operators of a segment, with the reasons that importing gave."""
    backend = segment.backend.name
    return tuple(
        FallbackNode(node.name, node.op_type, backend, node.reason)
        if isinstance(node, External)
        else FallbackNode(node.name, node.op, backend, "its backend asked for it")
        for node in segment.nodes
    )


@fields_named
@dataclass(frozen=True)
class OnnxRuntimeBackend:
    """Compiles External nodes; with ``everything`` also all float operators of ONNX.

    It takes no nodes that only lowering makes and no quantized values, because its integers could
    differ.
    """

    everything: bool = False
    name: str = NAME

    def supports(self, node: Node) -> bool:
        """Whether ONNX has the node, and onnxruntime gives it the same meaning."""
        if isinstance(node, External):
            return True
        if not self.everything:
            return False
        # Imported here because a process without nodes of the fallback needs no onnx.
        from quantglow.export.onnx.model import is_exportable

        values = (node, *node.operands)
        return is_exportable(node) and all(v.type.quant is None for v in values)

    def compile(self, segment: Graph, target: str, num_threads: int) -> Executable:
        """A session of the segment.  Raises ``FallbackError``."""
        return OnnxRuntimeExecutable(open_session(_segment_model(segment), num_threads))

    def entries(self, segment: Segment) -> tuple[FallbackNode, ...]:
        """Entries of all operators of a segment."""
        return _entries(segment)


def _segment_model(segment: Graph) -> bytes:
    """A segment as an ONNX model.  A segment of the fallback alone keeps their operator set."""
    # Imported here because a process without nodes of the fallback needs no onnx.
    from quantglow.export.onnx.model import export_onnx
    from quantglow.importer.onnx.resolvers.external import join_model

    nodes = segment.compute_nodes()
    externals = [node for node in nodes if isinstance(node, External)]
    if len(externals) == len(nodes):
        return join_model(externals, [node for _, node in segment.outputs])
    return bytes(export_onnx(segment).SerializeToString())


@dataclass(frozen=True)
class OnnxRuntimeExecutable:
    """A segment loaded by onnxruntime."""

    session: Session

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        return self.session.run_values(feeds)
