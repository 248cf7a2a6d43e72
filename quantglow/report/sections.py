"""Sections of a report: summary, fallbacks, programs, precision overrides, and advice.

The summary has the result in four lines, accuracy, size, share of int8 and speed, and the next
step.  Fallbacks are operators that other backends compiled, with the reasons; programs serve the
shapes of a model with free dimensions; overrides are what accuracy control took out of int8, with
their cost.  Advice on a layer with a large error is a finding, and the flags that mend it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantglow.evaluation.baselines.latency import MeasuredLatency
from quantglow.evaluation.int8_share import Int8Share
from quantglow.evaluation.report import PrecisionOverride
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.report.memory import weights_bars
from quantglow.report.speed import latency_bars
from quantglow.report.tables import Bar, Column, ReportTable, html_bars, paragraph

if TYPE_CHECKING:
    from quantglow.ort.fallback import FallbackNode
    from quantglow.runtime.shapes.specializations import ServedShapes
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict

from quantglow.evaluation.accuracy import LayerAccuracy, gain_db, worst
from quantglow.evaluation.layer_speed import LayerSpeed, float_cost
from quantglow.evaluation.metrics import CORE_PERCENT

NOT_CHECKED = "Accuracy: not checked."
NOT_MEASURED = "Speed: not measured."
FULL_DB = 60.0
"""SQNR in dB at which the bar of accuracy is full."""


@dataclass(frozen=True)
class Summary:
    """The lines that a report begins with, and the next step, with which it ends.

    ``accuracy`` is a sentence, ``verdict`` its words and ``sqnr_db`` its figure; ``look_at`` are
    layers to look at, worst first; ``operators`` counts operators by precision.
    """

    accuracy: str
    verdict: str
    sqnr_db: float | None
    look_at: Sequence[str]
    operators: dict[str, int]
    sizes: WeightSizes | None
    latency: MeasuredLatency | None
    int8_share: Int8Share | None
    next_step: str

    def lines(self) -> Iterator[str]:
        """Accuracy, size, share of int8, speed, the next step."""
        yield from self.figures()
        yield self.step

    @property
    def step(self) -> str:
        """The next step as a sentence."""
        return f"Next: {self.next_step}"

    def figures(self) -> Iterator[str]:
        """Accuracy, layers to look at, size, share of int8, speed."""
        yield self.accuracy or NOT_CHECKED
        if self.look_at:
            yield f"Look at these layers: {', '.join(self.look_at)}."
        yield f"Size: {self.size}."
        if self.int8_share:
            yield f"{self.int8_share}."
        yield f"Speed: {self.latency}." if self.latency else NOT_MEASURED

    @property
    def size(self) -> str:
        """Weights before and after, and the number of operators of each precision."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.operators.items())
        operators = f"operators: {counts}"
        return f"{self.sizes}; {operators}" if self.sizes else operators

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return {
            "verdict": self.verdict,
            "accuracy": self.accuracy,
            "look_at": [*self.look_at],
            "operators": self.operators,
            "weights": self.sizes.to_json() if self.sizes else None,
            "latency": self.latency.to_json() if self.latency else None,
            "int8_share": self.int8_share.to_json() if self.int8_share else None,
            "next_step": self.next_step,
        }

    def html(self) -> str:
        """The lines, with bars beside the figures."""
        lines = "".join(paragraph(line, "margin:2px 0") for line in self.lines())
        return f"<div>{lines}{''.join(map(html_bars, self.charts()))}</div>"

    def charts(self) -> Iterator[Sequence[Bar]]:
        """Bars of accuracy, size and speed, as far as they are known."""
        if self.sqnr_db is not None:
            share = min(1.0, max(0.0, self.sqnr_db / FULL_DB))
            yield (Bar("accuracy", share, f"{self.sqnr_db:.1f} dB", is_ours=True),)
        if self.sizes:
            yield weights_bars(self.sizes)
        if self.latency:
            yield latency_bars(self.latency)


FALLBACK: tuple[Column[FallbackNode], ...] = (
    Column("layer", lambda node: node.name),
    Column("op", lambda node: node.op),
    Column("runs in", lambda node: node.backend),
    Column("why", lambda node: node.reason),
)

PROGRAMS: tuple[Column[ServedShapes], ...] = (
    Column("shapes", lambda program: program.shapes),
    Column("made", lambda program: program.program),
    Column("where", lambda program: "; ".join(program.conditions)),
    Column("elsewhere", lambda program: program.elsewhere),
)

OVERRIDES: tuple[Column[PrecisionOverride], ...] = (
    Column("layer", lambda override: override.name),
    Column("to", lambda override: override.precision),
    Column("error taken away", lambda override: override.error, "{:.2g}"),
    Column("adds µs", lambda override: 1e6 * override.seconds, "{:.3g}"),
)


def fallback_table(nodes: Sequence[FallbackNode]) -> ReportTable:
    """A row for each operator that quantglow's own code generators do not run."""
    counts = Counter(node.backend for node in nodes)
    title = "Fallback: " + ", ".join(f"{count} to {name}" for name, count in counts.items())
    return ReportTable.of(title, FALLBACK, nodes)


def programs_table(programs: Sequence[ServedShapes]) -> ReportTable:
    """A row for each program."""
    return ReportTable.of(f"Programs: {len(programs)} for the shapes so far", PROGRAMS, programs)


