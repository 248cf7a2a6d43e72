"""Rules by which operators stay float, each with its reason: ``FLOAT_RULES``, in their order.

A rule maps a draft of the plan (``PlanDraft``: the facts that decide, and the reasons so far) to
operators and reasons.  First come what the user and accuracy control ask for, then what int8 cannot
represent, then what it would hurt.  The last rules look at the operators that are int8 until then:
at divisors, and at groups that are not worth their conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace

from quantglow.interpreter.branches import in_branches
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Log, Loop, Softmax
from quantglow.ir.ops.binary import Binary
from quantglow.profiling import Profile, Range
from quantglow.profiling.specials import Specials, describe_specials
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan import float_heuristics as heuristics
from quantglow.quantization.plan.eligibility import divisors, ineligibility, normalizations
from quantglow.quantization.plan.network_ends import byte_ranges, copies, head, preparation, tail
from quantglow.quantization.plan.params import UnionFind
from quantglow.quantization.plan.scope import excluded_nodes
from quantglow.quantization.plan.tensor_ranges import (
    LARGE,
    masked_values,
    special_values,
    tensor_ranges,
)

OVERRIDDEN = "int8 would lose more accuracy than max_drop allows"
UNTAKEN = "no calibration sample took this branch"
MASKED = "a mask is among its values: 256 steps would tell nothing else apart"
FINISHING = "finishes the output in float"
COPIED = "copies numbers of an input to an output"
RECURRENT = "it is between the products of a recurrent cell, whose roundings come back"
ROOT = "a square root is taken of it: near 0, 256 steps give 16 roots"
LOGARITHM = "a logarithm is taken of it: 256 steps span two decades only"
NARROW = "it is narrower than what it is cut out of, and rounded afterwards"
RESULTS = "it joins results, each of its own range"
SPECTRUM = "it makes or reads a spectrum, which spans more decades than 256 steps"
CONDITION = "it decides which branch is taken, also beyond the range that calibration saw"
BOXES = "it decodes boxes and scores, whose logits have no common steps"
LENGTH = "it decides a length: rounded, it would be a step longer or shorter"
DIVISOR = "it is divided by or its logarithm is taken, and in int8 a small value is 0"
NORMALIZING = "its operand comes in float, and in int8 would be rounded once more"
READ_AS_FLOAT = "all that reads it is float"
UNPROFITABLE = "no int8 operator next to it is worth the conversions"


def user_exclusions(draft: PlanDraft) -> Mapping[Node, str]:
    """Operators that the options exclude.  Raises ``IgnoredScopeError``."""
    return excluded_nodes(draft.graph, draft.config)


def accuracy_overrides(draft: PlanDraft) -> Mapping[Node, str]:
    """Operators that accuracy control keeps in float."""
    nodes = draft.graph.compute_nodes()
    return dict.fromkeys((node for node in nodes if node.name in draft.to_float), OVERRIDDEN)


def untaken_branches(draft: PlanDraft) -> Mapping[Node, str]:
    """Branches that no calibration sample took: the profile does not know their values."""
    floats = (node for node in draft.graph.compute_nodes() if node.type.dtype.is_float)
    unknown = [node for node in floats if node.name not in draft.profile.histograms]
    inside = in_branches(draft.graph) if unknown else frozenset()
    return dict.fromkeys((node for node in unknown if node in inside), UNTAKEN)


def ineligible_operators(draft: PlanDraft) -> Mapping[Node, str]:
    """Operators without an int8 form, or whose tensors integers cannot represent: they may be
    infinite or NaN, hold a mask, or have no range."""
    reasons = {
        node: _special_ineligibility(node, draft)
        or ineligibility(node)
        or _range_ineligibility(node, draft)
        for node in draft.graph.compute_nodes()
        if node not in draft.floats
    }
    return {node: reason for node, reason in reasons.items() if reason}


def _special_ineligibility(node: Node, draft: PlanDraft) -> str:
    """Why the special values of its result keep the node float, or an empty string."""
    if node in draft.special:
        return f"its values include {describe_specials(draft.special[node])}"
    return MASKED if node in draft.masked else ""


def _range_ineligibility(node: Node, draft: PlanDraft) -> str:
    """Why the ranges of its tensors keep the node float, or an empty string."""
    ranges, special = draft.ranges, draft.special
    values = [v for v in (node, *node.operands) if v.type.dtype.is_float]
    for value in values:
        if value in special:
            kind = "constant" if isinstance(value, Constant) else "operand"
            return f"its {kind} {value.name!r} includes {describe_specials(special[value])}"
        if value in draft.masked:
            return MASKED
        if value not in ranges and isinstance(value, Constant):
            return f"its constant {value.name!r} has no finite range"
        if value not in ranges:
            return f"the profile has no range for {value.name!r}"
    is_hidden = isinstance(node, Binary | Softmax) and any(ranges[v].low <= -LARGE for v in values)
    return MASKED if is_hidden else ""


def network_tail(draft: PlanDraft) -> Mapping[Node, str]:
    """The tail: cheap operators between the last matrix products and outputs.  The products give
    float32 directly, so float rounds once less here, at no cost."""
    return {} if draft.config.quantize_output else dict.fromkeys(tail(draft.graph), FINISHING)


def input_copies(draft: PlanDraft) -> Mapping[Node, str]:
    """Operators whose results nothing reads but an output that copies an input, such as caches of
    decoders: in float, the copy is exact."""
    if draft.config.quantize_output:
        return {}
    nodes, users = copies(draft.graph), draft.graph.users
    return dict.fromkeys((n for n in nodes if all(user in nodes for user in users[n])), COPIED)


def network_head(draft: PlanDraft) -> Mapping[Node, str]:
    """The head, which scales and shifts an input: rounded before and after it, an input would lose
    twice."""
    graph, byte_values = draft.graph, draft.byte_ranges
    return {node: preparation(node, graph, byte_values) for node in head(graph)}


def recurrent_cells(draft: PlanDraft) -> Mapping[Node, str]:
    """The operators between the matrix products of a recurrent cell (LSTM, GRU, RNN), and those
    that prepare the operands of a loop.

    Errors of the state come back in every later step, and the state has few elements beside the
    products.
    """
    loops = {node for node in draft.graph.compute_nodes() if isinstance(node, Loop)}
    nodes = heuristics.cells(draft.graph) | loops
    feeders = heuristics.with_feeders(draft.graph, nodes, heuristics.CELL_PARTS)
    return dict.fromkeys(feeders, RECURRENT)


def square_roots(draft: PlanDraft) -> Mapping[Node, str]:
    """The operand of a square root, and of its reciprocal: near 0, 256 steps give 16 roots."""
    roots = heuristics.roots(draft.graph)
    feeders = heuristics.with_feeders(draft.graph, roots, heuristics.UNDER_ROOTS)
    return dict.fromkeys(feeders, ROOT)


def logarithms(draft: PlanDraft) -> Mapping[Node, str]:
    """The operand of a logarithm, with the linear steps before it: a spectrum spans more decades
    than 256 steps do."""
    readers = [node for node in draft.graph.compute_nodes() if isinstance(node, Log)]
    feeders = heuristics.with_feeders(draft.graph, readers, heuristics.UNDER_LOGARITHMS)
    return dict.fromkeys(feeders, LOGARITHM)


def narrow_parts(draft: PlanDraft) -> Mapping[Node, str]:
    """A part of a float value that is much narrower than the whole, such as the hidden state
    beside the cell state in one tensor.  It is cut out first, then rounded in steps of its own."""
    parts = heuristics.narrow_parts(draft.graph, draft.floats, draft.ranges)
    return dict.fromkeys(parts, NARROW)


def joined_results(draft: PlanDraft) -> Mapping[Node, str]:
    """A Concat of results, whose parts would share the steps of the widest."""
    return dict.fromkeys(heuristics.joined_results(draft.graph), RESULTS)


def spectra(draft: PlanDraft) -> Mapping[Node, str]:
    """A Fourier or constant-Q transform, with the filters and moves that prepare its samples, the
    powers of its bins, and the first products that read these: the bins of a signal span more
    decades than 256 steps."""
    return dict.fromkeys(heuristics.spectra(draft.graph), SPECTRUM)


def conditions(draft: PlanDraft) -> Mapping[Node, str]:
    """The condition of a branch, with the operators that lead to it alone: int8 saturates at the
    end of the calibrated range, and a branch whose threshold lies beyond would never be taken."""
    return dict.fromkeys(heuristics.conditions(draft.graph, draft.floats), CONDITION)


def box_decoders(draft: PlanDraft) -> Mapping[Node, str]:
    """The box decoder of a detector that takes the mean of distributions of distances: from the
    logits on, boxes and scores need steps of their own.

    It is that of distribution focal loss (Li et al., Generalized Focal Loss, 2020; PicoDet,
    NanoDet, YOLOv8).  Its integral layer is the mean of each distribution: a Softmax over the
    distances 0, 1, ... n - 1, times these distances.  The logits of boxes and of classes are often
    joined before it, and results joined behind it: rounded, they would share the steps of the
    widest.
    """
    return dict.fromkeys(heuristics.box_decoders(draft.graph), BOXES)


def lengths(draft: PlanDraft) -> Mapping[Node, str]:
    """A value that is rounded to decide a length (durations of speech, counts), with the operators
    that lead to it alone: an error of a step adds or removes a frame."""
    roundings = heuristics.lengths(draft.graph)
    feeders = heuristics.with_feeders(draft.graph, roundings, heuristics.BEFORE_ROUNDINGS)
    return dict.fromkeys(feeders, LENGTH)


def small_divisors(draft: PlanDraft) -> Mapping[Node, str]:
    """Divisors, and operands of logarithms and negative powers: their small values would become
    0, and the results infinite."""
    return dict.fromkeys(divisors(draft.graph, draft.floats, draft.ranges), DIVISOR)


def float_normalizations(draft: PlanDraft) -> Mapping[Node, str]:
    """Normalizations whose operand exists in float at no cost, or whose result is an output only:
    a few very large values of the operand would make the steps of all values coarse."""
    return dict.fromkeys(normalizations(draft.graph, draft.floats), NORMALIZING)


def float_operands(draft: PlanDraft) -> Mapping[Node, str]:
    """Sums, products and changes of layout whose readers are all float: int8 would add a rounding,
    and save none.

    One is the residual sum before a normalization, with its few very large values.
    """
    floats, nodes = set(draft.floats), list[Node]()
    for node in reversed(draft.graph.compute_nodes()):
        readers = draft.graph.users[node]
        is_light = node.has(Trait.SERVES_READERS) and node not in draft.floats
        if is_light and readers and all(user in floats for user in readers):
            floats.add(node)
            nodes.append(node)
    return dict.fromkeys(nodes, READ_AS_FLOAT)


def unprofitable_groups(draft: PlanDraft) -> Mapping[Node, str]:
    """Connected groups of int8 operators that only move or combine elements: their conversions cost
    more than int8 saves."""
    nodes = [n for n in draft.graph.compute_nodes() if n not in draft.floats]
    groups = UnionFind(nodes)
    for node in nodes:
        for operand in node.operands:
            if operand in groups:
                groups.join(node, operand)
    worthy = {groups.find(n) for n in nodes if not n.has(Trait.LIGHT)}
    return dict.fromkeys((n for n in nodes if groups.find(n) not in worthy), UNPROFITABLE)


FLOAT_RULES: tuple[FloatRule, ...] = (
    user_exclusions,
    accuracy_overrides,
    untaken_branches,
    ineligible_operators,
    network_tail,
    input_copies,
    network_head,
    recurrent_cells,
    square_roots,
    logarithms,
    narrow_parts,
    joined_results,
    spectra,
    conditions,
    box_decoders,
    lengths,
    small_divisors,
    float_normalizations,
    float_operands,
    unprofitable_groups,
)
"""The reasons of an earlier rule win.  ``narrow_parts``, ``conditions`` and the rules from
``small_divisors`` on read which operators are float already, so they come after the others;
``unprofitable_groups`` is last because each other rule may leave a group without its products."""


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
