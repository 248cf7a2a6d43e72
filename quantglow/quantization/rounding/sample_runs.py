"""Runs of the float and the int8 graph over samples, which stop at every layer to be improved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quantglow.interpreter.executor import Execution
from quantglow.interpreter.stacks import Stacks
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops.arithmetic import is_integer
from quantglow.ir.ops.contraction import Contraction
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.rounding.layer_data import LayerData, real_values
from quantglow.quantization.rounding.moments import Moments
from quantglow.quantization.rounding.sampling import SampleEvaluator, SampleValues
from quantglow.quantization.rules import Operands, rename_operands
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import later

BARE: dict[str, Any] = {"activation": None, "low": -math.inf, "high": math.inf}
"""Fields of a contraction that gives its sums as they are."""

Ends = Sequence[Sequence[Array]]
"""[samples][ends]: real values of nodes."""


@dataclass(frozen=True)
class RoundingTask:
    """A float graph, the int8 graph made of it, and what is to be improved.

    ``rounded``: operands of layers that were rounded before; ``ends``: names of nodes of both
    graphs whose values are wanted.
    """

    graph: Graph
    int8: Graph
    techniques: frozenset[str]
    rounded: Mapping[str, Operands] = field(default_factory=dict)
    ends: Sequence[str] = ()

    @property
    def layers(self) -> list[str]:
        """Names of the layers to improve, in the order of the int8 graph."""
        if not self.techniques:
            return []
        return [
            node.name
            for node in self.int8.nodes
            if isinstance(node, Contraction)
            and is_integer(node.x.type)
            and node.name not in self.rounded
        ]


class RoundingRuns(Protocol):
    """Runs over the samples, here or elsewhere."""

    def statistics(self, name: str) -> tuple[Moments, ...]:
        """The moments of the next layer to improve, of each half or of all samples."""

    def prefetch(self) -> None:
        """Compute what the next layer needs, beside what the caller does."""

    def improve(self, name: str, operands: Operands) -> None:
        """Go on with these operands of the layer."""

    def ends(self) -> tuple[Ends, Ends]:
        """The ends in the int8 graph and in the float one, when all layers are improved."""

    def end(self) -> None:
        """Let go of what the runs hold elsewhere."""


@dataclass
class RoundedLayers:
    """The int8 graph of a task with improved layers.

    ``nodes``: the nodes of the new graph, by those of the old one.
    """

    task: RoundingTask
    operands: dict[str, Operands] = field(default_factory=dict)
    nodes: dict[Node, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.new_names = Names.of(self.task.int8)

    def names(self, node: Any) -> dict[str, str]:
        """Names for the Constants of an improved layer: the old ones, where there are some."""
        b = self.new_names.fresh(f"{node.name}:b:q") if node.b is None else node.b.name
        return {"w": node.w.name, "b": b}

    def replace_operands(self, node: Node) -> Node:
        """The node in the new graph, with its operands from now or from before."""
        if isinstance(node, Constant):
            return node
        moved = node.with_operands(tuple(self.nodes[operand] for operand in node.operands))
        if not isinstance(moved, Contraction):
            return moved
        changed: Any = self.operands.get(node.name)
        if changed is None and node.name in self.task.rounded:
            changed = rename_operands(self.task.rounded[node.name], self.names(moved))
        return dataclasses.replace(moved, **changed) if changed else moved

    def make(self, nodes: Iterable[Node]) -> None:
        """Move nodes whose operands have moved."""
        for node in nodes:
            if node not in self.nodes:
                self.nodes[node] = self.replace_operands(node)

    def graph(self) -> Graph:
        """The new graph; layers that were not improved keep their plain rounding."""
        self.make(self.task.int8.nodes)
        return self.task.int8.with_outputs(self.nodes[n] for _, n in self.task.int8.outputs)


@dataclass
class SampleRuns:
    """``RoundingRuns`` over samples of this process, the float one up to the layer that the int8
    one has reached.

    ``int8_samples``: the samples, with int8 graphs for those of other shapes.  ``total``: number of
    all samples, and ``first``: of those before these, where these are a part of them.  ``sums``:
    float results before activation and bounds, of layers that the int8 run has not reached yet.
    """

    task: RoundingTask
    samples: Sequence[Feeds]
    int8_samples: Sequence[Feeds]
    total: int | None = None
    first: int = 0
    sums: dict[str, Stacks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        task = self.task
        self.improved, self.names = RoundedLayers(task), set(task.layers)
        self.floats = SampleEvaluator(task.graph, self.samples)
        self.integers = SampleEvaluator(task.int8, self.int8_samples)
        self.float_run = self._run(task.graph, self._float_values)
        self.int8_run = self._run(task.int8, self._int8_values)
        self.float_step: Callable[[], None] = self._advance_to_layer

    def statistics(self, name: str) -> tuple[Moments, ...]:
        """``RoundingRuns``"""
        run = self.int8_run
        while (node := run.graph.nodes[run.position]).name != name:
            next(iter(run))
        operands = [run.live[operand] for operand in node.operands]
        total = len(self.samples) if self.total is None else self.total
        layer = self.improved.replace_operands(node)
        sums, techniques = self._float_sums(name), self.task.techniques
        data = LayerData(layer, operands, self.integers, sums, techniques, total, self.first)
        return data.moments(self.task.graph.by_name(name))

    def prefetch(self) -> None:
        """``RoundingRuns``"""
        self.float_step = later(self._advance_to_layer, None)

    def improve(self, name: str, operands: Operands) -> None:
        """``RoundingRuns``"""
        self.improved.operands[name] = operands

    def ends(self) -> tuple[Ends, Ends]:
        """``RoundingRuns``"""
        task, count = self.task, range(len(self.samples))
        if not task.ends:
            return (), ()
        self.float_step()
        pairs = list(zip(self.int8_run.ends, self.int8_run.run(), strict=True))
        exact = self.float_run.run()
        int8_ends = [[real_values(node, stacks.of(s)) for node, stacks in pairs] for s in count]
        return int8_ends, [[values.of(sample) for values in exact] for sample in count]

    def end(self) -> None:
        """``RoundingRuns``; nothing is held elsewhere."""

    def _run(
        self, graph: Graph, evaluate: Callable[[Node, Sequence[SampleValues]], SampleValues]
    ) -> Execution[SampleValues]:
        return Execution(graph, [graph.by_name(name) for name in self.task.ends], evaluate)

    def _int8_values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        self.improved.make([node])
        return self.integers.values(self.improved.nodes[node], operands)

    def _float_sums(self, name: str) -> Stacks:
        """The float results of a layer before activation and bounds; the float run advances to
        it.
        """
        self.float_step()
        self.float_step = lambda: None
        while name not in self.sums:
            next(iter(self.float_run))
        return self.sums.pop(name)

    def _advance_to_layer(self, _: None = None) -> None:
        """Run the float graph to its next layer, beside the rounding of one on another core."""
        before = len(self.sums)
        for _step in self.float_run:
            if len(self.sums) > before:
                return

    def _float_values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        if node.name not in self.names or not isinstance(node, Contraction):
            return self.floats.values(node, operands)
        bare: Any = dataclasses.replace(node, **BARE)
        self.sums[node.name] = self.floats.compute(bare, operands)
        return SampleValues(self.sums[node.name], None if node.is_bare else node)
