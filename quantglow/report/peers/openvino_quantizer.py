"""The int8 model that NNCF makes of a float model, run by OpenVINO; both are optional."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.report.accuracy.sample_arrays import feeds_from
from quantglow.types import Array


def quantize_file(
    source: Path, target: Path, samples: Sequence[Mapping[str, Array]], **options: Any
) -> None:
    """``nncf.quantize`` on OpenVINO's form of an ONNX file, on all samples; ``target``: .xml."""
    import nncf  # optional
    import openvino  # optional

    if "preset" in options:
        options["preset"] = nncf.QuantizationPreset[options["preset"]]
    model = openvino.Core().read_model(source)
    dataset = nncf.Dataset([dict(feeds) for feeds in samples])
    made = nncf.quantize(model, dataset, subset_size=len(samples), **options)
    openvino.save_model(made, target, compress_to_fp16=False)


def quantized(
    arrays: Sequence[Array], source: str, target: str, names: Sequence[str]
) -> list[Array]:
    """``quantize_file`` in a child process: its seconds without those of the import."""
    import nncf  # optional
    import openvino  # noqa: F401 - optional

    logging.getLogger(nncf.__name__).setLevel(logging.ERROR)
    start = time.perf_counter()
    quantize_file(Path(source), Path(target), feeds_from(arrays, names))
    return [np.array(time.perf_counter() - start)]


def outputs(arrays: Sequence[Array], path: str, names: Sequence[str]) -> list[Array]:
    """All outputs of each sample in turn, and the logits of those that hide them, in a child
    process."""
    import openvino  # optional

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().read_model(path)
    hidden = [logits_behind(result.input_value(0)) for result in model.get_results()]
    model.add_results([openvino.opset13.result(value) for value in hidden if value is not None])
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    found = []
    for feeds in feeds_from(arrays, names):
        results = request.infer(feeds)
        found += [np.array(results[index]) for index in range(len(results))]
    return found


VIEWS = frozenset(("Convert", "FakeQuantize", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators of OpenVINO that keep values, up to their rounding."""

HIDING = frozenset(("LogSoftmax", "Sigmoid", "Softmax", "SoftMax", "TopK"))
"""Operators whose results are probabilities or choices."""


def logits_behind(value: Any) -> Any:
    """The operand of the first operator behind a value, and views of it, that hides errors; None
    if there is none."""
    node = value.get_node()
    while node.get_type_name() in VIEWS:
        node = node.input_value(0).get_node()
    if node.get_type_name() not in HIDING:
        return None
    operand = node.input_value(0)
    behind = logits_behind(operand)
    return operand if behind is None else behind
