"""What ``auto`` decides before any value is rounded: equalization and ranges.

Every lever is tried and kept only where it lowers the noise of the network's outputs on samples
that were held back: first for the whole network, then for each stretch of it alone.  The plain
graph with min-max ranges is the first candidate, so that the result is never worse there.  Only
functions on the sums of a layer and inputs on the grid of their bytes are taken without a trial:
they leave a rounding out, or make it exact.

Decisions are keyed by value names, so that they hold for the same model at another shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant
from quantglow.interrupts import Interrupted
from quantglow.options import QuantizationConfig
from quantglow.passes.fuse_activation import fuse_functions
from quantglow.profiling import Histogram, Profile
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.deadline import NEVER, Deadline
from quantglow.quantization.equalize.channel_groups import channel_groups
from quantglow.quantization.equalize.channel_mixing import Streams, linear_streams
from quantglow.quantization.equalize.equalization import (
    Factors,
    factors_of,
    groups_to_scale,
    rescaled,
)
from quantglow.quantization.equalize.float_runs import FloatRuns
from quantglow.quantization.equalize.input_grid import Grids, aligned, grids_of
from quantglow.quantization.equalize.sample_statistics import ChannelReach, RescaledValues
from quantglow.quantization.plan.plan import make_plan
from quantglow.quantization.plan.tensor_ranges import scarce_values
from quantglow.quantization.search.checkpoints import Checkpoints
from quantglow.quantization.search.fused_functions import worth_fusing
from quantglow.quantization.search.output_noise import compared_nodes
from quantglow.quantization.search.plan_noise import relative_noise
from quantglow.quantization.search.range_choice import Ranges, choose_ranges
from quantglow.quantization.shape_variants import at_own_shapes, fit, graph_for, sharing
from quantglow.quantization.smoothing_scales import SUFFIX, tapped, tapped_name, with_taps
from quantglow.workers import side_by_side

HELD_BACK = 8
"""Samples to decide on, at most; a third of few."""

FEWEST_SAMPLES = 8
"""With fewer, the values that a narrower range would cut off may be no exception."""

STRETCHES = 4
"""Parts of the network that decide for themselves."""

WORTH = 0.98
"""A lever must lower the noise at least to this share of it."""


@dataclass(frozen=True)
class Prepared:
    """A graph ready to be quantized, its profile, and the ranges that are not min-max; ``fused``:
    names of functions that its layers apply, see ``fused_functions``.
    """

    graph: Graph
    profile: Profile
    ranges: Ranges = field(default_factory=dict)
    factors: Factors = field(default_factory=dict)
    grids: Grids = field(default_factory=dict)
    fused: frozenset[str] = frozenset()

    def at(self, graph: Graph) -> Graph:
        """The same of the model's graph at other shapes."""
        graph = aligned(fuse_functions(graph, self.fused), self.grids)[0]
        return sharing(rescaled(graph, self.factors), self.graph)

    def on(self, samples: Sequence[Feeds]) -> list[Feeds]:
        """The samples, those elsewhere with this of their graph."""
        return at_own_shapes(samples, self.at)

    def fitting(self, samples: Sequence[Feeds]) -> tuple[list[Feeds], list[Feeds]]:
        """The samples whose graph is like this one where it is prepared alike; and these ``on``."""
        own = self.on(samples)
        pairs = zip(samples, own, fit(own, self.graph), strict=True)
        kept = [(one, other) for one, other, fits in pairs if fits]
        return [one for one, _ in kept], [other for _, other in kept]


def prepare(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    imported: Graph | None = None,
    progress: bool | str = False,
    deadline: Deadline = NEVER,
    runs: FloatRuns | None = None,
) -> Prepared:
    """The best found until all is tried, until ``deadline`` or Ctrl-C.

    ``runs``: of ``graph``, with the values of samples that ran before.
    Raises ``ProfileMismatchError`` for the profile of another model.
    """
    profile.check(graph)
    if not samples or not (config.equalization or config.calibrate_method == "auto"):
        return Prepared(graph, profile)
    runs = runs or FloatRuns(graph)
    parts = _split(samples, config.seed)
    search = _Search(graph, profile, config, *parts, runs, imported, deadline)
    with suppress(Interrupted), side_by_side():  # What was found so far is whole.
        for _ in shown(search.steps(), "Choosing ranges and scales", progress):
            if deadline.is_over:
                break
        else:
            return search.best
    deadline.ends("choosing ranges and scales")
    return search.best