def overrides_table(overrides: Sequence[PrecisionOverride]) -> ReportTable:
    """A row for each override, in the order of their benefit for the cost."""
    counts = Counter(override.precision for override in overrides)
    kinds = ", ".join(f"{count} to {precision}" for precision, count in sorted(counts.items()))
    total = 1e6 * sum(override.seconds for override in overrides)
    title = f"Precision overrides by accuracy control: {kinds}; about {total:.3g} µs on one core"
    return ReportTable.of(title, OVERRIDES, overrides)


SHOWN = 6
"""Maximum number of layers that get advice."""
GOOD_DB, GOOD_LOCAL_DB = 40.0, 30.0
"""SQNR above which a layer needs no advice: of the outputs by it alone, and of its own results."""
NEAR_DB = 6.0
"""Distance in dB from the worst layer beyond which a layer adds little to the error."""
OUTLIERS = 0.35
"""Share of the range that most values take; less is a sign of outliers."""
CLIPPED = 0.001
"""Share of values outside of the range; more is a sign that it is too narrow."""
FEW_CODES = 0.25
"""Share of the codes that occur; less is a sign of a range that is too wide."""
INT8_LEVELS = 256
CLIP, WIDEN = "--calibrate-method percentile --percentile 99.99", "--calibrate-method minmax"
EXPRESSION = "re:"
"""Beginning of entries of flags that are regular expressions."""


@dataclass(frozen=True)
class Remedy:
    """The effect of a flag, and the flag, quoted for a shell."""

    text: str
    flag: str


@dataclass(frozen=True)
class Advice:
    """A layer, what is wrong with it, and what mends it, the most likely remedy first."""

    layer: str
    finding: str
    remedies: tuple[Remedy, ...]

    def to_json(self) -> dict[str, Any]:
        """The advice in types that ``json`` writes."""
        return asdict(self)


def advice(
    layers: Sequence[LayerAccuracy],
    speeds: Sequence[LayerSpeed] = (),
    clipped: Mapping[str, float] | None = None,
) -> list[Advice]:
    """Advice for the worst layers; nothing for layers whose error is small.

    ``clipped``: the share of each layer's values outside of its range.
    """
    lines = []
    for layer in _significant(layers):
        outside = (clipped or {}).get(layer.name, 0.0)
        effects = tuple(alone(layer, layers, speeds))
        lines.append(Advice(layer.name, *diagnose(layer, outside, effects)))
    return lines


def _significant(layers: Sequence[LayerAccuracy]) -> list[LayerAccuracy]:
    """The worst layers whose error is large, and near that of the worst one."""
    largest = worst(layers, SHOWN)
    near = min((layer.error_db for layer in largest), default=0.0) + NEAR_DB
    return [layer for layer in largest if layer.error_db < min(near, _good_db(layer))]


def _good_db(layer: LayerAccuracy) -> float:
    """The SQNR that is good enough for the figure that is known of a layer."""
    return GOOD_LOCAL_DB if layer.sensitivity_db is None else GOOD_DB


def diagnose(
    layer: LayerAccuracy, outside: float, effects: tuple[Remedy, ...]
) -> tuple[str, tuple[Remedy, ...]]:
    """The finding about a layer, and all remedies."""
    cause, mended = _causes(layer, outside)
    measured = "the outputs" if layer.sensitivity_db is not None else "its results"
    finding = f"{layer.error_db:.1f} dB in {measured} by this {layer.op} alone. {cause}"
    return finding, (*mended, *effects)


def _causes(layer: LayerAccuracy, outside: float) -> tuple[str, tuple[Remedy, ...]]:
    """The likely cause of an error, as far as codes and range show, and flags against it."""
    use = layer.codes
    if use is not None and use.core is not None and use.core < OUTLIERS:
        text = f"Outliers: {CORE_PERCENT} % of the values take {use.core:.0%} of the range."
        return text, (Remedy("Clip the outliers of all layers at 99.99 %:", CLIP),)
    if outside > CLIPPED:
        text = f"Clipping: {outside:.1%} of the values lie outside of the range."
        return text, (Remedy("Keep the whole range of all layers:", WIDEN),)
    if use is not None and use.used < FEW_CODES * use.levels:
        return f"Few codes: the values take {use.used} of {use.levels}.", ()
    return "No outliers, no clipping: the outputs amplify its rounding.", ()


def alone(
    layer: LayerAccuracy, layers: Sequence[LayerAccuracy], speeds: Sequence[LayerSpeed]
) -> Iterator[Remedy]:
    """Flags for this layer only, with their estimated effect.

    A layer that only moves values has the rounding of its operand: float would change nothing.
    """
    if not layer.moves:
        gain, cost = gain_db(layer, layers), float_cost(layer.name, speeds)
        effect = "" if gain is None else f", about +{gain:.1f} dB"
        effect += "" if cost is None else f" for {cost:+.1%} time"
        yield Remedy(f"Keep it in float{effect}:", option_flag("--nodes-to-exclude", layer.name))
    if layer.codes is not None and layer.codes.levels == INT8_LEVELS:
        flag = option_flag("--int16-activations", layer.name)
        yield Remedy("Store its values as int16:", flag)


def option_flag(option: str, name: str) -> str:
    """A flag that takes a name literally, whatever is in it, quoted for a shell.

    Characters that a terminal does not print are written by their number, in an expression.
    """
    if name.startswith(EXPRESSION) or not name.isprintable():
        letters = (re.escape(c) if c.isprintable() else f"\\U{ord(c):08x}" for c in name)
        name = f"{EXPRESSION}^{''.join(letters)}$"
    return f"{option}{'=' if name.startswith('-') else ' '}{shlex.quote(name)}"
