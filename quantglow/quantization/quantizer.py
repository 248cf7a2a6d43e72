"""The quantizer: a float graph and its profile to an int8 graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantglow import debug
from quantglow.concise import Concise
from quantglow.graph.graph import Graph
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds, feeds_of
from quantglow.quantization.accuracy_control.precision_steps import NO_OVERRIDES, PrecisionOverrides
from quantglow.quantization.convert.converter import Converter
from quantglow.quantization.deadline import NEVER
from quantglow.quantization.decisions.decisions import Decisions
from quantglow.quantization.plan.int16 import AUTO, with_named_int16
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.recovery import Cache, Reservoir, capacity, recover
from quantglow.quantization.report import NodeReport, QuantizationReport
from quantglow.quantization.search.choose_int16 import with_chosen_int16
from quantglow.quantization.search.output_noise import compared_nodes, noise_to_signal
from quantglow.quantization.search.preparation import prepare
from quantglow.quantization.search.prepared import Prepared
from quantglow.quantization.search.trials import WORTH
from quantglow.quantization.shape_variants import at_own_shapes, fit
from quantglow.types import Array

Converted = Callable[[Graph], object]
"""Called with the int8 graph before its weights are rounded against samples, which takes long.
After that only the values of Constants differ, and a layer without a bias may have one."""


def quantize(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig | None = None,
    imported: Graph | None = None,
    data: Any = None,
) -> Graph:
    """The int8 graph of an optimized float graph; names and outputs stay.

    Raises ``ProfileMismatchError`` for the profile of another model and ``IgnoredScopeError`` for
    an exclusion that matches nothing.  ``imported``, the graph before optimization, lets
    exclusions name nodes that were fused away.  ``data``, calibration samples as ``profile`` takes
    them, turns on ``preparation`` (equalization, ranges by their effect) and accuracy recovery; see
    ``quantglow.quantization.recovery``.
    """
    return quantize_with_report(graph, profile, config, imported, data)[0]


def quantize_with_report(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig | None = None,
    imported: Graph | None = None,
    data: Any = None,
    progress: bool | str = "auto",
) -> tuple[Graph, QuantizationReport]:
    """``quantize``, and for every operator its precision and why it stayed float."""
    config = config or QuantizationConfig()
    samples = samples_of(data, graph, config.seed)
    prepared = prepare(graph, profile, config, samples, imported, progress)
    result, plan = quantize_prepared(prepared, config, imported, samples, progress)
    return result, report_of(plan)


def samples_of(data: Any, graph: Graph, seed: int = 0) -> list[Feeds]:
    """The samples that memory has room for, drawn by ``seed``; none if ``data`` is None."""
    if data is None:
        return []
    return Reservoir(capacity(graph), seed).extend(feeds_of(data, graph.signature)).kept


def quantize_prepared(
    prepared: Prepared,
    config: QuantizationConfig,
    imported: Graph | None = None,
    samples: Sequence[Feeds] = (),
    progress: bool | str = "auto",
    cache: Cache | None = None,
    overrides: PrecisionOverrides = NO_OVERRIDES,
    converted: Converted | None = None,
) -> tuple[Graph, Plan]:
    """``quantize`` of a prepared graph; returns the int8 graph and its plan.

    ``cache``: of earlier calls with the same samples, so that no layer is recovered twice;
    ``overrides``: values and operators that accuracy control takes out of int8; ``converted``: see
    ``Converted``.
    """
    graph, profile = prepared.graph, prepared.profile
    plan = make_plan(graph, profile, config, imported, prepared.ranges, overrides.to_float)
    plan = with_named_int16(plan, profile, config, imported, strict=not overrides.to_float)
    samples, floats = prepared.fitting(samples)
    arguments = (samples, floats, progress, cache or Cache(), converted)
    quantizer = _Quantizer(prepared, config, *arguments)
    made = quantizer.run(overrides.applied_to(plan, profile, config))
    if samples and config.int16_activations == AUTO and not NEVER.ends("choosing int16"):
        wider = with_chosen_int16(plan, profile, config, floats, progress)
        if wider is not plan:
            made = better(graph, made, quantizer.run(wider))
    result, plan = made.graph, made.plan
    if debug.verifying():
        result.verify()
    debug.dump_ir("quantize", result)
    return result, plan


@dataclass(frozen=True)
class _Quantizer:
    """Makes int8 graphs of plans of one prepared graph.  ``floats`` are the samples with the float
    graphs for their shapes.
    """

    prepared: Prepared
    config: QuantizationConfig
    samples: Sequence[Feeds]
    floats: Sequence[Feeds]
    progress: bool | str
    cache: Cache
    converted: Converted | None

    def run(self, plan: Plan) -> _Made:
        """The int8 graph of a plan, its weights rounded against the samples."""
        config, result = self.config, Converter(plan, self.config.per_channel).run()
        graph, is_compared = self.prepared.graph, config.int16_activations == AUTO
        if not self.samples or not (config.recovery or is_compared):
            return _Made(result, plan)
        if config.recovery and self.converted is not None:
            self.converted(result)
        own = enumerate(self._integers(result, plan))
        fitting = {place: feeds for place, feeds in own if feeds is not None}
        floats, integers = [self.floats[place] for place in fitting], list(fitting.values())
        ends = [node.name for node in compared_nodes(graph)] if is_compared else []
        arguments = (config.recovery, config.per_channel, self.progress, self.cache, integers)
        recovered = recover(graph, result, floats, *arguments, ends)
        pairs = zip(recovered.found, recovered.wanted, strict=True)
        ends_of_samples = dict(zip(fitting, pairs, strict=bool(recovered.found)))
        return _Made(recovered.graph, plan, ends_of_samples)

    def _integers(self, int8: Graph, plan: Plan) -> list[Feeds | None]:
        """The samples with the int8 graphs for their shapes; None for one unlike ``int8``."""
        decisions = Decisions.of(plan, int8, self.prepared, self.config)
        own = at_own_shapes(self.samples, decisions.apply)
        return [feeds if fits else None for feeds, fits in zip(own, fit(own, int8), strict=True)]


@dataclass(frozen=True)
class _Made:
    """An int8 graph and its plan.  ``ends``: place of a sample -> the values by which outputs are
    compared (``output_noise.compared_nodes``), in this graph and in the float one.
    """

    graph: Graph
    plan: Plan
    ends: Mapping[int, tuple[Sequence[Array], Sequence[Array]]] = field(default_factory=dict)

    def noise(self, graph: Graph, places: Iterable[int]) -> float:
        """Noise of the outputs over their signal; ``graph``: the float one."""
        pairs = [self.ends[place] for place in places]
        return noise_to_signal(graph, [found for found, _ in pairs], [right for _, right in pairs])


def better(graph: Graph, plain: _Made, other: _Made) -> _Made:
    """The other one if its outputs are less noisy, on the samples that both can run."""
    places = sorted(plain.ends.keys() & other.ends.keys())
    return other if other.noise(graph, places) < WORTH * plain.noise(graph, places) else plain


def report_of(plan: Plan) -> QuantizationReport:
    """For every operator its precision and why it stayed float."""
    return QuantizationReport(
        tuple(
            NodeReport(n.name, n.op, plan.precision(n), plan.reasons.get(n, ""))
            for n in plan.graph.compute_nodes()
        )
    )


@dataclass(frozen=True, repr=False)
class Quantized(Concise):
    """An int8 graph, the precision of each operator, and the decisions for other shapes.

    ``prepared`` and ``plan``: the float graph it was made from, and how.
    """

    graph: Graph
    report: QuantizationReport
    decisions: Decisions
    prepared: Prepared
    plan: Plan


def quantize_for_all_shapes(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig | None = None,
    data: Sequence[Feeds] | None = None,
    progress: bool | str = "auto",
    prepared: Prepared | None = None,
    cache: Cache | None = None,
    overrides: PrecisionOverrides = NO_OVERRIDES,
    converted: Converted | None = None,
) -> Quantized:
    """``quantize`` at the shapes of ``graph``, with the decisions that other shapes take over.

    ``data``: samples, all of which are used; of other shapes as ``shape_variants.ShapeVariant``;
    ``prepared``: an earlier result of ``prepare`` for ``graph``; ``cache``: layers recovered then;
    ``overrides``: values and operators that accuracy control takes out of int8; ``converted``: see
    ``Converted``.
    """
    config = config or QuantizationConfig()
    samples = data or ()
    ready = prepared or prepare(graph, profile, config, samples, progress=progress)
    arguments = (samples, progress, cache, overrides, converted)
    result, plan = quantize_prepared(ready, config, None, *arguments)
    decisions = Decisions.of(plan, result, ready, config)
    return Quantized(result, report_of(plan), decisions, ready, plan)
