"""Layers as rows of figures: plain data for the table, the colours and the details of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantglow.report.accuracy.accuracy import LayerAccuracy, plain
from quantglow.report.accuracy.codes import CodeUse
from quantglow.report.speed.speed import LayerSpeed

PERCENT = 100


def layer_rows(
    layers: Sequence[LayerAccuracy], speeds: Sequence[LayerSpeed]
) -> list[dict[str, Any]]:
    """A row for each layer: decibels, shares in percent, milliseconds; None where not measured."""
    times = {speed.name: speed for speed in speeds}
    return [layer_row(layer, times.get(layer.name)) for layer in layers]


def layer_row(layer: LayerAccuracy, speed: LayerSpeed | None) -> dict[str, Any]:
    """The figures of a layer; ``ms`` is the time in the precision that it has."""
    figures = {
        "name": layer.name,
        "op": layer.op,
        "precision": layer.precision,
        "reason": layer.reason,
        "alone": layer.sensitivity_db,
        "local": layer.sqnr_local_db,
        "accumulated": layer.sqnr_accumulated_db,
        "ms": None if speed is None else milliseconds(speed),
        "float_ms": None if speed is None else speed.float_ms,
        **code_figures(layer.codes),
    }
    return dict(plain(figures))


def code_figures(use: CodeUse | None) -> Mapping[str, float | None]:
    """The use of a layer's integers, in percent but for the number of codes."""
    if use is None:
        return {}
    shares = {"limits": use.saturation, "seen": use.seen, "core": use.core}
    percents = {key: None if share is None else PERCENT * share for key, share in shares.items()}
    return {**percents, "codes": use.used}


def milliseconds(speed: LayerSpeed) -> float:
    """The time of a layer in its precision."""
    return speed.float_ms if speed.precision == "float" else speed.int8_ms
