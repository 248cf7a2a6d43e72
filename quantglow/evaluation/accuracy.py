"""Accuracy figures of outputs and layers, and right answers beside the float model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantglow.evaluation.metrics import CodeUse
from quantglow.support.classes import Concise
from quantglow.support.views import HasText

if TYPE_CHECKING:
    from quantglow.quantization.quantizer import NodeReport


WORST, SUSPECTS = 10, 3
"""Number of layers shown in detail, and of those that a verdict names."""

_TEXTS = ("name", "op", "precision", "reason")

UNSEEN = "that calibration did not see"
SAME = "that calibration used, too"
VALIDATION = "of the validation data"
"""Origin of the samples of the check."""

EVERY, FEWEST_SAMPLES = 5, 10
"""One sample in so many is held out of calibration, and none of fewer different samples."""

NOTHING_QUANTIZED = "no operator became int8; the reasons are in the table of layers"
NO_WEIGHTS_QUANTIZED = "no weights are quantized; the reasons are in the table of layers"
NO_MATRICES = "no weights are quantized: no product or table has a matrix of constants"
"""Notes of reports whose model is float after all."""


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
        fields = {key: value for key, value in data.items() if key != "is_integer"}
        return OutputAccuracy(**_figures(fields), is_integer=bool(data.get("is_integer", False)))


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

    @property
    def error_db(self) -> float:
        """SQNR of the outputs by this layer alone, else of its own results; infinite if neither is
        known.
        """
        figures = (self.sensitivity_db, self.sqnr_local_db)
        return next((figure for figure in figures if figure is not None), math.inf)

    @staticmethod
    def of(node: NodeReport) -> LayerAccuracy:
        """The entry of an operator before anything is measured."""
        return LayerAccuracy(node.name, node.op, node.precision, node.reason, moves=node.moves)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LayerAccuracy:
        """The object from the result of ``asdict`` and ``plain``."""
        codes = data.get("codes")
        fields = {key: value for key, value in data.items() if key not in ("codes", "moves")}
        use = None if codes is None else _code_use(codes)
        return LayerAccuracy(**_figures(fields), codes=use, moves=bool(data.get("moves", False)))


def worst_sqnr_db(outputs: Sequence[OutputAccuracy]) -> float | None:
    """SQNR of the worst output in dB, logits included; None if there is none."""
    return min((o.worst_db for o in outputs if o.worst_db is not None), default=None)


def worst(layers: Sequence[LayerAccuracy], count: int = WORST) -> tuple[LayerAccuracy, ...]:
    """The int8 layers with the largest error, worst first: by sensitivity if known, else
    locally.
    """

    def by_error(layer: LayerAccuracy) -> tuple[float, float]:
        local, alone = layer.sqnr_local_db, layer.sensitivity_db
        return (math.inf if alone is None else alone, math.inf if local is None else local)

    measured = [n for n in layers if n.precision != "float" and min(by_error(n)) < math.inf]
    return tuple(sorted(measured, key=by_error)[:count])


def gain_db(layer: LayerAccuracy, layers: Sequence[LayerAccuracy]) -> float | None:
    """The estimated gain in the outputs if a layer has no error, in dB: noise powers add.

    None without sensitivities, or if the other layers have no error.
    """
    powers = {
        n.name: 10 ** (-n.sensitivity_db / 10) for n in layers if n.sensitivity_db is not None
    }
    total, alone = sum(powers.values()), powers.get(layer.name, 0.0)
    return 10 * math.log10(total / (total - alone)) if 0 < alone < total else None


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
    fields = {key: value for key, value in data.items() if key not in {*whole, "shares"}}
    return CodeUse(**_figures(fields), **whole, shares=shares)


@dataclass(frozen=True)
class RightAnswers(HasText):
    """Shares of right answers of the float and of the int8 model, among ``labels``."""

    labels: int
    float_share: float
    int8_share: float

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RightAnswers:
        """The object from the result of ``asdict``."""
        shares = float(data["float_share"]), float(data["int8_share"])
        return RightAnswers(int(data["labels"]), *shares)
