"""Values that include infinities or NaN, or numbers that stand for infinities.

Exporters hide attention scores by -1e9, -1e4 or the lowest number of a float type as well as by
-inf.  A mask that no calibration sample needed may hide something later, at another length or in
a batch with padding: 256 steps of the range that calibration saw would let it leak.
"""

from __future__ import annotations

import math

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.graph.traits import Trait
from quantglow.ops import Add, Mul, Pad, Sub
from quantglow.profiling import Profile
from quantglow.profiling.histogram import Histogram
from quantglow.profiling.specials import NONE, Specials, shows_specials, specials_of

LARGE = 1e4
"""Minimum magnitude of a number that hides the values it is added to or replaces."""


def special_values(graph: Graph, profile: Profile | None = None) -> dict[Node, Specials]:
    """Float values that include infinities or NaN, or may do so at run time.

    The profile says which sums and maxima of many values include them.
    """
    return _special_values(graph, profile, masks=False)


def masked_values(graph: Graph, profile: Profile | None = None) -> dict[Node, Specials]:
    """``special_values`` where the large numbers of masks count as infinities."""
    return _special_values(graph, profile, masks=True)


def _special_values(graph: Graph, profile: Profile | None, masks: bool) -> dict[Node, Specials]:
    found: dict[Node, Specials] = {}
    for node in graph.nodes:
        histogram = profile.histograms.get(node.name) if profile else None
        seen = NONE if histogram is None or isinstance(node, Constant) else histogram.specials
        if isinstance(node, Constant) or shows_specials(node):
            hidden = {o: _hiding(o, node, histogram) for o in node.operands} if masks else {}
            of = {o: found.get(o, NONE) | hidden.get(o, NONE) for o in node.operands}
            seen |= specials_of(node, of.__getitem__)
        if masks and isinstance(node, Pad):
            seen |= _infinities(node.value, node.value)
        if seen:
            found[node] = seen
    return found


def _hiding(operand: Node, reader: Node, seen: Histogram | None) -> Specials:
    """The infinities that the large numbers of a Constant stand for where ``reader`` hides other
    values by them; none in weights, factors and shifts of all values.

    ``seen``: the calibrated values of the reader's result.  A factor belongs to a mask if its
    product was always 0.
    """
    if not isinstance(operand, Constant) or not operand.type.dtype.is_float:
        return NONE
    found = _infinities(*operand.extremes)
    match reader:
        case Add() | Sub():
            hides = bool(found) and bool((np.abs(operand.value) < LARGE).any())
        case Mul():
            hides = seen is not None and seen.minimum == seen.maximum == 0
        case _:
            hides = reader.has(Trait.PASSES_SPECIALS)
    return found if hides else NONE


def _infinities(low: float, high: float) -> Specials:
    """The infinities for which the extremes of some numbers stand."""
    return frozenset(
        infinity
        for infinity, is_large in ((-math.inf, low <= -LARGE), (math.inf, high >= LARGE))
        if is_large
    )
