"""Candidates of the search, and their trials on samples that were held back.

A candidate is a float graph ready to be quantized: rewritten, with its profile and chosen ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Profile, Range
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.equalize.channel_groups import channel_groups
from quantglow.quantization.equalize.equalization import Factors, rescale
from quantglow.quantization.equalize.input_grid import Grids, align_inputs
from quantglow.quantization.equalize.sample_statistics import FloatRuns
from quantglow.quantization.options import FAST, FAST_EQUALIZATIONS, QuantizationConfig
from quantglow.quantization.plan.plan import make_plan
from quantglow.quantization.search.fake_quantization import (
    Checkpoints,
    compared_nodes,
    relative_noise,
)
from quantglow.quantization.shape_variants import at_own_shapes, fit, graph_for, share_constants
from quantglow.quantization.smoothing_scales import with_smoothing_scales
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.support.processes.workers import each
from quantglow.transforms.float.fusion import fuse_functions

Ranges = Mapping[str, Range]
"""Value name -> the range to quantize."""

HELD_BACK = 8
"""Maximum number of samples to decide on; at most a third of all samples."""

MIN_SAMPLES = 8
"""Minimum number of samples to choose ranges on.  With fewer, the values that a narrower range
would cut off may be no exception."""

WORTH = 0.95
"""A candidate is taken if it lowers the noise at least to this share of it: on so few samples
smaller gains, below 0.2 dB, are chance."""


@dataclass(frozen=True)
class Candidate:
    """A graph ready to be quantized, its profile, and the ranges that are not min-max.

    The graph is the model's with ``factors`` (``equalization``), on the ``grids`` of its inputs,
    and with the functions ``fused`` into layers (``time_budget``).
    """

    graph: Graph
    profile: Profile
    ranges: Ranges = field(default_factory=dict)
    factors: Factors = field(default_factory=dict)
    grids: Grids = field(default_factory=dict)
    fused: frozenset[str] = frozenset()

    def is_like(self, other: Candidate) -> bool:
        """Whether both are made from one model by the same changes, and so have the same noise."""
        same = all(factor is other.factors.get(name) for name, factor in self.factors.items())
        changes = self.factors.keys(), self.ranges, self.fused
        return same and changes == (other.factors.keys(), other.ranges, other.fused)

    def at(self, graph: Graph) -> Graph:
        """The model's graph at other shapes, prepared alike."""
        graph = align_inputs(fuse_functions(graph, self.fused), self.grids)[0]
        return share_constants(rescale(graph, self.factors), self.graph)

    def on(self, samples: Sequence[Feeds]) -> list[Feeds]:
        """The samples; those of other shapes with their own graphs prepared alike."""
        return at_own_shapes(samples, self.at)

    def fitting(self, samples: Sequence[Feeds]) -> tuple[list[Feeds], list[Feeds]]:
        """The samples whose graphs, prepared alike, have the same nodes as this one; and these
        ``on``.
        """
        variants = self.on(samples)
        pairs = zip(samples, variants, fit(variants, self.graph), strict=True)
        matches = [(one, other) for one, other, fits in pairs if fits]
        return [one for one, _ in matches], [other for _, other in matches]


@dataclass
class Trials:
    """The best candidate so far, by the noise of its outputs on samples that were held back.

    ``start``: the candidate that all others are made from.  ``fitting``: samples to choose on;
    ``held``: samples to decide on.  ``noise``: that of the best one; ``last``: that of the one that
    was judged last.
    """

    start: Candidate
    config: QuantizationConfig
    fitting: list[Feeds]
    held: list[Feeds]
    runs: FloatRuns
    deadline: Deadline = NEVER
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    noise: float = float("inf")
    last: float = float("inf")
    exact_ends: list[list[Array]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin(self.start)

    def begin(self, start: Candidate) -> None:
        """Take a candidate without a trial; all that follows starts from it."""
        self.start = self.best = start
        self.with_scales = with_smoothing_scales(start.graph)

    @property
    def samples(self) -> list[Feeds]:
        """All samples."""
        return [*self.fitting, *self.held]

    @property
    def chooses_ranges(self) -> bool:
        """Whether narrower ranges are tried."""
        enough = len(self.fitting) + len(self.held) >= MIN_SAMPLES
        return self.config.calibrate_method == "auto" and enough and self.config.effort != FAST

    @property
    def is_search(self) -> bool:
        """Whether there is anything to try."""
        tried = set(self.config.equalization) - set(FAST_EQUALIZATIONS)
        return bool(self.held) and (self.chooses_ranges or bool(tried))

    def judge(self, candidate: Candidate) -> None:
        """Take the candidate if its outputs are less noisy on the held-back samples."""
        if candidate is not self.best and candidate.is_like(self.best):
            self.last = self.noise
            return
        self.last = noise = self.measure_noise(candidate)
        if noise < self.noise * (WORTH if np.isfinite(self.noise) else 1):
            self.best, self.noise = candidate, noise
            self.checkpoints.keep()

    def measure_noise(self, candidate: Candidate) -> float:
        """Noise of a candidate's outputs over their signal, on the held-back samples."""
        graph, profile, ranges = candidate.graph, candidate.profile, candidate.ranges
        plan = make_plan(graph, profile, self.config, ranges)
        exact = "round-weights" in self.config.recovery
        return relative_noise(
            plan, candidate.on(self.held), self.exact_ends, exact, self.checkpoints
        )

    def leave_out_unlike(self) -> None:
        """Drop samples of other shapes whose graphs, prepared alike, differ from this one.

        With input grids, frames have the size of the padding there; and other values may need the
        same factors.
        """
        samples = self.samples
        usable, variants = self.best.fitting(samples)
        graph = self.start.graph
        others = {graph_for(feeds, graph) for feeds in variants} - {graph}
        groups = _groups(graph) if others else []
        same = {graph, *(other for other in others if _groups(other) == groups)}
        pairs = zip(usable, variants, strict=True)
        usable = [feeds for feeds, there in pairs if graph_for(there, graph) in same]
        if len(usable) < len(samples):
            self.fitting, self.held = split(usable, self.config.seed)

    def run_float(self) -> None:
        """Compute the exact values of the outputs on the held-back samples."""
        ends = compared_nodes(self.start.graph)
        self.exact_ends = each(lambda feeds: self.runs.results(feeds, ends), self.held)


def split(samples: Sequence[Feeds], seed: int) -> tuple[list[Feeds], list[Feeds]]:
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
    """Names of the values that need the same factors, with all smoothing scales."""
    groups = channel_groups(with_smoothing_scales(graph))
    return sorted(sorted(n.name for n in group) for group in groups)
