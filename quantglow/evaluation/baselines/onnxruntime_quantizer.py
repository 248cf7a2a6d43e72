"""The int8 model that onnxruntime's quantizer makes of a float model, run by onnxruntime."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from quantglow.evaluation.outputs import Feeds, Runner
from quantglow.ort.float_results import feeds_from
from quantglow.ort.session import Session
from quantglow.support.arrays import Array


def int8_runners(
    model: Any, samples: Iterable[Feeds], num_threads: int = 1
) -> tuple[Runner, Runner]:
    """``quantize_file`` of a ModelProto, run by onnxruntime: as users run it; with exact sums."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(model.SerializeToString())
        quantize_file(source, target, samples)
        load = partial(Session, target.read_bytes(), num_threads)
        return load(exact_sums=False).run, load(exact_sums=True).run


def quantize_file(
    source: Path, target: Path, samples: Iterable[Feeds], method: str = "MinMax"
) -> None:
    """``quant_pre_process`` and ``quantize_static`` of a model from ``quantizer_input``.

    Its best setting: QDQ, u8 activations, s8 weights per channel; ``method`` is a member of
    ``CalibrationMethod``.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet():
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            SampleReader(samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
        )


def quantize(
    arrays: Sequence[Array], source: str, target: str, names: Sequence[str], method: str
) -> list[Array]:
    """``quantize_file`` in a child process: its seconds."""
    start = time.perf_counter()
    quantize_file(Path(source), Path(target), feeds_from(arrays, names), method)
    return [np.array(time.perf_counter() - start)]


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


class SampleReader(CalibrationDataReader):
    """Feeds one after the other, then None."""

    def __init__(self, samples: Iterable[Feeds]) -> None:
        self.remaining = iter(samples)

    def get_next(self) -> dict[str, Array] | None:  # type: ignore[override]
        feeds = next(self.remaining, None)
        return None if feeds is None else dict(feeds)
