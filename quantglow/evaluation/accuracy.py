"""Accuracy figures of outputs and layers, their tables, and the verdict in words.

``headline`` is the first sentence of a report: the accuracy of int8 against float.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantglow.evaluation.metrics import CodeUse, bars
from quantglow.support.classes import Concise
from quantglow.support.display.tables import Table, number

if TYPE_CHECKING:
    from quantglow.quantization.quantizer import NodeReport


WORST, SUSPECTS = 10, 3
"""Number of layers shown in detail, and of those that a verdict names."""

MAX_DB = 100.0
"""SQNR in dB above which the figure of an output says no more."""

_TEXTS = ("name", "op", "precision", "reason")

UNSEEN = "that calibration did not see"
SAME = "that calibration used, too"
VALIDATION = "of the validation data"
"""Origin of the samples of the check."""

EVERY, FEWEST_SAMPLES = 5, 10
"""One sample in so many is held out of calibration, and none of fewer different samples."""

WHY_FEW = {
    UNSEEN: f"one in {EVERY} is held out, and large models are checked on fewer",
    SAME: f"none is held out of fewer than {FEWEST_SAMPLES} different ones",
}
"""The reason why a check has few samples, by their origin."""

CLOSENESS = (
    (40.0, 0.99, "very close to float"),
    (30.0, 0.97, "close to float"),
    (10.0, 0.8, "visibly off float"),
)
"""Minimum SQNR in dB of the worst output, minimum share of equal answers, and the words for
both."""

FAR = "far from float, and not usable as it is"

NOTHING_QUANTIZED = "no operator became int8; the reasons are in the table of layers"
"""Note of a report whose model is float after all."""

ALL_FLOAT_WARNING = f"WARNING: {NOTHING_QUANTIZED}. The outputs are those of the float model."
"""The headline then."""

ALL_FLOAT = "no operator is int8"
"""The verdict then."""


@dataclass(frozen=True)
class OutputAccuracy:
    """One output against the float model; ``top1_agreement`` is set if it looks like class
    scores, or has integers: then it is the share of equal answers.

    ``logits_db`` is the SQNR of the values behind a Softmax, a Sigmoid or a choice (ArgMax, TopK),
    which hide errors: on a few samples, by the interpreter.
    """

    name: str
    sqnr_db: float
    cosine: float
    max_error: float
    top1_agreement: float | None = None
    is_integer: bool = False
    logits_db: float | None = None

    @property
    def worst_db(self) -> float | None:
        """The least SQNR that counts; None for integers, whose values are no quantities."""
        figures = (None if self.is_integer else self.sqnr_db, self.logits_db)
        return min((figure for figure in figures if figure is not None), default=None)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> OutputAccuracy:
        rest = {key: value for key, value in data.items() if key != "is_integer"}
        return OutputAccuracy(**_figures(rest), is_integer=bool(data.get("is_integer", False)))


@dataclass(frozen=True, repr=False)
class LayerAccuracy(Concise):
    """One operator of the float graph.

    ``sqnr_local_db`` is the SQNR of its integer form alone, on exact operands;
    ``sqnr_accumulated_db`` includes the errors of all layers before it.  Both are None if its value
    no longer exists by itself (it was merged into the operator behind it), or if it was not
    measured.  ``sensitivity_db`` is the SQNR of the outputs if this layer alone had its error, if
    it was asked for.  ``codes`` are the codes of an integer result, None for a float result.
    ``moves``: it only moves values, with the rounding that they have.
    """

    name: str
    op: str
    precision: str
    reason: str = ""
    sqnr_local_db: float | None = None
    sqnr_accumulated_db: float | None = None
    sensitivity_db: float | None = None
    codes: CodeUse | None = None
    moves: bool = False

    @staticmethod
    def of(node: NodeReport) -> LayerAccuracy:
        """The entry of an operator before anything is measured."""
        return LayerAccuracy(node.name, node.op, node.precision, node.reason, moves=node.moves)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LayerAccuracy:
        """The object from the result of ``asdict`` and ``plain``."""
        codes = data.get("codes")
        rest = {key: value for key, value in data.items() if key not in ("codes", "moves")}
        use = None if codes is None else _code_use(codes)
        return LayerAccuracy(**_figures(rest), codes=use, moves=bool(data.get("moves", False)))


def worst_sqnr_db(outputs: Sequence[OutputAccuracy]) -> float | None:
    """SQNR of the worst output in dB, logits included; None if there is none."""
    return min((o.worst_db for o in outputs if o.worst_db is not None), default=None)


def decibels(value: float | None) -> str:
    """The SQNR of an output as text, up to ``MAX_DB``."""
    return f"> {MAX_DB:.0f}" if value is not None and value > MAX_DB else number(value)


def worst(layers: Sequence[LayerAccuracy], count: int = WORST) -> tuple[LayerAccuracy, ...]:
    """The int8 layers with the largest error, worst first: by sensitivity if known, else
    locally.
    """

    def by_error(layer: LayerAccuracy) -> tuple[float, float]:
        local, alone = layer.sqnr_local_db, layer.sensitivity_db
        return (math.inf if alone is None else alone, math.inf if local is None else local)

    known = [n for n in layers if n.precision != "float" and min(by_error(n)) < math.inf]
    return tuple(sorted(known, key=by_error)[:count])


def outputs_table(title: str, outputs: Sequence[OutputAccuracy]) -> Table:
    """Table of the outputs, with their logits if they are known."""
    logits = any(o.logits_db is not None for o in outputs)
    rows = [
        (
            o.name,
            decibels(None if o.is_integer else o.sqnr_db),
            *([decibels(o.logits_db)] if logits else []),
            number(None if o.is_integer else o.cosine, "{:.6f}"),
            number(o.max_error, "{:.4g}"),
            number(o.top1_agreement, "{:.1%}"),
        )
        for o in outputs
    ]
    numbers = (
        "SQNR dB",
        *(("logits dB",) if logits else ()),
        "cosine",
        "max error",
        "top-1 agreement",
    )
    return Table(title, ("output", *numbers), rows, frozenset(numbers))


def layers_table(layers: Sequence[LayerAccuracy]) -> Table:
    """Table of all operators, with the reason of float ones, and sensitivities if they are
    known.
    """
    alone = any(layer.sensitivity_db is not None for layer in layers)
    rows = [
        (
            layer.name,
            layer.op,
            layer.precision,
            *([number(layer.sensitivity_db)] if alone else []),
            number(layer.sqnr_local_db),
            number(layer.sqnr_accumulated_db),
            layer.reason,
        )
        for layer in layers
    ]
    counts = Counter(layer.precision for layer in layers)
    title = "Layers: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    numbers = (*(("alone dB",) if alone else ()), "local dB", "accumulated dB")
    columns = ("layer", "op", "precision", *numbers, "why float")
    return Table(title, columns, rows, frozenset(numbers))


def float_table(layers: Sequence[LayerAccuracy]) -> Table:
    """Table of operators that stayed float, and why."""
    rows = [(layer.name, layer.op, layer.reason) for layer in layers]
    return Table(f"Layers kept in float: {len(rows)}", ("layer", "op", "why float"), rows)


def with_figure(layer: LayerAccuracy) -> str:
    """A layer and the figure that ``worst`` sorts by."""
    alone = layer.sensitivity_db
    return f"{layer.name} ({number(layer.sqnr_local_db if alone is None else alone)} dB)"


def worst_tables(layers: Sequence[LayerAccuracy]) -> tuple[Table, Table]:
    """Table of some layers with all that is known of them: their errors, and their codes."""
    alone = any(layer.sensitivity_db is not None for layer in layers)
    errors = [
        (
            layer.name,
            layer.op,
            *([number(layer.sensitivity_db)] if alone else []),
            number(layer.sqnr_local_db),
            number(layer.sqnr_accumulated_db),
        )
        for layer in layers
    ]
    figures = (*(["alone dB"] if alone else []), "local dB", "accumulated dB")
    uses = [(layer.name, *_code_cells(layer.codes)) for layer in layers if layer.codes]
    shares = ("limits", "codes", "range seen", "99.9 %")
    return (
        Table(
            f"Worst int8 layers: {len(layers)}",
            ("layer", "op", *figures),
            errors,
            frozenset(figures),
        ),
        Table("Their codes", ("layer", *shares, "codes taken"), uses, frozenset(shares)),
    )


def _code_cells(use: CodeUse) -> tuple[str, ...]:
    return (
        f"{use.saturation:.2%}",
        f"{use.used}/{use.levels}",
        number(use.seen, "{:.0%}"),
        number(use.core, "{:.0%}"),
        bars(use.shares),
    )


def plain(value: Any) -> Any:
    """Nested plain data in which every float is finite: infinite figures become ``"inf"``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Texts unchanged, everything else as a float or None."""
    return {
        key: str(value) if key in _TEXTS else None if value is None else float(value)
        for key, value in entry.items()
    }


def _code_use(data: Mapping[str, Any]) -> CodeUse:
    whole = {key: int(data[key]) for key in ("levels", "used")}
    shares = tuple(map(float, data["shares"]))
    rest = {key: value for key, value in data.items() if key not in {*whole, "shares"}}
    return CodeUse(**_figures(rest), **whole, shares=shares)


@dataclass(frozen=True)
class RightAnswers:
    """Shares of right answers of the float and of the int8 model, among ``labels``."""

    labels: int
    float_share: float
    int8_share: float

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RightAnswers:
        """The object from the result of ``asdict``."""
        shares = float(data["float_share"]), float(data["int8_share"])
        return RightAnswers(int(data["labels"]), *shares)

    def __str__(self) -> str:
        return (
            f"Float finds {self.float_share:.2%} and int8 {self.int8_share:.2%} "
            f"of {self.labels} labels"
        )


def headline(
    outputs: Sequence[OutputAccuracy],
    samples: int,
    origin: str,
    right: RightAnswers | None,
    has_warnings: bool,
    subject: str = "int8 is",
) -> str:
    """One or two sentences; ``has_warnings`` if the calibration data is unusual."""
    if not outputs:
        return ""
    answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
    figures = [*worst_figure(outputs)]
    figures += [f"{min(answers):.1%} equal answers"] if answers else []
    shown = f"{subject} {verdict(outputs)}: {', '.join(figures)}"
    few = f" ({WHY_FEW[origin]})" if samples < FEWEST_SAMPLES and origin in WHY_FEW else ""
    text = f"{shown} on {samples} sample(s) {origin}".rstrip() + few + "."
    text += f" {right}." if right else ""
    return f"{text} But see the warnings." if has_warnings else text


def worst_figure(outputs: Sequence[OutputAccuracy]) -> Iterator[str]:
    """The SQNR of the worst output; none if all have integers."""
    worst = worst_sqnr_db(outputs)
    if worst is not None:
        is_logits = worst in [output.logits_db for output in outputs]
        yield f"{decibels(worst)} dB{' in the logits' if is_logits else ''}"


def verdict(outputs: Sequence[OutputAccuracy]) -> str:
    """The words for the worst output; empty if no outputs were compared."""
    if not outputs:
        return ""
    answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
    worst = worst_sqnr_db(outputs)
    return closeness(math.inf if worst is None else worst, min(answers, default=1.0))


def is_close(words: str) -> bool:
    """Whether a verdict needs no look at layers."""
    return words in [close for _, _, close in CLOSENESS[:2]]


def closeness(sqnr_db: float, agreement: float) -> str:
    """Closeness of two models in words."""
    known = (words for db, same, words in CLOSENESS if sqnr_db >= db and agreement >= same)
    return next(known, FAR)
