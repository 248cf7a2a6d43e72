"""``calibrate_method="auto"``: choose ranges by the errors they cause in the readers of a tensor.

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
from dataclasses import replace

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.interpreter.executor import Execution
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile, Range
from quantglow.profiling.data import Feeds
from quantglow.quantization.plan.params import activation_element
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.plan.tensor_ranges import scarce_values, tensor_ranges
from quantglow.quantization.recovery.sample_values import SampleEvaluator
from quantglow.quantization.recovery.sampling import Spread
from quantglow.quantization.search.candidate import Ranges
from quantglow.quantization.search.range_trial import Judged, Pair, RangeTrial
from quantglow.quantization.search.reader_errors import ReaderErrors
from quantglow.types import ElementType

METHODS = ("auto", "percentile", "mse")
SHRINKS = ((0.9, 0.9), (0.8, 0.8), (0.7, 0.7), (0.6, 0.6), (0.5, 0.5), (0.5, 1.0), (0.2, 1.0))
"""Candidates: the ranges of the methods, and parts of the whole range, below and above 0."""

SAMPLES = 16
"""Maximum number of calibration samples that are used."""


def choose_ranges(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    judged: dict[Pair, Judged] | None = None,
) -> Ranges:
    """The range of every value for which another one than min-max is better.

    ``judged``: of other candidates on the same samples; what is the same here is not judged again.
    Raises ``Interrupted`` after Ctrl-C.
    """
    plan = make_plan(graph, profile, config)
    candidates = candidates_of(plan, profile, config)
    few = Spread[Feeds](SAMPLES).extend(samples).kept
    types = [types_of(ranges, config) for ranges in candidates]
    readers = ReaderErrors(SampleEvaluator(graph, few), profile.histograms)
    trial = RangeTrial(plan, types, readers, {} if judged is None else judged)
    Execution(graph, (), trial.values, only=filter(plan.is_int8, graph.nodes)).run()
    chosen = {root: candidates[best][root] for root, best in trial.best().items() if best}
    scarce = scarce_values(graph, profile)
    for node, root in plan.groups.items():
        if node.name in scarce:
            chosen.pop(root, None)
    return {n.name: chosen[root] for n, root in plan.groups.items() if root in chosen}


GroupRanges = dict[Node, Range]


def candidates_of(plan: Plan, profile: Profile, config: QuantizationConfig) -> list[GroupRanges]:
    """The range of each group, for every candidate; min-max, as ``auto`` takes it, first."""
    found = []
    for method in METHODS:
        ranges = tensor_ranges(plan.graph, profile, replace(config, calibrate_method=method))
        found.append(_by_group(plan, ranges))
    for below, above in SHRINKS:
        found.append({n: Range(r.low * below, r.high * above) for n, r in found[0].items()})
    return found


def _by_group(plan: Plan, ranges: Mapping[Node, Range]) -> GroupRanges:
    found: GroupRanges = {}
    for node, root in plan.groups.items():
        found[root] = found[root].union(ranges[node]) if root in found else ranges[node]
    return {root: Range(min(r.low, 0.0), max(r.high, 0.0)) for root, r in found.items()}


def types_of(ranges: GroupRanges, config: QuantizationConfig) -> dict[Node, ElementType]:
    """The int8 type of each group with these ranges."""
    return {root: activation_element(r, config.symmetric) for root, r in ranges.items()}
