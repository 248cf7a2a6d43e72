"""Execution of the segments of a partitioned graph, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.concise import Concise
from quantglow.errors import BackendError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.lazy import cached_property
from quantglow.runtime.partition import Segment
from quantglow.runtime.protocol import Executable
from quantglow.types import Array


@dataclass(frozen=True)
class CompiledSegment:
    """A compiled segment; ``last_read`` are the values that no later segment reads."""

    segment: Segment
    executable: Executable
    last_read: tuple[str, ...]

    def run(self, values: dict[str, Array]) -> None:
        """Add the results to ``values``, by name; arrays are not copied between segments."""
        values.update(self.results(values) if self.is_taken(values) else self.unused)
        for name in self.last_read:
            del values[name]

    def results(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The results of the executable.  Raises ``BackendError`` for arrays of other types."""
        graph = self.segment.graph
        results = self.executable.run({node.name: values[node.name] for node in graph.inputs})
        for (name, node), array in zip(graph.outputs, results, strict=True):
            if array.shape != node.type.shape or array.dtype != node.type.dtype.numpy:
                raise BackendError(
                    f"{self.segment.backend.name} gave {array.dtype} of shape {array.shape} for "
                    f"{name!r}, which is {node.type}. Remedy: correct its compile or run."
                )
        return {name: array for (name, _), array in zip(graph.outputs, results, strict=True)}

    def is_taken(self, values: Mapping[str, Array]) -> bool:
        """Whether all branches around the segment are taken."""
        return all(
            bool(value_of(branch.condition, values).reshape(())) == branch.taken
            for branch in self.segment.branches
        )

    @cached_property
    def unused(self) -> dict[str, Array]:
        """Placeholders for the results of a branch that is not taken: nothing depends on them."""
        return {
            name: np.zeros(node.type.shape, node.type.dtype.numpy)
            for name, node in self.segment.graph.outputs
        }


@dataclass(frozen=True, repr=False)
class SegmentedExecutable(Concise):
    """All segments of a graph.  ``run`` is thread-safe."""

    graph: Graph
    segments: tuple[CompiledSegment, ...]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs in the graph's order; feeds are known to match its inputs."""
        values = dict(feeds)
        for segment in self.segments:
            segment.run(values)
        return [result(node, values) for _, node in self.graph.outputs]


def value_of(node: Node, values: Mapping[str, Array]) -> Array:
    return node.value if isinstance(node, Constant) else values[node.name]


def result(node: Node, values: Mapping[str, Array]) -> Array:
    """The array of an output; inputs and constants stay the caller's and the model's arrays."""
    if isinstance(node, Constant):
        return node.value.copy()
    return values[node.name].copy() if isinstance(node, Input) else values[node.name]


def compiled_segments(
    graph: Graph, segments: Sequence[Segment], target: str, num_threads: int
) -> tuple[CompiledSegment, ...]:
    """The segments, each compiled by its backend."""
    kept = {node.name for _, node in graph.outputs}
    last: dict[str, int] = {}
    for position, segment in enumerate(segments):
        names = [node.name for node in segment.graph.inputs]
        names += [
            b.condition.name for b in segment.branches if not isinstance(b.condition, Constant)
        ]
        last.update(dict.fromkeys([*names, *(name for name, _ in segment.graph.outputs)], position))
    return tuple(
        CompiledSegment(
            segment,
            segment.backend.compile(segment.graph, target, num_threads),
            tuple(name for name, at in last.items() if at == position and name not in kept),
        )
        for position, segment in enumerate(segments)
    )
