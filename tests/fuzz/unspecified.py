"""Results that ONNX leaves open, so that they depend on onnxruntime's kernels.

Extremes of NaN: ONNX's reference, NumPy and quantglow give NaN; onnxruntime ignores NaN or gives
it, by operator, length and processor.

The loss of a single class: a zero of either sign, which Reciprocal turns into infinities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.generators.onnx_models.models import Feeds, read_by

Values = NDArray[np.generic]
Run = Callable[[onnx.ModelProto, Feeds], list[Any]]
"""onnxruntime."""

EXTREMES = (
    *("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "MaxRoiPool"),
    *("TopK", "ArgMax", "ArgMin", "Hardmax"),
)
LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def holds_nan(values: Values) -> bool:
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def holds_no_numbers(values: Values) -> bool:
    return not bool(np.isfinite(values).all())


def has_one_class(values: Values) -> bool:
    return values.shape[1] == 1


OPEN: dict[str, Callable[[Values], bool]] = {
    **dict.fromkeys(EXTREMES, holds_nan),
    **dict.fromkeys(LOSSES, has_one_class),
    "LRN": holds_no_numbers,
}
"""Operator -> its first operands with an open result."""


def unspecified_outputs(model: onnx.ModelProto, feeds: Feeds, run: Run) -> frozenset[str]:
    """The outputs that depend on an open result."""
    values = operands(model, feeds, run)
    found: set[str] = set()
    for node in model.graph.node:
        is_open = node.op_type in OPEN and OPEN[node.op_type](values[node.input[0]])
        if is_open or not found.isdisjoint(read_by(node)):
            found.update(node.output)
    return frozenset(found.intersection(output.name for output in model.graph.output))


def operands(model: onnx.ModelProto, feeds: Feeds, run: Run) -> dict[str, Values]:
    """The first operands of the operators in ``OPEN``."""
    names = dict.fromkeys(node.input[0] for node in model.graph.node if node.op_type in OPEN)
    if not names:
        return {}
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, run(shown, feeds), strict=True))