def _split(samples: Sequence[Feeds], seed: int) -> tuple[list[Feeds], list[Feeds]]:
    """Samples to choose on and samples to decide on; both are all where there is one."""
    count = min(HELD_BACK, max(len(samples) // 3, 1))
    held = set(np.random.default_rng(seed).permutation(len(samples))[:count].tolist())
    if len(samples) < 2:
        return list(samples), list(samples)
    return (
        [feeds for index, feeds in enumerate(samples) if index not in held],
        [samples[index] for index in sorted(held)],
    )


def _groups(graph: Graph) -> list[list[str]]:
    """Names of the values that need the same factors, with all taps."""
    return sorted(sorted(n.name for n in group) for group in channel_groups(tapped(graph)))


@dataclass
class _Search:
    graph: Graph
    profile: Profile
    config: QuantizationConfig
    fitting: list[Feeds]
    held: list[Feeds]
    runs: FloatRuns
    imported: Graph | None = None
    deadline: Deadline = NEVER
    refused: dict[int, Ranges] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    def __post_init__(self) -> None:
        self.noise = float("inf")
        self._begin(Prepared(self.graph, self.profile))

    @property
    def chooses_ranges(self) -> bool:
        enough = len(self.fitting) + len(self.held) >= FEWEST_SAMPLES
        return self.config.calibrate_method == "auto" and enough

    def steps(self) -> Iterator[None]:
        """One trial after the other."""
        if "fuse-functions" in self.config.equalization:
            self._fuse()
            yield
        if "align-inputs" in self.config.equalization:
            self._align()
        self._leave_out_unlike()
        if not self.held:
            return
        ends = compared_nodes(self.graph)
        self.wanted = [self.runs.results(feeds, ends) for feeds in self.held]
        self._offer(self.best)
        yield
        plain = self.best
        if self.chooses_ranges:
            self._offer_ranges(plain)
            yield
        equal, mixed = self._learned()
        yield
        if views := [view for view in (equal, mixed) if view.factors]:
            self.runs.show([*self.fitting, *self.held], *views)
            self.runs.forget()
            yield
        if equal.factors:
            equalized = self._rescaled(equal)
            self._offer(equalized)
            yield
            if self.chooses_ranges:
                self._offer_ranges(equalized)
                yield
        if mixed.factors:
            both = self._rescaled(equal.only(self.best.factors), mixed)
            self._offer(self._with_ranges(both) if self.chooses_ranges else both)
            yield
        refused = self.refused.get(id(self.best), {})
        for stretch in self._stretches():
            if some := {name: found for name, found in refused.items() if name in stretch}:
                self._offer(replace(self.best, ranges={**self.best.ranges, **some}))
                yield
            self._offer(self._plain_in(stretch))
            yield

    def _leave_out_unlike(self) -> None:
        """Leave out samples elsewhere whose graphs are not like this one with levels and factors:
        frames have the size of the padding there, and other values may need the same factors.
        """
        given = [*self.fitting, *self.held]
        kept, own = self.best.fitting(given)
        others = {graph_for(feeds, self.graph) for feeds in own} - {self.graph}
        groups = _groups(self.graph) if others else []
        same = {self.graph, *(graph for graph in others if _groups(graph) == groups)}
        pairs = zip(kept, own, strict=True)
        kept = [feeds for feeds, there in pairs if graph_for(there, self.graph) in same]
        if len(kept) < len(given):
            self.fitting, self.held = _split(kept, self.config.seed)

    def _offer(self, candidate: Prepared) -> None:
        """Take the candidate if its outputs are less noisy on the held-back samples."""
        graph, profile, ranges = candidate.graph, candidate.profile, candidate.ranges
        plan = make_plan(graph, profile, self.config, self.imported, ranges)
        exact = "round-weights" in self.config.recovery
        held = candidate.on(self.held)
        noise = relative_noise(plan, held, self.wanted, exact, self.checkpoints)
        if noise < self.noise * (WORTH if np.isfinite(self.noise) else 1):
            self.best, self.noise = candidate, noise
            self.checkpoints.keep()

    def _offer_ranges(self, candidate: Prepared) -> None:
        """The candidate with ranges; worse on the whole, they may still be better in a stretch."""
        ranged = self._with_ranges(candidate)
        self._offer(ranged)
        if self.best is candidate:
            self.refused[id(candidate)] = ranged.ranges

    def _with_ranges(self, candidate: Prepared) -> Prepared:
        fitting = candidate.on(self.fitting)
        found = choose_ranges(
            candidate.graph, candidate.profile, self.config, fitting, self.imported
        )
        return replace(candidate, ranges={**found, **self.start.ranges})

    def _learned(self) -> tuple[RescaledValues, RescaledValues]:
        """With the factors of equalization, and with the mixtures of linear streams."""
        graph, techniques = self.runs.graph, self.config.equalization
        groups = groups_to_scale(self.tapped, techniques)
        reach = ChannelReach(graph, {tapped_name(node.name) for group in groups for node in group})
        linear = linear_streams(graph) if "mix-channels" in techniques else []
        streams = Streams(graph, linear, len(self.fitting))
        if reach.names or streams.groups:
            self.runs.show(self.fitting, reach, streams)
        scarce = scarce_values(self.graph, self.profile)
        scarce |= {f"{name}{SUFFIX}" for name in scarce}
        factors = factors_of(self.tapped, with_taps(reach.found), techniques, scarce)
        return RescaledValues(graph, factors), RescaledValues(graph, streams.mixtures())

    def _fuse(self) -> None:
        """Take the graph with functions fused; all that follows starts from it."""
        samples = self.start.fitting([*self.fitting, *self.held])[1]
        arguments = (self.graph, self.profile, self.config, samples, self.imported)
        if names := worth_fusing(*arguments, self.deadline):
            graph = fuse_functions(self.graph, names)
            self._begin(replace(self.start, graph=graph, fused=names))

    def _begin(self, start: Prepared) -> None:
        self.start = self.best = start
        self.graph, self.profile = start.graph, start.profile
        self.tapped = tapped(self.graph)

    def _align(self) -> None:
        """Take the graph on levels of its inputs; all that follows starts from it.

        Rounding to levels is exact, so nothing is compared: behind the noise of all other values a
        few samples would not always show it.
        """
        grids = grids_of(self.graph, [*self.fitting, *self.held])
        graph, ranges = aligned(self.graph, grids)
        if not ranges:
            return
        known = self.profile.histograms
        added = {
            name: Histogram.of(np.array([r.low, r.high], np.float32)) for name, r in ranges.items()
        }
        profile = replace(self.profile, histograms={**added, **known})
        start = replace(self.start, graph=graph, profile=profile, ranges=ranges, grids=grids)
        self._begin(start)

    def _rescaled(self, *values: RescaledValues) -> Prepared:
        """The graph with these factors, and the histograms of what they change."""
        factors = {name: factor for some in values for name, factor in some.factors.items()}
        recorded = {name: counts for some in values for name, counts in some.histograms.items()}
        graph = rescaled(self.graph, factors)
        changed = replace(self.profile, histograms={**self.profile.histograms, **recorded})
        return replace(self.start, graph=graph, profile=changed, factors=factors)

    def _stretches(self) -> list[set[str]]:
        """Names of the groups of values, cut into parts of the network."""
        groups = [{n.name for n in group} for group in channel_groups(self.tapped)]
        known = set().union(*groups)
        names = [n.name for n in self.tapped.nodes if not isinstance(n, Constant)]
        groups += [{name} for name in names if name not in known]
        order = {name: index for index, name in enumerate(names)}
        groups.sort(key=lambda group: min(order[name] for name in group))
        size = -(-len(groups) // STRETCHES)
        return [set().union(*groups[i : i + size]) for i in range(0, len(groups), size)]

    def _plain_in(self, names: set[str]) -> Prepared:
        """The best so far, with one stretch as the model has it."""
        factors = {n: f for n, f in self.best.factors.items() if n not in names}
        ranges = {n: r for n, r in self.best.ranges.items() if n not in names}
        ranges |= self.start.ranges
        if len(factors) == len(self.best.factors):
            return replace(self.best, ranges=ranges)
        kept = {n: h for n, h in self.profile.histograms.items() if n in names or n not in factors}
        histograms = {**self.best.profile.histograms, **kept}
        changed = replace(self.profile, histograms=histograms)
        graph = rescaled(self.graph, factors, (self.best.graph, self.best.factors))
        return replace(self.start, graph=graph, profile=changed, ranges=ranges, factors=factors)
