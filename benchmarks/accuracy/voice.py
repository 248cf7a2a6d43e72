"""Voice activity in int8: silero-vad 6.2.3 against its float self, call after call.

``python -m benchmarks voice [--seconds S]``.  ``forced``: every call begins with the state of the
float network; ``free``: with the state of the call before, as in use.  onnxruntime's
``quantize_static`` gets the branch of each sampling rate as a model of its own, because it leaves
the bodies of If in float.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_static

import quantglow as qg
from benchmarks.support.peer_runtimes import Reader
from quantglow.types import Array
from tools.downloads.wheels import wheel_member

CHUNKS = {16000: (512, 64), 8000: (256, 32)}
"""Sampling rate -> number of new samples in a call, and of old ones before them."""

BRANCHES = {16000: "then_branch", 8000: "else_branch"}
CALIBRATION_SECONDS = 2.0


def model_file() -> str:
    """Path of the network in the wheel.  Raises ``ConnectionError`` without a connection."""
    file = "silero_vad/data/silero_vad.onnx"
    return str(wheel_member("silero-vad==6.2.3", file, "silero_vad-6.2.3.onnx"))


def session(model: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options)


def voice(rate: int, seconds: float) -> Array:
    """Harmonics of a moving pitch with pauses, over noise: the network takes them for speech."""
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * t)) / rate
    tone = sum(np.sin(k * phase) / k for k in range(1, 12)) * (np.sin(3 * np.pi * t) > 0)
    noise = np.random.default_rng(rate).standard_normal(len(t))
    return (0.2 * tone + 0.01 * noise).astype(np.float32)


def calls(model: Any, rate: int, seconds: float) -> Iterator[tuple[dict[str, Array], float]]:
    """Feeds and probability of each call; the state is passed from call to call."""
    new, old = CHUNKS[rate]
    sound = np.concatenate([np.zeros(old, np.float32), voice(rate, seconds)])
    state = np.zeros((2, 1, 128), np.float32)
    for start in range(old, len(sound) - new, new):
        chunk = sound[None, start - old : start + new]
        feeds = {"input": chunk, "state": state, "sr": np.array(rate)}
        probability, state = model.run(None, feeds)
        yield feeds, float(probability[0, 0])


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
    quantize_static(source, result, Reader(samples), per_channel=True, weight_type=QuantType.QInt8)
    return Branch(result)


def sqnr(expected: list[float], found: list[float]) -> float:
    a, b = np.array(expected), np.array(found)
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
    ours = {
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
