"""Quantizer: a float graph and its profile to an int8 graph, and a report on every operator.

``quantize`` is the entry; ``Quantizer`` runs the steps from a prepared graph to the int8 graph.
``QuantizationReport`` has the precision of each operator, and why it stayed float.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.origins import node_label
from quantglow.profiling import Profile
from quantglow.profiling.samples.feeds import Feeds, read_feeds
from quantglow.quantization.accuracy_control import NO_OVERRIDES, PrecisionOverrides
from quantglow.quantization.converter import Converter
from quantglow.quantization.decisions import Decisions
from quantglow.quantization.options import FAST, QuantizationConfig
from quantglow.quantization.plan.int16 import AUTO, with_named_int16
from quantglow.quantization.plan.plan import Plan, make_plan, with_bodies
from quantglow.quantization.plan.tensor_ranges import calibrated_element
from quantglow.quantization.rounding import Reservoir, RoundingCache, capacity, round_layers
from quantglow.quantization.rounding.layerwise import Begin
from quantglow.quantization.rounding.sample_runs import SampleRuns
from quantglow.quantization.rounding.sampling import Spread
from quantglow.quantization.search.fake_quantization import compared_nodes, noise_to_signal
from quantglow.quantization.search.levers import prepare
from quantglow.quantization.search.time_budget import with_chosen_int16
from quantglow.quantization.search.trials import WORTH, Candidate
from quantglow.quantization.shape_variants import at_own_shapes, fit
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.processes.interrupts import NEVER, Deadline

INT16_STAGE = "choosing int16"

FAST_SAMPLES = 16
"""Number of samples against which ``fast`` rounds weights and corrects biases."""

Converted = Callable[[Graph, Decisions], object]
"""Called with the int8 graph before its weights are rounded against samples, which takes long, and
with the decisions that led to it.  After that only the values of Constants differ, and a layer
without a bias may have one."""


def quantize(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig | None = None,
    data: Any = None,
    begin: Begin = SampleRuns,
) -> Graph:
    """The int8 graph of an optimized float graph; names and outputs stay.

    Raises ``ProfileMismatchError`` for the profile of another model and ``IgnoredScopeError`` for
    an exclusion that matches nothing.  ``data``, calibration samples as ``profile`` takes them,
    turns on ``search`` (equalization, ranges by their effect) and accuracy recovery; see
    ``quantglow.quantization.rounding``, also for ``begin``.
    """
    config = config or QuantizationConfig()
    samples = draw_samples(data, graph, config.seed)
    return quantize_for_all_shapes(graph, profile, config, samples, begin=begin).graph


def draw_samples(data: Any, graph: Graph, seed: int = 0) -> list[Feeds]:
    """The samples that memory has room for, drawn by ``seed``; none if ``data`` is None."""
    if data is None:
        return []
    return Reservoir(capacity(graph), seed).extend(read_feeds(data, graph.signature)).samples


@dataclass(frozen=True)
class Quantizer:
    """Makes the int8 graph of a prepared float graph.

    samples    samples against which weights are rounded; of other shapes as
               ``shape_variants.ShapeVariant``
    cache      layers of earlier runs with the same samples, so that none is rounded twice
    overrides  values and operators that accuracy control takes out of int8
    converted  see ``Converted``
    deadline   when recovery and the choice of int16 end, with the best so far
    begin      begins recovery's runs over samples, see ``round_layers``
    """

    candidate: Candidate
    config: QuantizationConfig
    samples: Sequence[Feeds] = ()
    progress: bool | str = "auto"
    cache: RoundingCache = field(default_factory=RoundingCache)
    overrides: PrecisionOverrides = NO_OVERRIDES
    converted: Converted | None = None
    deadline: Deadline = NEVER
    begin: Begin = SampleRuns

    def run(self) -> QuantizedGraph:
        """The int8 graph with its report, and the decisions that other shapes take over."""
        result, candidate = self.best(), self.candidate
        decisions = Decisions.of(result.plan, result.graph, candidate, self.config)
        report = _make_report(result.plan)
        return QuantizedGraph(result.graph, report, decisions, candidate, result.plan, result.notes)

    def best(self) -> Int8Candidate:
        """The int8 graph; with int16 activations chosen by trial, the less noisy one of both."""
        config, profile, plan = self.config, self.candidate.profile, self.plan()
        samples, floats = self.candidate.fitting(self.rounding_samples)
        result = self.convert(self.overrides.apply_to(plan, profile, config), samples, floats)
        if samples and config.int16_activations == AUTO:
            result = self.with_int16(result, plan, samples, floats)
        if debug.verifying():
            result.graph.verify()
        debug.dump_ir("quantize", result.graph)
        return result

    def with_int16(
        self, plain: Int8Candidate, plan: Plan, samples: Sequence[Feeds], floats: Sequence[Feeds]
    ) -> Int8Candidate:
        """The graph with int16 where it helps most, if its outputs are less noisy, else ``plain``.

        The choice takes half of the time at most; the rest is for recovery.
        """
        less_noisy, profile, half = plain, self.candidate.profile, self.deadline.halfway
        wider = plan
        if not half.is_over:
            wider = with_chosen_int16(plan, profile, self.config, floats, self.progress, half)
        note = half.note(INT16_STAGE)
        if wider is not plan:
            other = self.convert(wider, samples, floats)
            less_noisy = better(self.candidate.graph, plain, other)
            note = note or (self.deadline.note(INT16_STAGE) if other.notes else "")
        return replace(less_noisy, notes=(*less_noisy.notes, note)) if note else less_noisy

    @property
    def rounding_samples(self) -> Sequence[Feeds]:
        """Samples against which biases and weights are chosen."""
        is_fast = self.config.effort == FAST
        return Spread[Feeds](FAST_SAMPLES).extend(self.samples).items if is_fast else self.samples

    def plan(self) -> Plan:
        """Precision and parameters of every value, before int16 is chosen by trial."""
        graph, profile, to_float = (
            self.candidate.graph,
            self.candidate.profile,
            self.overrides.to_float,
        )
        ranges = self.candidate.ranges
        plan = make_plan(graph, profile, self.config, ranges, to_float)
        plan = with_bodies(plan, partial(calibrated_element, profile, self.config))
        return with_named_int16(plan, profile, self.config, strict=not to_float)

    def convert(
        self, plan: Plan, samples: Sequence[Feeds], floats: Sequence[Feeds]
    ) -> Int8Candidate:
        """The int8 graph of a plan, its weights rounded against the samples; ``floats``: these
        with the float graphs for their shapes."""
        config, result = self.config, Converter(plan, self.config.per_channel).run()
        graph, is_compared = self.candidate.graph, config.int16_activations == AUTO
        if not samples or not (config.recovery or is_compared):
            return Int8Candidate(result, plan)
        if config.recovery and self.converted is not None:
            self.converted(result, Decisions.of(plan, result, self.candidate, config))
        variants = enumerate(self._integers(result, plan, samples))
        fitting = {place: feeds for place, feeds in variants if feeds is not None}
        rounded = round_layers(
            graph,
            result,
            [floats[place] for place in fitting],
            tuple(config.recovery),
            config.per_channel,
            self.progress,
            self.cache,
            list(fitting.values()),
            [node.name for node in compared_nodes(graph)] if is_compared else [],
            self.deadline,
            self.begin,
        )
        pairs = zip(rounded.int8_ends, rounded.float_ends, strict=True)
        ends_of_samples = dict(zip(fitting, pairs, strict=bool(rounded.int8_ends)))
        notes = (rounded.note,) if rounded.note else ()
        return Int8Candidate(rounded.graph, plan, ends_of_samples, notes)

    def _integers(self, int8: Graph, plan: Plan, samples: Sequence[Feeds]) -> list[Feeds | None]:
        """The samples with the int8 graphs for their shapes; None for one unlike ``int8``."""
        decisions = Decisions.of(plan, int8, self.candidate, self.config)
        variants = at_own_shapes(samples, decisions.apply)
        pairs = zip(variants, fit(variants, int8), strict=True)
        return [feeds if fits else None for feeds, fits in pairs]


@dataclass(frozen=True)
class Int8Candidate:
    """An int8 graph and its plan.  ``ends``: place of a sample -> the values by which outputs are
    compared (``fake_quantization.compared_nodes``), in this graph and in the float one.  ``notes``:
    what the deadline cut short.
    """

    graph: Graph
    plan: Plan
    ends: Mapping[int, tuple[Sequence[Array], Sequence[Array]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def noise(self, graph: Graph, places: Iterable[int]) -> float:
        """Noise of the outputs over their signal; ``graph``: the float one."""
        pairs = [self.ends[place] for place in places]
        return noise_to_signal(graph, [int8 for int8, _ in pairs], [exact for _, exact in pairs])


def better(graph: Graph, plain: Int8Candidate, other: Int8Candidate) -> Int8Candidate:
    """The other one if its outputs are less noisy, on the samples that both can run."""
    places = sorted(plain.ends.keys() & other.ends.keys())
    if not places:  # A deadline ended the runs.
        return plain
    return other if other.noise(graph, places) < WORTH * plain.noise(graph, places) else plain


@dataclass(frozen=True, repr=False)
class QuantizedGraph(Concise):
    """An int8 graph, the precision of each operator, and the decisions for other shapes.

    ``candidate`` and ``plan``: the float graph it was made from, and how.  ``notes``: what the
    deadline cut short.
    """

    graph: Graph
    report: QuantizationReport
    decisions: Decisions
    candidate: Candidate
    plan: Plan
    notes: tuple[str, ...] = ()


def quantize_for_all_shapes(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig | None = None,
    data: Sequence[Feeds] | None = None,
    progress: bool | str = "auto",
    overrides: PrecisionOverrides = NO_OVERRIDES,
    deadline: Deadline = NEVER,
    begin: Begin = SampleRuns,
) -> QuantizedGraph:
    """``quantize`` at the shapes of ``graph``, with the decisions that other shapes take over.

    ``data``: samples, all of which are used; the other arguments as for ``Quantizer``.
    """
    config, samples, half = config or QuantizationConfig(), data or (), deadline.halfway
    candidate = prepare(graph, profile, config, samples, progress=progress, deadline=half)
    return Quantizer(
        candidate,
        config,
        samples,
        progress=progress,
        overrides=overrides,
        deadline=deadline,
        begin=begin,
    ).run()


def _make_report(plan: Plan) -> QuantizationReport:
    """For every operator its precision and why it stayed float."""
    origins = plan.graph.origins
    return QuantizationReport(
        tuple(
            NodeReport(
                n.name,
                node_label(n, origins),
                plan.precision(n),
                plan.reasons.get(n, ""),
                n.has(Trait.KEEPS_QUANTIZATION),
            )
            for n in plan.graph.compute_nodes()
        )
    )


@dataclass(frozen=True)
class NodeReport:
    """One operator of the float graph; ``reason`` says why it stayed float.

    ``op``: the operators of the user's model whose work it does, ``Transpose for Conv`` for a move
    that the compiler put in.  ``precision``: ``float``, or the
    width of its integer results, ``int8`` or ``int16``.  ``moves``: it has the quantization
    parameters of its operand.
    """

    name: str
    op: str
    precision: str
    reason: str = ""
    moves: bool = False


@dataclass(frozen=True)
class QuantizationReport:
    """Every operator of the float graph, in order."""

    nodes: tuple[NodeReport, ...]

    def count(self, precision: str) -> int:
        """Number of operators of a precision: ``int8``, ``int16`` or ``float``."""
        return sum(node.precision == precision for node in self.nodes)

    def named(self, precision: str) -> list[str]:
        """The names of the operators of a precision."""
        return [node.name for node in self.nodes if node.precision == precision]

    @property
    def kept_float(self) -> tuple[NodeReport, ...]:
        return tuple(node for node in self.nodes if node.precision == "float")

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(node) for node in self.nodes]

    def __str__(self) -> str:
        kinds = Counter((n.op, "float" if n.precision == "float" else "int8") for n in self.nodes)
        ops = sorted({op for op, _ in kinds})
        integers = len(self.nodes) - self.count("float")
        lines = [f"{integers} of {len(self.nodes)} operators are int8"]
        if wide := self.named("int16"):
            lines.append(f"  {len(wide)} of them give int16: {', '.join(wide)}")
        lines += [
            f"  {op:20} int8 {kinds[op, 'int8']:4}  float {kinds[op, 'float']:4}" for op in ops
        ]
        lines += [f"  float: {n.op} {n.name!r}: {n.reason}" for n in self.kept_float]
        return "\n".join(lines)
