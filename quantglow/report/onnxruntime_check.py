"""The float model, and the int8 model onnxruntime makes of it, run by onnxruntime.

The only place that imports it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from quantglow.errors import QuantglowError
from quantglow.types import Array

Feeds = Mapping[str, Array]
Runner = Callable[[Feeds], list[Array]]
"""Feeds to all outputs, in the model's order."""


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


def int8_runner(model: Any, samples: Iterable[Feeds], num_threads: int = 1) -> Runner:
    """``quant_pre_process`` and ``quantize_static`` of a ModelProto with fixed shapes.

    Its best setting: QDQ, u8 activations, s8 weights per channel, min-max ranges.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet():
        plain, prepared, target = (Path(folder) / f"{i}.onnx" for i in range(3))
        plain.write_bytes(model.SerializeToString())
        quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            _Reader(samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
        return float_runner(target.read_bytes(), num_threads)


@contextmanager
def _quiet() -> Iterator[None]:
    """onnxruntime's quantizer warns through the root logger about what it was just told to do."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _Reader(CalibrationDataReader):
    """Feeds one after the other, then None."""

    def __init__(self, samples: Iterable[Feeds]) -> None:
        self.remaining = iter(samples)

    def get_next(self) -> dict[str, Array] | None:  # type: ignore[override]
        feeds = next(self.remaining, None)
        return None if feeds is None else dict(feeds)


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
