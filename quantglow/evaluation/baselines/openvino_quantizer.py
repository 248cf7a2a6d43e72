"""The int8 model that NNCF makes of a float model, run by OpenVINO; both are optional."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.ort.float_results import feeds_from
from quantglow.ort.quantizer_input import behind
from quantglow.support.arrays import Array


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
    quantized = nncf.quantize(model, dataset, subset_size=len(samples), **options)
    openvino.save_model(quantized, target, compress_to_fp16=False)


def quantize(
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
    hidden = [behind(result.input_value(0), _original_of_copy) for result in model.get_results()]
    model.add_results([openvino.opset13.result(value) for value in hidden if value is not None])
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    answers = []
    for feeds in feeds_from(arrays, names):
        results = request.infer(feeds)
        answers += [np.array(results[index]) for index in range(len(results))]
    return answers


def _original_of_copy(value: Any) -> tuple[str, Any] | None:
    """The operator of a value of OpenVINO and its first operand; None for inputs."""
    node = value.get_node()
    return (node.get_type_name(), node.input_value(0)) if node.get_input_size() else None
