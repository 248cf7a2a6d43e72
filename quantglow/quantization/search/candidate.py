"""A float graph ready to be quantized: rewritten, with its profile and chosen ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quantglow.graph.graph import Graph
from quantglow.passes.fuse_activation import fuse_functions
from quantglow.profiling import Profile, Range
from quantglow.profiling.data import Feeds
from quantglow.quantization.equalize.equalization import Factors, rescaled
from quantglow.quantization.equalize.input_grid import Grids, aligned
from quantglow.quantization.shape_variants import at_own_shapes, fit, sharing

Ranges = Mapping[str, Range]
"""Value name -> the range to quantize."""


@dataclass(frozen=True)
class Candidate:
    """A graph ready to be quantized, its profile, and the ranges that are not min-max.

    The graph is the model's with ``factors`` (``equalization``), on the ``grids`` of its inputs,
    and with the functions ``fused`` into layers (``fused_functions``).
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
        graph = aligned(fuse_functions(graph, self.fused), self.grids)[0]
        return sharing(rescaled(graph, self.factors), self.graph)

    def on(self, samples: Sequence[Feeds]) -> list[Feeds]:
        """The samples; those of other shapes with their own graphs prepared alike."""
        return at_own_shapes(samples, self.at)

    def fitting(self, samples: Sequence[Feeds]) -> tuple[list[Feeds], list[Feeds]]:
        """The samples whose graphs, prepared alike, have the same nodes as this one; and these
        ``on``.
        """
        own = self.on(samples)
        pairs = zip(samples, own, fit(own, self.graph), strict=True)
        kept = [(one, other) for one, other, fits in pairs if fits]
        return [one for one, _ in kept], [other for _, other in kept]
