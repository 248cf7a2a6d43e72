"""The quantizer: a float graph and its profile to an int8 graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from quantglow import debug
from quantglow.concise import Concise
from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.origins import label_of
from quantglow.graph.traits import Trait
from quantglow.options import FAST, QuantizationConfig
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds, feeds_of
from quantglow.quantization.accuracy_control.precision_steps import NO_OVERRIDES, PrecisionOverrides
from quantglow.quantization.convert.converter import Converter
from quantglow.quantization.decisions.decisions import Decisions
from quantglow.quantization.plan.bodies import with_bodies
from quantglow.quantization.plan.int16 import AUTO, with_named_int16
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.plan.tensor_ranges import element_of
from quantglow.quantization.recovery import Cache, Reservoir, capacity, recover
from quantglow.quantization.recovery.layerwise import Begin
from quantglow.quantization.recovery.sample_runs import SampleRuns
from quantglow.quantization.recovery.sampling import Spread
from quantglow.quantization.report import NodeReport, QuantizationReport
from quantglow.quantization.search.candidate import Candidate
from quantglow.quantization.search.choose_int16 import with_chosen_int16
from quantglow.quantization.search.output_noise import compared_nodes, noise_to_signal
from quantglow.quantization.search.preparation import prepare
from quantglow.quantization.search.trials import WORTH
from quantglow.quantization.shape_variants import at_own_shapes, fit

INT16_STAGE = "choosing int16"

FAST_SAMPLES = 16
"""Number of samples against which ``fast`` rounds weights and corrects biases."""

Converted = Callable[[Graph], object]
"""Called with the int8 graph before its weights are rounded against samples, which takes long.
After that only the values of Constants differ, and a layer without a bias may have one."""


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
    turns on ``preparation`` (equalization, ranges by their effect) and accuracy recovery; see
    ``quantglow.quantization.recovery``, also for ``begin``.
    """
    config = config or QuantizationConfig()
    samples = samples_of(data, graph, config.seed)
    return quantize_for_all_shapes(graph, profile, config, samples, begin=begin).graph


def samples_of(data: Any, graph: Graph, seed: int = 0) -> list[Feeds]:
    """The samples that memory has room for, drawn by ``seed``; none if ``data`` is None."""
    if data is None:
        return []
    return Reservoir(capacity(graph), seed).extend(feeds_of(data, graph.signature)).kept


