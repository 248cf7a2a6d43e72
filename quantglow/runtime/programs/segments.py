"""Execution of the segments of a partitioned graph, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.external import in_rank_of
from quantglow.ir.symbolic.size import FixedShape, Shape, is_free
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import WrongResultError
from quantglow.transforms.partition import Executable, Segment


@dataclass(frozen=True)
class CompiledSegment:
    """A compiled segment; ``last_read`` are the values that no later segment reads, ``kinds`` the
    types of its results."""

    segment: Segment
    executable: Executable
    last_read: tuple[str, ...]
    kinds: tuple[TensorType, ...]

    def run(self, values: dict[str, Array]) -> None:
        """Add the results to ``values``, by name; arrays are not copied between segments."""
        values.update(self.results(values) if self.is_taken(values) else self.unused)
        for name in self.last_read:
            del values[name]

    def results(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The results of the executable.  Raises ``WrongResultError`` for other types."""
        reads = [node.name for node in self.segment.graph.inputs]
        results = self.executable.run({name: values[name] for name in reads})
        parts = zip(self.names, self.kinds, self._tests, results, strict=True)
        return {part[0]: self._check(*part) for part in parts}

    def _check(
        self, name: str, kind: TensorType, fits: Callable[[FixedShape], bool], array: Array
    ) -> Array:
        """The array of a result.  Raises ``WrongResultError``."""
        if kind.dtype is DType.OPAQUE:  # a consumer checks what it is
            return array
        array = in_rank_of(kind, array)
        if fits(array.shape) and array.dtype == kind.dtype.numpy:
            return array
        raise WrongResultError(
            f"{self.segment.backend.name} gave {array.dtype} of shape {array.shape} for "
            f"{name!r}, which is {kind} as the model states or ONNX infers. Remedy: "
            "correct the shapes that the model states, or an own backend's compile or run."
        )

    @cached_property
    def _tests(self) -> tuple[Callable[[FixedShape], bool], ...]:
        """Functions that say whether shapes are those of the results."""
        return tuple(_shape_test(kind.shape) for kind in self.kinds)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the results."""
        return tuple(name for name, _ in self.segment.graph.outputs)

    def is_taken(self, values: Mapping[str, Array]) -> bool:
        """Whether all branches around the segment are taken."""
        return all(
            bool(_segment_value(branch.condition, values).reshape(())) == branch.outcome
            for branch in self.segment.branches
        )

    @cached_property
    def unused(self) -> dict[str, Array]:
        """Placeholders for the results of a branch that is not taken: nothing depends on them."""
        kinds = zip(self.names, self.kinds, strict=True)
        return {name: np.zeros(kind.fixed_shape, kind.dtype.numpy) for name, kind in kinds}


def _shape_test(expected: Shape) -> Callable[[FixedShape], bool]:
    """A function that says whether a shape is the expected one; free sizes may be any."""
    if not any(map(is_free, expected)):
        return expected.__eq__

    def fits(shape: FixedShape) -> bool:
        return len(shape) == len(expected) and all(
            is_free(n) or n == size for n, size in zip(expected, shape, strict=True)
        )

    return fits


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


def _segment_value(node: Node, values: Mapping[str, Array]) -> Array:
    return node.value if isinstance(node, Constant) else values[node.name]


def result(node: Node, values: Mapping[str, Array]) -> Array:
    """The array of an output; inputs and constants stay the caller's and the model's arrays."""
    if isinstance(node, Constant):
        return node.value.copy()
    return values[node.name].copy() if isinstance(node, Input) else values[node.name]


def compile_segments(
    graph: Graph, segments: Sequence[Segment], target: str, num_threads: int
) -> tuple[CompiledSegment, ...]:
    """The segments, each compiled by its backend."""
    return tuple(
        CompiledSegment(
            segment,
            segment.backend.compile(segment.graph, target, num_threads),
            names,
            tuple(node.type for _, node in segment.graph.outputs),
        )
        for segment, names in zip(segments, last_reads(graph, segments), strict=True)
    )


def last_reads(graph: Graph, segments: Sequence[Segment]) -> list[tuple[str, ...]]:
    """For each segment, the values that none of the later ones reads."""
    results = {node.name for _, node in graph.outputs}
    last: dict[str, int] = {}
    for position, segment in enumerate(segments):
        names = [node.name for node in segment.reads]
        last.update(dict.fromkeys([*names, *(name for name, _ in segment.graph.outputs)], position))
    return [
        tuple(name for name, at in last.items() if at == position and name not in results)
        for position in range(len(segments))
    ]
