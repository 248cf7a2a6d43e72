"""The int8 model that onnxruntime's quantizer makes of a float model, run by onnxruntime."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from quantglow.backends.onnxruntime.session import Session
from quantglow.report.outputs import Feeds, Runner
from quantglow.types import Array


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
        return Session(target.read_bytes(), num_threads).run


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the root logger: onnxruntime's quantizer warns about the settings that it was
    given.
    """
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
