"""PageSource: the model behind the figures of a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from quantglow.concise import Concise
from quantglow.graph.graph import Graph
from quantglow.options import IgnoredScope, QuantizationConfig
from quantglow.profiling import Histogram
from quantglow.profiling.drawing import Range
from quantglow.types import TensorType

UNNAMED = "model"
LEVELS = 256
"""Number of codes of int8: a value within a step of the range is rounded, not clipped."""


@dataclass(frozen=True, repr=False)
class PageSource(Concise):
    """The name of a model, histograms of its values by name, options, and a timeline in Chrome's
    format.
    """

    title: str = UNNAMED
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, Any] | None = None

    @staticmethod
    def of(
        model: Any,
        histograms: Mapping[str, Histogram],
        config: QuantizationConfig,
        trace: Mapping[str, Any] | None = None,
    ) -> PageSource:
        """The source of the page of what was made of ``model``."""
        return PageSource(name_of(model), histograms, texts_of(config), trace)


def name_of(model: Any) -> str:
    """The name of a model's file without its folder, which the page keeps to itself."""
    return Path(model).name if isinstance(model, str | os.PathLike) else UNNAMED


def ranges_of(graph: Graph) -> dict[str, Range]:
    """The range of each quantized value; that of a conversion counts for the value in its name."""
    found: dict[str, Range] = {}
    for node in graph.nodes:
        if (stored := stored_range(node.type)) is not None:
            found[node.name] = stored
            found.setdefault(node.name.rpartition(":")[0], stored)
    return found


def stored_range(kind: TensorType) -> Range | None:
    """The reals of the lowest and the highest code; None for float, and for a range per channel."""
    if kind.quant is None or kind.quant.axis is not None:
        return None
    params = kind.params
    low, high = (float(params.scale) * (code - params.zero_point) for code in kind.dtype.limits)
    return low, high


def texts_of(config: QuantizationConfig) -> dict[str, str]:
    """The options as texts, without those that are for weights in groups alone."""
    unused = () if config.weights else ("weights", "group_size", "activations", "symmetric_weights")
    names = (each.name for each in fields(config) if each.name not in unused)
    return {name: text_of(getattr(config, name)) for name in names}


def text_of(value: Any) -> str:
    """An option in words."""
    if isinstance(value, IgnoredScope):
        return text_of((*value.names, *value.patterns, *value.types))
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def clipped_share(histogram: Histogram, stored: Range) -> float:
    """The share of the profiled values that a range does not hold, but one step beyond it."""
    low, high = stored
    step = (high - low) / LEVELS
    centres, counts = histogram.centres, histogram.counts
    outside = (centres < low - step) | (centres > high + step)
    return float(counts[outside].sum() / counts.sum())
