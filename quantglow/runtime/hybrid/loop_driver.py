"""Driver of the loops of a graph: Loops that importing gave to onnxruntime, trip after trip.

Such a Loop has a number of trips that is computed, or values that grow; sizes of its results are
known when it has run.  Its nodes in the graph are ``External`` ones, one for each result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.external import External
from quantglow.ir.ops.loop import Trips
from quantglow.ort.fallback import FallbackNode
from quantglow.ort.session import NAME
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.loop import CompiledLoop, export_body
from quantglow.runtime.shapes.specializations import ServedShapes
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.transforms.partition import Segment

LoopBodies = Mapping[str, CompiledModel | str]
"""The int8 bodies of loops by the names of these, or why a body is float."""

Key = tuple[bytes, tuple[str, ...]]
"""A model of one node, and the names of its operands, with digests of those that are constants."""


def describe_bodies(bodies: LoopBodies) -> Iterator[str]:
    """Sentences about the bodies of loops, for a report."""
    for name, body in bodies.items():
        kind = "int8, calibrated on the trips that samples make"
        if isinstance(body, str):
            kind = f"float: {body}"
        yield f"the body of the loop {name} is compiled as a model of its own, in {kind}"


@dataclass(frozen=True, eq=False, repr=False)
class OpenedLoop(Concise):
    """A loop of a graph.

    identity  equal for equal loops
    operands  names of values of the graph, by the operands of the loop
    results   names of results, by the numbers of outputs of its nodes
    names     of its values and of those of its body
    compile   makes the loop for a number of threads.  Raises ``FallbackError``
    body      the int8 body, None for a float one
    """

    identity: bytes
    operands: Mapping[str, str]
    results: tuple[str, ...]
    names: Trips
    compile: Callable[[int], CompiledLoop]
    body: CompiledModel | None = None


@dataclass(frozen=True, eq=False, repr=False)
class LoopRun(Concise):
    """A loop of a segment, and the nodes that are its results."""

    opened: OpenedLoop
    loop: CompiledLoop
    nodes: tuple[External, ...]

    def run(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The values of the nodes, by name."""
        feeds = {name: values[operand] for name, operand in self.opened.operands.items()}
        names = [self.opened.results[node.output] for node in self.nodes]
        arrays = self.loop.run(feeds, names)
        return {node.name: array for node, array in zip(self.nodes, arrays, strict=True)}


@dataclass(frozen=True, eq=False, repr=False)
class LoopsExecutable(Concise):
    """A segment of loops, each behind those whose results it takes."""

    runs: tuple[LoopRun, ...]
    outputs: tuple[str, ...]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order."""
        values = dict(feeds)
        for loop in self.runs:
            values |= loop.run(values)
        return [values[name] for name in self.outputs]


@dataclass(frozen=True, eq=False, repr=False)
class LoopDriver(Concise):
    """Runs Loops whose bodies are models of their own; ``open`` opens the loop of a node, and
    gives None for those that it is not for.  A ``Driver`` of a ``Compiler``."""

    open: Callable[[External], OpenedLoop | None]
    name: str = "loop driver"
    _opened: dict[Key, OpenedLoop | None] = field(default_factory=dict)
    _loops: dict[tuple[bytes, int], CompiledLoop] = field(default_factory=dict)

    def supports(self, node: Node) -> bool:
        """Whether it is a loop that this runs."""
        return isinstance(node, External) and self._open(node) is not None

    def compile(self, segment: Graph, target: str, num_threads: int) -> LoopsExecutable:
        """The loops of a segment; their bodies are compiled when they run."""
        runs = (
            LoopRun(opened, self._compile(opened, num_threads), members)
            for opened, members in self._group_results(segment.nodes)
        )
        return LoopsExecutable(tuple(runs), tuple(node.name for _, node in segment.outputs))

    def entries(self, segment: Segment) -> tuple[FallbackNode, ...]:
        """Loops that onnxruntime runs at some shapes, and why."""
        return tuple(
            FallbackNode(members[0].name, members[0].op_type, NAME, why)
            for opened, members in self._group_results(segment.nodes)
            for (identity, _), loop in list(self._loops.items())
            for why in loop.reasons
            if identity == opened.identity
        )

    def in_onnx(self, node: External) -> External:
        """A result of a loop with the body that it runs.  Raises ``ModelError`` where this has no
        ONNX form for all of its sizes."""
        opened = self._open(node)
        if opened is None or opened.body is None:
            return node
        # Only here: a process that runs a model needs no exporter.
        from quantglow.export.onnx.external import LoopBody, with_body

        return with_body(node, LoopBody(opened.names, export_body(opened.body)))

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of all bodies, and the shapes that each serves."""
        return tuple(each for loop in list(self._loops.values()) for each in loop.bodies.served)

    def _open(self, node: External) -> OpenedLoop | None:
        key = _loop_key(node)
        if key not in self._opened:
            self._opened[key] = self.open(node)
        return self._opened[key]

    def _compile(self, opened: OpenedLoop, num_threads: int) -> CompiledLoop:
        """The loop for a number of threads, the same in all segments."""
        key = opened.identity, num_threads
        if key not in self._loops:
            self._loops.setdefault(key, opened.compile(num_threads))
        return self._loops[key]

    def _group_results(
        self, nodes: Iterable[Node]
    ) -> Iterator[tuple[OpenedLoop, tuple[External, ...]]]:
        """The loops of a segment with their results, in the order of the first ones."""
        groups: dict[Key, list[External]] = {}
        for node in nodes:
            if isinstance(node, External):
                groups.setdefault(_loop_key(node), []).append(node)
        for members in groups.values():
            opened = self._open(members[0])
            assert opened is not None, "a segment has nodes that its backend supports"
            yield opened, tuple(members)


def _loop_key(node: External) -> Key:
    return node.model, tuple(map(_operand_key, node.args))


def _operand_key(operand: Node) -> str:
    if not isinstance(operand, Constant):
        return operand.name
    digest = hashlib.blake2b(operand.value.tobytes(), digest_size=16)
    return f"{operand.type} {digest.hexdigest()}"
