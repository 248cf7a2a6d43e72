"""Products with weights of 4 and 8 bits in groups, beside onnxruntime's MatMulNBits and OpenVINO.

A model has products of one size, which read the same rows, and more weights than any cache holds;
a figure is the time of one.  The runtimes take turns in one process; the ratio is that to the
faster peer.  OpenVINO reads the same model and rounds activations, too.  One row is a step of
a decoder, which memory limits; many rows are a prompt, which products limit.  The limit is measured
between the turns, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from benchmarks.latency.peak import native_peak
from benchmarks.support.arguments import positive
from benchmarks.support.peer_runtimes import openvino_request
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.native.peak import BLOCK_NBYTES, MEMORY_NBYTES, reader
from quantglow.support.arrays import Array

SIZES = ("2048x2048", "4096x4096", "4096x11008")
"""K x N of the products of language models with 1 to 7 billion parameters."""

TOTAL_NBYTES = 128 * 2**20
"""Size of the weights of a model: several times the last-level cache."""

LEVEL = 4
"""The ``accuracy_level`` at which quantglow and onnxruntime round activations to int8."""

TURN_SECONDS = 0.25
"""A runtime runs so long before the next one does."""

PEERS = ("onnxruntime", "openvino")

Feeds = Mapping[str, Array]


def size(text: str) -> tuple[int, int]:
    """K and N."""
    depth, columns = text.split("x")
    return positive(depth), positive(columns)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--sizes", nargs="+", type=size, default=list(map(size, SIZES)))
    command.add_argument("--rows", nargs="+", type=positive, default=[1, 128])
    command.add_argument("--bits", nargs="+", type=int, choices=(4, 8), default=[4, 8])
    command.add_argument("--group", type=positive, default=32)
    command.add_argument("--threads", nargs="+", type=positive, default=[1, 2])
    installed = [name for name in PEERS if find_spec(name) is not None]
    command.add_argument("--peers", nargs="*", default=installed, choices=PEERS)
    command.add_argument("--seconds", type=positive, default=4, help="duration of each comparison")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    columns = [f"{name} µs" for name in ("quantglow", *options.peers)]
    titles = ["K x N", "bits", "rows", "threads", *columns, "ratio", "rate", "limit"]
    print("|", " | ".join(titles), "|")
    print("| --- " * len(titles) + "|")
    for depth, columns in options.sizes:
        for bits in options.bits:
            model, count = products(depth, columns, bits, options.group)
            for rows in options.rows:
                for threads in options.threads:
                    calls = calls_of(model, (rows, depth), threads, options.peers)
                    limit = (reading_limit if rows == 1 else product_limit)(threads)
                    times, limits = compared(calls, limit, (rows, depth), options.seconds)
                    mine, *theirs = (1e6 * median(value) / count for value in times)
                    cells = [f"{depth}x{columns}", bits, rows, threads, f"{mine:.0f}"]
                    cells += [*(f"{us:.0f}" for us in theirs), f"{min(theirs) / mine:.2f}"]
                    cells += rates(rows, depth * columns, bits, options.group, mine, limits)
                    print("|", " | ".join(map(str, cells)), "|", flush=True)
    return 0


def rates(
    rows: int, weights: int, bits: int, group: int, us: float, limits: Sequence[float]
) -> list[str]:
    """The rate at which weights are read, or multiplied, and its share of the limit."""
    limit = median(limits)
    if rows == 1:
        rate = weights * (bits / 8 + 4 / group) / us * 1e6
        return [f"{rate / 1e9:.1f} GB/s", f"{rate / limit:.0%} of memory"]
    rate = rows * weights / us * 1e6
    return [f"{rate / 1e9:.0f} GMAC/s", f"{rate / limit:.0%} of int8"]


def reading_limit(threads: int) -> Callable[[], float]:
    """Measures bytes a second out of memory, as often as in the turn of a runtime."""
    run = reader(resolve("native"), threads, MEMORY_NBYTES)

    def measured() -> float:
        times = turn(partial(run.seconds, MEMORY_NBYTES // BLOCK_NBYTES))
        return MEMORY_NBYTES / median(times)

    return measured


def product_limit(threads: int) -> Callable[[], float]:
    """The highest rate of int8 multiply-accumulates."""
    return lambda: native_peak(threads).integer_macs


def products(depth: int, columns: int, bits: int, group: int) -> tuple[onnx.ModelProto, int]:
    """A model of drawn weights, with any number of rows, and the number of its products."""
    rng = np.random.default_rng(0)
    shape = (columns, depth // group)
    count = max(1, TOTAL_NBYTES // (depth * columns * bits // 8))
    nodes, tensors, outputs = [], [], []
    attributes: dict[str, Any] = {"K": depth, "N": columns, "bits": bits, "block_size": group}
    for index in range(count):
        codes = rng.integers(0, 256, (*shape, group * bits // 8), np.uint8)
        scales = rng.uniform(0.001, 0.01, shape).astype(np.float32)
        names = [f"codes{index}", f"scales{index}"]
        pairs = zip((codes, scales), names, strict=True)
        tensors += [numpy_helper.from_array(array, name) for array, name in pairs]
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                ["x", *names],
                [f"y{index}"],
                domain="com.microsoft",
                accuracy_level=LEVEL,
                **attributes,
            )
        )
        output = helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, ["rows", columns])
        outputs.append(output)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", depth])
    graph = helper.make_graph(nodes, "products", [x], outputs, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), count


def calls_of(
    model: onnx.ModelProto, shape: tuple[int, int], threads: int, peers: Sequence[str]
) -> list[Callable[[Feeds], object]]:
    """Functions that run the model: by quantglow, then by the peers."""
    compiled = qg.compile(model, num_threads=threads, input_shapes={"x": shape})
    opened = {"onnxruntime": onnxruntime_of, "openvino": openvino_of}
    return [lambda feeds: compiled.run(None, feeds), *(opened[p](model, threads) for p in peers)]


def compared(
    calls: Sequence[Callable[[Feeds], object]],
    limit: Callable[[], float],
    shape: tuple[int, int],
    seconds: float,
) -> tuple[list[list[float]], list[float]]:
    """Seconds of runs by each runtime, a turn after the other, and the limits meanwhile.

    Threads of a runtime look for work for some time after a run, and hold up those of the next one:
    the first run of a turn does not count.
    """
    feeds = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
    times: list[list[float]] = [[] for _ in calls]
    limits: list[float] = []
    end = time.perf_counter() + seconds
    while not times[0] or time.perf_counter() < end:
        for call, value in zip(calls, times, strict=True):
            call(feeds)
            value += turn(partial(call, feeds))
        limits.append(limit())
    return times, limits


def turn(call: Callable[[], object]) -> list[float]:
    """Seconds of runs that follow each other, one at least."""
    times: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def onnxruntime_of(model: onnx.ModelProto, threads: int) -> Callable[[Feeds], object]:
    """A function that runs the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: session.run(None, feeds)


def openvino_of(model: onnx.ModelProto, threads: int) -> Callable[[Feeds], object]:
    """A function that runs the model."""
    import openvino

    read = openvino.Core().read_model(model.SerializeToString())
    request = openvino_request(read, threads, dynamic=True)
    return lambda feeds: request.infer(dict(feeds), share_inputs=True, share_outputs=True)
