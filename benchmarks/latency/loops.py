"""Recurrent networks, a selective scan, a stack of Mamba blocks and a decoder, beside onnxruntime.

All weights are drawn.  ``lstm`` and ``gru`` have 256 inputs and 256 hidden values, ``scan`` is the
recurrence of a state space model of 256 channels with 16 states each: ``h' = exp(d A) h + d x B``,
``y = h C``, ``mamba`` has the layers of mamba-130m, and ``decoder`` attends in each trip to the
states of all trips before.  The runtimes take turns in one process; int8 is quantglow's, and is
compared with onnxruntime's float model, and for ``lstm`` with its DynamicQuantizeLSTM.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from benchmarks.latency.weight_groups import onnxruntime_of
from benchmarks.networks import attending, mamba
from benchmarks.support.arguments import positive
from quantglow.support.arrays import Array

WIDTH, STATES, SAMPLES = 256, 16, 4
GATES = {"lstm": 4, "gru": 3}
OPERANDS = ("powers", "changes", "columns")

Feeds = Mapping[str, Array]
Call = Callable[[Feeds], Any]


def add_arguments(command: argparse.ArgumentParser) -> None:
    names = [*GATES, "scan", "mamba", "decoder"]
    command.add_argument("--networks", nargs="+", choices=names, default=names)
    command.add_argument("--steps", nargs="+", type=positive, default=[50, 500])
    command.add_argument("--threads", nargs="+", type=positive, default=[1, 2])
    command.add_argument("--seconds", type=positive, default=4, help="duration of each comparison")
    command.add_argument("--layers", type=positive, default=mamba.LAYERS, help="of mamba")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print("| network | steps | threads | runtime | ready s | ms | times onnxruntime | SQNR dB |")
    print("| --- " * 8 + "|")
    for name in options.networks:
        for steps in options.steps:
            model, feeds = network(name, steps, options.layers)
            for threads in options.threads:
                for row in compared(name, model, feeds, threads, options.seconds):
                    print("|", " | ".join([name, str(steps), str(threads), *row]), "|", flush=True)
    return 0


def network(
    name: str, steps: int, layers: int = mamba.LAYERS
) -> tuple[onnx.ModelProto, list[Feeds]]:
    """A model of drawn weights, and samples of its inputs."""
    inputs: dict[str, tuple[int, ...]] = {"x": (steps, 1, WIDTH)}
    if name == "scan":
        inputs = {"x": (steps, WIDTH), "d": (steps, WIDTH), "b": (steps, STATES)}
        inputs["c"] = (steps, STATES)
    if name == "mamba":
        inputs = {"x": (steps, mamba.MODEL)}
    if name == "decoder":
        inputs = attending.INPUTS
    rng = np.random.default_rng(0)

    def drawn(name: str, shape: tuple[int, ...]) -> Array:
        actual = rng.uniform(0, 0.2, shape) if name == "d" else rng.standard_normal(shape)
        return np.asarray(actual, np.float32)

    feeds: list[Feeds] = [
        {k: drawn(k, shape) for k, shape in inputs.items()} for _ in range(SAMPLES)
    ]
    if name == "mamba":
        return mamba.model(steps, layers), feeds
    if name == "decoder":
        return attending.model(steps), feeds
    return (selective_scan(inputs) if name == "scan" else recurrent(name, inputs)), feeds


def recurrent(name: str, inputs: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    rng, rows = np.random.default_rng(1), GATES[name] * WIDTH
    bound = 1 / np.sqrt(WIDTH)
    shapes = {"w": (1, rows, WIDTH), "r": (1, rows, WIDTH), "b": (1, 2 * rows)}
    weights = {k: rng.uniform(-bound, bound, s) for k, s in shapes.items()}
    arguments: dict[str, Any] = {"linear_before_reset": 1} if name == "gru" else {}
    node = helper.make_node(name.upper(), ["x", *weights], ["y"], hidden_size=WIDTH, **arguments)
    return model([node], inputs, weights)


def selective_scan(inputs: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    state, node, names = (WIDTH, STATES), helper.make_node, ("state", "power", "change")
    body = helper.make_graph(
        [
            node("Exp", ["power"], ["decay"]),
            node("Mul", ["decay", "state"], ["kept"]),
            node("Add", ["kept", "change"], ["next"]),
            node("MatMul", ["next", "column"], ["row"]),
        ],
        "step",
        [*(typed(x, state) for x in names), typed("column", (STATES, 1))],
        [typed("next", state), typed("row", (WIDTH, 1))],
    )
    nodes = [
        node("Unsqueeze", ["d", "last"], ["d3"]),
        node("Mul", ["d3", "a"], ["powers"]),
        node("Mul", ["d", "x"], ["dx"]),
        node("Unsqueeze", ["dx", "last"], ["dx3"]),
        node("Unsqueeze", ["b", "middle"], ["b3"]),
        node("Mul", ["dx3", "b3"], ["changes"]),
        node("Unsqueeze", ["c", "last"], ["columns"]),
        node("Scan", ["start", *OPERANDS], ["end", "y"], body=body, num_scan_inputs=len(OPERANDS)),
    ]
    constants = {
        "a": -np.exp(np.random.default_rng(1).standard_normal(state)),
        "start": np.zeros(state),
        "last": np.array([2]),
        "middle": np.array([1]),
    }
    return model(nodes, inputs, constants)


def typed(name: str, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, Array],
) -> onnx.ModelProto:
    """The model of nodes that compute ``y``; constants of floats are float32."""
    kinds = {k: a if a.dtype == np.int64 else a.astype(np.float32) for k, a in constants.items()}
    graph = helper.make_graph(
        nodes,
        "loops",
        [typed(name, shape) for name, shape in inputs.items()],
        [typed("y", None)],
        [numpy_helper.from_array(array, name) for name, array in kinds.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compared(
    name: str, built: onnx.ModelProto, feeds: Sequence[Feeds], threads: int, seconds: float
) -> list[list[str]]:
    """Rows of the table: runtime, seconds until it is ready, milliseconds, ratio to onnxruntime in
    float, accuracy."""
    makers: dict[str, Callable[[], Call]] = {
        "onnxruntime float": lambda: onnxruntime_of(built, threads),
        "quantglow float": lambda: quantglow_of(qg.compile(built, num_threads=threads)),
    }
    if name == "lstm":
        makers["onnxruntime int8"] = lambda: onnxruntime_of(dynamic(built), threads)
    if name != "scan":
        by_profile = name != "decoder"
        makers["quantglow int8"] = lambda: quantglow_of(int8_of(built, feeds, threads, by_profile))
    calls, ready = {}, {}
    for runtime, make in makers.items():
        start = time.perf_counter()
        calls[runtime] = make()
        ready[runtime] = time.perf_counter() - start
    expected = calls["onnxruntime float"](feeds[0])[0]
    times = in_turns(calls, feeds[0], seconds)
    first = median(times["onnxruntime float"])
    return [
        [
            runtime,
            f"{ready[runtime]:.1f}",
            f"{1e3 * median(value):.2f}",
            f"{first / median(value):.2f}",
            f"{signal_to_noise(calls[runtime](feeds[0])[0], expected):.0f}",
        ]
        for runtime, value in times.items()
    ]


def quantglow_of(compiled: Any) -> Call:
    return lambda inputs: compiled.run(None, inputs)


def int8_of(built: onnx.ModelProto, feeds: Sequence[Feeds], threads: int, by_profile: bool) -> Any:
    """The model in int8, from ranges alone, since its weights are drawn; a part that is compiled
    later needs samples."""
    data = qg.profile(built, list(feeds), progress=False) if by_profile else list(feeds)
    return qg.quantize_and_compile(built, data, num_threads=threads, verify=False, progress=False)


def dynamic(built: onnx.ModelProto) -> onnx.ModelProto:
    """The model with DynamicQuantizeLSTM, weights by channel."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(built, source)
        quantize_dynamic(source, target, per_channel=True, weight_type=QuantType.QInt8)
        return onnx.load(target)


def in_turns(calls: Mapping[str, Call], feeds: Feeds, seconds: float) -> dict[str, list[float]]:
    """Seconds of runs by each runtime, in turns."""
    times: dict[str, list[float]] = {runtime: [] for runtime in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for runtime, call in calls.items():
            start = time.perf_counter()
            call(feeds)
            times[runtime].append(time.perf_counter() - start)
    return times


def signal_to_noise(actual: Array, expected: Array) -> float:
    """In decibels."""
    noise = np.square(actual - expected, dtype=np.float64).sum()
    return float(10 * np.log10(np.square(expected, dtype=np.float64).sum() / max(noise, 1e-30)))