@dataclass(frozen=True)
class Quantizer:
    """Makes the int8 graph of a prepared float graph.

    samples    samples against which weights are rounded; of other shapes as
               ``shape_variants.ShapeVariant``
    cache      layers of earlier runs with the same samples, so that none is recovered twice
    overrides  values and operators that accuracy control takes out of int8
    converted  see ``Converted``
    deadline   when recovery and the choice of int16 end, with the best so far
    begin      begins recovery's runs over samples, see ``recover``
    """

    candidate: Candidate
    config: QuantizationConfig
    samples: Sequence[Feeds] = ()
    progress: bool | str = "auto"
    cache: Cache = field(default_factory=Cache)
    overrides: PrecisionOverrides = NO_OVERRIDES
    converted: Converted | None = None
    deadline: Deadline = NEVER
    begin: Begin = SampleRuns

    def run(self) -> QuantizedGraph:
        """The int8 graph with its report, and the decisions that other shapes take over."""
        made, candidate = self.best(), self.candidate
        decisions = Decisions.of(made.plan, made.graph, candidate, self.config)
        report = report_of(made.plan)
        return QuantizedGraph(made.graph, report, decisions, candidate, made.plan, made.notes)

    def best(self) -> Made:
        """The int8 graph; with int16 activations chosen by trial, the less noisy one of both."""
        config, profile, plan = self.config, self.candidate.profile, self.plan()
        samples, floats = self.candidate.fitting(self.recovery_samples)
        made = self.made(self.overrides.applied_to(plan, profile, config), samples, floats)
        if samples and config.int16_activations == AUTO:
            made = self.with_int16(made, plan, samples, floats)
        if debug.verifying():
            made.graph.verify()
        debug.dump_ir("quantize", made.graph)
        return made

    def with_int16(
        self, plain: Made, plan: Plan, samples: Sequence[Feeds], floats: Sequence[Feeds]
    ) -> Made:
        """The graph with int16 where it helps most, if its outputs are less noisy, else ``plain``.

        The choice takes half of the time at most; the rest is for recovery.
        """
        found, profile, half = plain, self.candidate.profile, self.deadline.halfway
        wider = plan
        if not half.is_over:
            wider = with_chosen_int16(plan, profile, self.config, floats, self.progress, half)
        note = half.note(INT16_STAGE)
        if wider is not plan:
            other = self.made(wider, samples, floats)
            found = better(self.candidate.graph, plain, other)
            note = note or (self.deadline.note(INT16_STAGE) if other.notes else "")
        return replace(found, notes=(*found.notes, note)) if note else found

    @property
    def recovery_samples(self) -> Sequence[Feeds]:
        """Samples against which biases and weights are chosen."""
        is_fast = self.config.effort == FAST
        return Spread[Feeds](FAST_SAMPLES).extend(self.samples).kept if is_fast else self.samples

    def plan(self) -> Plan:
        """Precision and parameters of every value, before int16 is chosen by trial."""
        graph, profile, to_float = (
            self.candidate.graph,
            self.candidate.profile,
            self.overrides.to_float,
        )
        ranges = self.candidate.ranges
        plan = make_plan(graph, profile, self.config, ranges, to_float)
        plan = with_bodies(plan, partial(element_of, profile, self.config))
        return with_named_int16(plan, profile, self.config, strict=not to_float)

    def made(self, plan: Plan, samples: Sequence[Feeds], floats: Sequence[Feeds]) -> Made:
        """The int8 graph of a plan, its weights rounded against the samples; ``floats``: these
        with the float graphs for their shapes."""
        config, result = self.config, Converter(plan, self.config.per_channel).run()
        graph, is_compared = self.candidate.graph, config.int16_activations == AUTO
        if not samples or not (config.recovery or is_compared):
            return Made(result, plan)
        if config.recovery and self.converted is not None:
            self.converted(result)
        own = enumerate(self._integers(result, plan, samples))
        fitting = {place: feeds for place, feeds in own if feeds is not None}
        recovered = recover(
            graph,
            result,
            [floats[place] for place in fitting],
            config.recovery,
            config.per_channel,
            self.progress,
            self.cache,
            list(fitting.values()),
            [node.name for node in compared_nodes(graph)] if is_compared else [],
            self.deadline,
            self.begin,
        )
        pairs = zip(recovered.found, recovered.wanted, strict=True)
        ends_of_samples = dict(zip(fitting, pairs, strict=bool(recovered.found)))
        notes = (recovered.note,) if recovered.note else ()
        return Made(recovered.graph, plan, ends_of_samples, notes)

    def _integers(self, int8: Graph, plan: Plan, samples: Sequence[Feeds]) -> list[Feeds | None]:
        """The samples with the int8 graphs for their shapes; None for one unlike ``int8``."""
        decisions = Decisions.of(plan, int8, self.candidate, self.config)
        own = at_own_shapes(samples, decisions.apply)
        return [feeds if fits else None for feeds, fits in zip(own, fit(own, int8), strict=True)]


@dataclass(frozen=True)
class Made:
    """An int8 graph and its plan.  ``ends``: place of a sample -> the values by which outputs are
    compared (``output_noise.compared_nodes``), in this graph and in the float one.  ``notes``: what
    the deadline cut short.
    """

    graph: Graph
    plan: Plan
    ends: Mapping[int, tuple[Sequence[Array], Sequence[Array]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def noise(self, graph: Graph, places: Iterable[int]) -> float:
        """Noise of the outputs over their signal; ``graph``: the float one."""
        pairs = [self.ends[place] for place in places]
        return noise_to_signal(graph, [found for found, _ in pairs], [right for _, right in pairs])


def better(graph: Graph, plain: Made, other: Made) -> Made:
    """The other one if its outputs are less noisy, on the samples that both can run."""
    places = sorted(plain.ends.keys() & other.ends.keys())
    if not places:  # A deadline ended the runs.
        return plain
    return other if other.noise(graph, places) < WORTH * plain.noise(graph, places) else plain


def report_of(plan: Plan) -> QuantizationReport:
    """For every operator its precision and why it stayed float."""
    origins = plan.graph.origins
    return QuantizationReport(
        tuple(
            NodeReport(
                n.name,
                label_of(n, origins),
                plan.precision(n),
                plan.reasons.get(n, ""),
                n.has(Trait.KEEPS_QUANTIZATION),
            )
            for n in plan.graph.compute_nodes()
        )
    )


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
