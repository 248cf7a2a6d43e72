"""Draft of a plan: the facts that decide which operators stay float, and the reasons so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.profiling import Profile, Range
from quantglow.profiling.specials import Specials
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.network_ends import byte_ranges
from quantglow.quantization.plan.tensor_ranges import (
    masked_values,
    special_values,
    tensor_ranges,
)


@dataclass(frozen=True)
class PlanDraft:
    """Facts about a float graph, and the operators that stay float so far.

    ranges       range of every value that has one; values without one are never int8
    byte_ranges  those of floats that are bytes, see ``network_ends.byte_ranges``
    special      values that may be infinite or NaN
    masked       values that may be infinite, NaN or a number that stands for an infinity
    to_float     names of operators that accuracy control keeps in float
    reasons      float operator -> why it is float
    """

    graph: Graph
    profile: Profile
    config: QuantizationConfig
    ranges: Mapping[Node, Range]
    byte_ranges: Mapping[Node, Range]
    special: Mapping[Node, Specials]
    masked: Mapping[Node, Specials]
    to_float: Collection[str] = ()
    reasons: Mapping[Node, str] = field(default_factory=dict)

    @property
    def floats(self) -> Set[Node]:
        """The operators that stay float so far."""
        return self.reasons.keys()

    def apply(self, rule: FloatRule) -> PlanDraft:
        """The draft with the operators that a rule keeps in float.  A reason that an operator has
        already stays: rules come in the order in which their reasons matter to a user.
        """
        reasons = dict(self.reasons)
        for node, reason in rule(self).items():
            reasons.setdefault(node, reason)
        return replace(self, reasons=reasons)


FloatRule = Callable[[PlanDraft], Mapping[Node, str]]
"""Operators that stay float -> the reason.  It may name operators that are float already."""


def make_draft(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    chosen: Mapping[str, Range] | None = None,
    to_float: Collection[str] = (),
) -> PlanDraft:
    """The draft before any rule; the arguments as for ``plan.make_plan``."""
    ranges = tensor_ranges(graph, profile, config)
    ranges |= {n: chosen[n.name] for n in ranges if n.name in chosen} if chosen else {}
    bytes_of = byte_ranges(graph)
    ranges |= {node: values for node, values in bytes_of.items() if node in ranges}
    special, masked = special_values(graph, profile), masked_values(graph, profile)
    return PlanDraft(graph, profile, config, ranges, bytes_of, special, masked, to_float)
