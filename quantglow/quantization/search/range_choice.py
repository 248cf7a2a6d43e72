"""Choice of ranges by the errors they cause in the readers of each value.

A histogram alone does not show whether its tails matter.  So each of several ranges is tried on
calibration samples: the values are rounded as in int8, and the operators that read them are
computed with and without that.  Values that share parameters are judged together, by the sum of

    |op(rounded x) - op(x)|**2 / |op(x) - mean|**2

over all readers, where clipping counts more (``COHERENCE``).  For products a constant error of a
channel does not count, because bias correction removes it.
The best range of one half of the samples must be no worse than min-max on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.arithmetic import quantization
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import ElementType
from quantglow.profiling import Histogram, Profile, Range
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.options import Method, QuantizationConfig
from quantglow.quantization.plan.params import activation_element
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.plan.tensor_ranges import scarce_values, tensor_ranges
from quantglow.quantization.rounding.sampling import SampleEvaluator, SampleValues, Spread
from quantglow.quantization.search.reader_errors import ReaderErrors
from quantglow.quantization.search.trials import Ranges
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import check_interrupt

COHERENCE = 4.0
"""Weight of clipping errors.  They have one sign and lie together, at the strongest values: they
add up behind the reader, while rounding errors average out."""

Pair = tuple[str, str]
"""Names of a value and of a reader of it."""

METHODS: tuple[Method, ...] = ("auto", "percentile", "mse")
SHRINKS = ((0.9, 0.9), (0.8, 0.8), (0.7, 0.7), (0.6, 0.6), (0.5, 0.5), (0.5, 1.0), (0.2, 1.0))
"""Candidates: the ranges of the methods, and parts of the whole range, below and above 0."""

SAMPLES = 16
"""Maximum number of calibration samples that are used."""

GroupRanges = dict[Node, Range]


def choose_ranges(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    judged: dict[Pair, RangeVerdict] | None = None,
) -> Ranges:
    """The range of every value for which another one than min-max is better.

    ``judged``: of other candidates on the same samples; what is the same here is not judged again.
    Raises ``Interrupted`` after Ctrl-C.
    """
    plan = make_plan(graph, profile, config)
    candidates = candidate_ranges(plan, profile, config)
    few = Spread[Feeds](SAMPLES).extend(samples).items
    types = [group_types(ranges, config) for ranges in candidates]
    readers = ReaderErrors(SampleEvaluator(graph, few), profile.histograms)
    trial = RangeTrial(plan, types, readers, {} if judged is None else judged)
    Execution(graph, (), trial.values, only=filter(plan.is_int8, graph.nodes)).run()
    chosen = {root: candidates[best][root] for root, best in trial.best().items() if best}
    scarce = scarce_values(graph, profile)
    for node, root in plan.groups.items():
        if node.name in scarce:
            chosen.pop(root, None)
    return {n.name: chosen[root] for n, root in plan.groups.items() if root in chosen}


def candidate_ranges(plan: Plan, profile: Profile, config: QuantizationConfig) -> list[GroupRanges]:
    """The range of each group, for every candidate; min-max, as ``auto`` takes it, first."""
    candidates = []
    for method in METHODS:
        ranges = tensor_ranges(plan.graph, profile, replace(config, calibrate_method=method))
        candidates.append(_by_group(plan, ranges))
    for below, above in SHRINKS:
        candidates.append(
            {n: Range(r.low * below, r.high * above) for n, r in candidates[0].items()}
        )
    return candidates


def _by_group(plan: Plan, ranges: Mapping[Node, Range]) -> GroupRanges:
    by_root: GroupRanges = {}
    for node, root in plan.groups.items():
        by_root[root] = by_root[root].union(ranges[node]) if root in by_root else ranges[node]
    return {root: Range(min(r.low, 0.0), max(r.high, 0.0)) for root, r in by_root.items()}


def group_types(ranges: GroupRanges, config: QuantizationConfig) -> dict[Node, ElementType]:
    """The int8 type of each group with these ranges."""
    return {root: activation_element(r, config.symmetric) for root, r in ranges.items()}


@dataclass
class RangeTrial:
    """A float run that tries all candidates at each reader.  ``errors``: group -> [halves,
    candidates], sums over its readers.  ``judged``: see ``choose_ranges``.
    """

    plan: Plan
    types: list[dict[Node, ElementType]]
    readers: ReaderErrors
    judged: dict[Pair, RangeVerdict] = field(default_factory=dict)
    errors: dict[Node, Array] = field(default_factory=dict)

    def best(self) -> dict[Node, int]:
        """The candidate of each group: the best of one half that holds on the other."""
        choice = {}
        for root in self.errors:
            one, other = self.weighted_errors(root)
            order = np.argsort(one + other, kind="stable")
            # min-max always holds, also where a logarithm of 0 makes its error no number.
            holds = ~((one > one[0]) | (other > other[0]))
            choice[root] = next(int(k) for k in order if holds[k])
        return choice

    def weighted_errors(self, root: Node) -> Array:
        """[halves, candidates]: the errors of a group, with clipping weighted by ``COHERENCE``.
        Rounding errors grow with the square of the step; the rest is clipping.
        """
        errors = self.errors[root]
        steps = np.array([quantization(types[root]).scale for types in self.types])
        rounding = errors[:, :1] * np.square(steps / steps[0])
        return np.asarray(errors + (COHERENCE - 1) * np.maximum(errors - rounding, 0.0))

    def values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        """The values of the node; its int8 operands are judged by them."""
        check_interrupt()
        results = self.readers.evaluator.values(node, operands)
        if self.plan.is_int8(node):
            values = dict(zip(node.operands, operands, strict=True))
            for operand in values:
                if not isinstance(operand, Constant) and operand in self.plan.groups:
                    self._judge(operand, node, values, results)
        return results

    def _judge(
        self,
        operand: Node,
        reader: Node,
        values: Mapping[Node, SampleValues],
        results: SampleValues,
    ) -> None:
        root = self.plan.groups[operand]
        types = [candidate[root] for candidate in self.types]
        total = self.errors.setdefault(root, np.zeros((2, len(types))))
        pair = operand.name, reader.name
        shown = [node for node in (*values, reader) if not isinstance(node, Constant)]
        histograms = [self.readers.histograms.get(node.name) for node in shown]
        weights = reader.w if isinstance(reader, Contraction) else None
        array = weights.value if isinstance(weights, Constant) else None
        judged = self.judged.get(pair)
        if judged is None or not judged.holds(histograms, array, types):
            errors = self.readers.of(operand, reader, values, types, results)
            judged = self.judged[pair] = RangeVerdict(histograms, array, types, errors)
        total += judged.errors


@dataclass(frozen=True)
class RangeVerdict:
    """The errors of a reader with candidates of a value, and all that they follow from.

    ``histograms`` of the values that are read, and of the result; those of equal values are the
    same object.  ``weights``: of a product.
    """

    histograms: Sequence[Histogram | None]
    weights: Array | None
    types: Sequence[ElementType]
    errors: Array

    def holds(
        self,
        histograms: Sequence[Histogram | None],
        weights: Array | None,
        types: Sequence[ElementType],
    ) -> bool:
        """Whether the errors are the same with these."""
        pairs = zip(self.histograms, histograms, strict=True)
        if not all(a is b is not None for a, b in pairs) or self.types != types:
            return False
        if weights is None or self.weights is None:
            return weights is self.weights
        return weights is self.weights or np.array_equal(weights, self.weights)
