"""Levers that propose candidates, and the search over them before any value is rounded.

``prepare`` runs the search.  Every lever is tried and kept only if it lowers the noise of the
network's outputs on samples that were held back: first for the whole network, then for each stretch
of it alone.  The plain graph with min-max ranges is the first candidate, so that the result is
never worse there.  Decisions are keyed by value names, so that they hold for the same model at
another shape.

A lever sees the outcome before it makes its next proposal.  Levers of ``exact_levers`` are taken
without a trial: they leave a rounding out, or make it exact, and behind the noise of all other
values a few samples would not always show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.profiling import Histogram, Profile
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.equalize.channel_groups import channel_groups
from quantglow.quantization.equalize.channel_mixing import LinearStreams, linear_streams
from quantglow.quantization.equalize.equalization import (
    equalization_factors,
    groups_to_scale,
    rescale,
)
from quantglow.quantization.equalize.input_grid import align_inputs, input_grids
from quantglow.quantization.equalize.sample_statistics import (
    ChannelReach,
    FloatRuns,
    RescaledValues,
)
from quantglow.quantization.options import BEST, DEFAULT, QuantizationConfig
from quantglow.quantization.plan.tensor_ranges import scarce_values
from quantglow.quantization.search.range_choice import Pair, RangeVerdict, choose_ranges
from quantglow.quantization.search.time_budget import worth_fusing
from quantglow.quantization.search.trials import Candidate, Ranges, Trials, split
from quantglow.quantization.smoothing_scales import SUFFIX, unscaled_name, with_scaled_names
from quantglow.support.processes.interrupts import NEVER, Deadline, Interrupted
from quantglow.support.processes.workers import side_by_side
from quantglow.support.progress import show
from quantglow.transforms.float.fusion import fuse_functions

STRETCHES, MORE_STRETCHES = 4, 12
"""Number of parts of the network that are decided one by one; then, with ``effort="best"``, these
smaller ones."""

STAGE = "choosing ranges and scales"


def prepare(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    progress: bool | str = False,
    deadline: Deadline = NEVER,
    runs: FloatRuns | None = None,
) -> Candidate:
    """The best candidate found until all are tried, until ``deadline`` or Ctrl-C.

    ``runs``: of ``graph``, with the values of samples that ran before.
    Raises ``ProfileMismatchError`` for the profile of another model.
    """
    profile.check(graph)
    start = Candidate(graph, profile)
    if not samples or not (config.equalization or config.calibrate_method == "auto"):
        return start
    parts = split(samples, config.seed)
    trials = Trials(start, config, *parts, runs or FloatRuns(graph), deadline)
    with suppress(Interrupted), side_by_side():  # The best so far is whole.
        for _ in show(steps(trials), STAGE.capitalize(), progress):
            if deadline.is_over:
                break
        else:
            return trials.best
    deadline.ends(STAGE)
    return trials.best


def steps(trials: Trials) -> Iterator[None]:
    """One proposal after the other."""
    for lever in exact_levers():
        for candidate in lever.proposals(trials):
            trials.begin(candidate)
        yield
    trials.leave_out_unlike()
    if not trials.is_search:
        return
    trials.run_float()
    for lever in trial_levers(trials.config.effort):
        for candidate in lever.proposals(trials):
            trials.judge(candidate)
            yield


class Lever(Protocol):
    """A way to lower the noise of a quantized network."""

    def proposals(self, trials: Trials) -> Iterator[Candidate]:
        """Candidates, one after the other; each is judged before the next one is made."""


class FuseFunctions:
    """Compute functions behind layers on their sums (``time_budget``)."""

    def proposals(self, trials: Trials) -> Iterator[Candidate]:
        start = trials.start
        if "fuse-functions" not in trials.config.equalization:
            return
        samples = start.fitting(trials.samples)[1]
        arguments = (start.graph, start.profile, trials.config, samples)
        if names := worth_fusing(*arguments, trials.deadline):
            yield replace(start, graph=fuse_functions(start.graph, names), fused=names)


class AlignInputs:
    """Put inputs on the grid of the bytes they were made of (``input_grid``)."""

    def proposals(self, trials: Trials) -> Iterator[Candidate]:
        start = trials.start
        if "align-inputs" not in trials.config.equalization:
            return
        grids = input_grids(start.graph, trials.samples)
        graph, ranges = align_inputs(start.graph, grids)
        if not ranges:
            return
        added = {
            name: Histogram.of(np.array([r.low, r.high], np.float32)) for name, r in ranges.items()
        }
        profile = replace(start.profile, histograms={**added, **start.profile.histograms})
        yield replace(start, graph=graph, profile=profile, ranges=ranges, grids=grids)


class LeaveUnscaled:
    """The graph as it is, with min-max ranges: the result is never worse."""

    def proposals(self, trials: Trials) -> Iterator[Candidate]:
        yield trials.best


@dataclass
class NarrowRanges:
    """Ranges by the errors that they cause in the readers (``range_choice``).

    ``plain``: the noise of the first base, with min-max ranges.  ``refused``: ranges that made the
    last base noisier on the whole, and the base.  ``judged``: the errors that were measured so far.
    """

    plain: float = float("inf")
    refused: tuple[Candidate, Ranges] | None = None
    judged: dict[Pair, RangeVerdict] = field(default_factory=dict)

    def proposals(self, trials: Trials) -> Iterator[Candidate]:
        self.plain = trials.last
        yield from self.on(trials, trials.best)

    def on(self, trials: Trials, base: Candidate) -> Iterator[Candidate]:
        """The proposal for a candidate that was judged before."""
        if not trials.chooses_ranges:
            return
        ranged = self.apply(trials, base)
        yield ranged
        if trials.best is base:
            self.refused = base, ranged.ranges

    def apply(self, trials: Trials, base: Candidate) -> Candidate:
        """A candidate with ranges chosen for it."""
        if not trials.chooses_ranges:
            return base
        fitting = base.on(trials.fitting)
        arguments = (base.graph, base.profile, trials.config, fitting)
        return replace(
            base, ranges={**choose_ranges(*arguments, self.judged), **trials.start.ranges}
        )


@dataclass
class RescaleChannels:
    """Factors between layers (``equalization``), then mixtures of channels, too
    (``channel_mixing``).

    Where better factors are followed by a mixture, ranges are chosen for both at once; for the
    factors alone if the mixture is refused, and with ``effort="best"``.
    """

    ranges: NarrowRanges

    def proposals(self, trials: Trials) -> Iterator[Candidate]:
        equal, mixed = _learn_factors(trials)
        if trials.deadline.is_over:
            return
        if statistics := [values for values in (equal, mixed) if values.factors]:
            trials.runs.collect(trials.samples, *statistics)
            trials.runs.forget()
        waiting: Candidate | None = None
        if equal.factors:
            equalized = _rescale(trials.start, equal)
            yield equalized
            if mixed.factors and trials.best is equalized:
                waiting = equalized
            elif trials.last < self.ranges.plain:  # Ranges do not make up for a worse beginning.
                yield from self.ranges.on(trials, equalized)
        if mixed.factors:
            both = _rescale(trials.start, equal.only(trials.best.factors), mixed)
            yield self.ranges.apply(trials, both)
        if waiting is not None and (trials.best is waiting or trials.config.effort == BEST):
            yield from self.ranges.on(trials, waiting)


@dataclass
class Stretches:
    """Decide part by part of the network: ranges refused on the whole, and nothing at all.

    ``count``: number of parts.
    """

    ranges: NarrowRanges
    count: int = STRETCHES

    def proposals(self, trials: Trials) -> Iterator[Candidate]:
        base, refused = self.ranges.refused or (None, {})
        if base is not trials.best:
            refused = {}
        for stretch in _stretches(trials, self.count):
            if some := {name: narrowed for name, narrowed in refused.items() if name in stretch}:
                yield replace(trials.best, ranges={**trials.best.ranges, **some})
            yield plain_in(stretch, trials)


def exact_levers() -> tuple[Lever, ...]:
    """The levers that are taken without a trial, in their order."""
    return FuseFunctions(), AlignInputs()


def trial_levers(effort: str = DEFAULT) -> tuple[Lever, ...]:
    """The levers that are tried, in their order: for the whole network, then for each stretch.

    ``best`` goes on where the default ends, so that it is never worse on the held-back samples.
    """
    ranges = NarrowRanges()
    levers = LeaveUnscaled(), ranges, RescaleChannels(ranges), Stretches(ranges)
    return (*levers, Stretches(ranges, MORE_STRETCHES)) if effort == BEST else levers


def _learn_factors(trials: Trials) -> tuple[RescaledValues, RescaledValues]:
    """The factors of equalization, and the mixtures of linear streams; one run gives both."""
    graph, techniques = trials.runs.graph, tuple(trials.config.equalization)
    groups = groups_to_scale(trials.with_scales, techniques)
    reach = ChannelReach(graph, {unscaled_name(node.name) for group in groups for node in group})
    linear = linear_streams(graph) if "mix-channels" in techniques else []
    streams = LinearStreams(graph, linear, len(trials.fitting))
    if reach.names or streams.groups:
        trials.runs.collect(trials.fitting, reach, streams)
    scarce = scarce_values(trials.start.graph, trials.start.profile)
    scarce |= {f"{name}{SUFFIX}" for name in scarce}
    reaches = with_scaled_names(reach.by_name)
    factors = equalization_factors(trials.with_scales, reaches, techniques, scarce)
    return RescaledValues(graph, factors), RescaledValues(graph, streams.mixtures())


def _rescale(start: Candidate, *values: RescaledValues) -> Candidate:
    """The start with these factors, and the histograms of the values they change."""
    factors = {name: factor for some in values for name, factor in some.factors.items()}
    recorded = {name: counts for some in values for name, counts in some.histograms.items()}
    changed = replace(start.profile, histograms={**start.profile.histograms, **recorded})
    graph = rescale(start.graph, factors)
    return replace(start, graph=graph, profile=changed, factors=factors)


def _stretches(trials: Trials, count: int) -> list[set[str]]:
    """Names of the groups of values, cut into ``count`` parts of the network."""
    groups = [{n.name for n in group} for group in channel_groups(trials.with_scales)]
    grouped = set().union(*groups)
    names = [n.name for n in trials.with_scales.nodes if not isinstance(n, Constant)]
    groups += [{name} for name in names if name not in grouped]
    order = {name: index for index, name in enumerate(names)}
    groups.sort(key=lambda group: min(order[name] for name in group))
    size = max(1, -(-len(groups) // count))
    return [set().union(*groups[i : i + size]) for i in range(0, len(groups), size)]


def plain_in(names: set[str], trials: Trials) -> Candidate:
    """The best so far, with one stretch as the model has it."""
    start, best = trials.start, trials.best
    factors = {n: f for n, f in best.factors.items() if n not in names}
    ranges = {n: r for n, r in best.ranges.items() if n not in names}
    ranges |= start.ranges
    if len(factors) == len(best.factors):
        return replace(best, ranges=ranges)
    histograms = start.profile.histograms
    plain = {n: h for n, h in histograms.items() if n in names or n not in factors}
    changed = replace(start.profile, histograms={**best.profile.histograms, **plain})
    graph = rescale(start.graph, factors, (best.graph, best.factors))
    return replace(start, graph=graph, profile=changed, ranges=ranges, factors=factors)
