"""Voice activity in int8: silero-vad 6.2.3 against its float self, call after call.

``python -m benchmarks voice [--seconds S]``.  ``forced``: every call begins with the state of the
float network; ``free``: with the state of the call before, as in use.  onnxruntime's
``quantize_static`` gets the branch of each sampling rate as a model of its own, because it leaves
the bodies of If in float.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_static

import quantglow as qg
from quantglow.evaluation.baselines.onnxruntime_quantizer import SampleReader
from quantglow.support.arrays import Array
from tools.downloads.silero_vad import CHUNKS, calls, model_file

BRANCHES = {16000: "then_branch", 8000: "else_branch"}
CALIBRATION_SECONDS = 2.0


def session(model: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options)


def branch(model: str, rate: int) -> onnx.ModelProto:
    """The model of one sampling rate: a branch of the network's If."""
    whole = onnx.load(model)
    (choice,) = (node for node in whole.graph.node if node.op_type == "If")
    (body,) = (a.g for a in choice.attribute if a.name == BRANCHES[rate])
    inputs = [i for i in whole.graph.input if i.name != "sr"]
    constants = [*body.initializer, *whole.graph.initializer]
    graph = onnx.helper.make_graph(body.node, "branch", inputs, body.output, constants)
    return onnx.helper.make_model(
        graph, opset_imports=whole.opset_import, ir_version=whole.ir_version
    )


class Branch:
    """The model of one rate, with the inputs of the whole network."""

    def __init__(self, model: Path) -> None:
        self.session = session(str(model))

    def run(self, names: Any, feeds: dict[str, Array]) -> Any:
        return self.session.run(names, without_rate(feeds))


def without_rate(feeds: dict[str, Array]) -> dict[str, Array]:
    return {name: value for name, value in feeds.items() if name != "sr"}


def onnxruntime_int8(model: str, rate: int, reference: Any, folder: Path) -> Branch:
    """``quantize_static`` with u8 activations and s8 weights per channel."""
    source, result = folder / f"{rate}.onnx", folder / f"{rate}.int8.onnx"
    onnx.save(branch(model, rate), source)
    samples = [without_rate(feeds) for feeds, _ in calls(reference, rate, CALIBRATION_SECONDS)]
    quantize_static(
        source, result, SampleReader(samples), per_channel=True, weight_type=QuantType.QInt8
    )
    return Branch(result)


def sqnr(expected: list[float], actual: list[float]) -> float:
    a, b = np.array(expected), np.array(actual)
    return 10 * float(np.log10(np.square(a).sum() / np.square(a - b).sum()))


def row(name: str, model: Any, reference: Any, rate: int, seconds: float) -> str:
    """A line of Markdown."""
    known = list(calls(reference, rate, seconds))
    expected = [probability for _, probability in known]
    forced = [float(model.run(None, feeds)[0][0, 0]) for feeds, _ in known]
    free = [probability for _, probability in calls(model, rate, seconds)]
    away = float(np.abs(np.subtract(expected, free)).mean())
    return (
        f"| {name} | {rate} | {sqnr(expected, forced):.1f} | {sqnr(expected, free):.1f} "
        f"| {away:.4f} |"
    )


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seconds", type=float, default=6.0)


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    model = model_file()
    reference = session(model)
    samples = [feeds for rate in CHUNKS for feeds, _ in calls(reference, rate, CALIBRATION_SECONDS)]
    ours: dict[str, dict[str, Any]] = {
        "quantglow": {},
        "quantglow int16": {"int16_activations": "auto"},
    }
    print("| quantizer | rate | forced dB | free dB | mean difference |")
    print("| --- | --- | --- | --- | --- |")
    for name, chosen in ours.items():
        compiled = qg.quantize_and_compile(model, samples, progress=False, verify=False, **chosen)
        for rate in CHUNKS:
            print(row(name, compiled, reference, rate, options.seconds), flush=True)
    with TemporaryDirectory() as folder:
        for rate in CHUNKS:
            theirs = onnxruntime_int8(model, rate, reference, Path(folder))
            print(row("onnxruntime static", theirs, reference, rate, options.seconds), flush=True)
    return 0
