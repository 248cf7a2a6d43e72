"""A model run by onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

from quantglow.errors import QuantglowError
from quantglow.report.outputs import Feeds, Runner
from quantglow.types import Array


class ReferenceRuntimeError(QuantglowError):
    """onnxruntime cannot load or run the model; its message is kept."""


def float_runner(model: Any, num_threads: int = 1) -> Runner:
    """The model (path, bytes or ModelProto) in an onnxruntime session.

    Raises ``ReferenceRuntimeError`` when onnxruntime refuses the model.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(_loadable(model), options, ["CPUExecutionProvider"])
    except _failures() as error:
        raise ReferenceRuntimeError(f"onnxruntime cannot load the model: {error}") from error

    def run(feeds: Feeds) -> list[Array]:
        try:
            return [np.asarray(value) for value in session.run(None, dict(feeds))]
        except _failures() as error:
            raise ReferenceRuntimeError(f"onnxruntime cannot run the model: {error}") from error

    return run


def _loadable(model: Any) -> str | bytes:
    """What a session takes: the path (weights may lie beside it), or the bytes of the model."""
    if hasattr(model, "SerializeToString"):
        return bytes(model.SerializeToString())
    return bytes(model) if isinstance(model, bytes | bytearray | memoryview) else str(model)


def _failures() -> tuple[type[Exception], ...]:
    """What sessions raise: their exception types derive from RuntimeError or Exception only."""
    state = ort.capi.onnxruntime_pybind11_state
    found = [v for v in vars(state).values() if isinstance(v, type) and issubclass(v, Exception)]
    return (*found, RuntimeError, ValueError)
