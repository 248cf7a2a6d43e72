"""Products with weights of 4 and 8 bits in groups, beside onnxruntime's MatMulNBits.

A model has products of one size, which read the same rows, and more weights than any cache holds;
a figure is the time of one.  Both runtimes take turns in one process.  One row is a step of
a decoder, which memory limits; many rows are a prompt, which products limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from benchmarks.latency.peak import native_peak
from benchmarks.support.arguments import positive
from quantglow.types import Array

SIZES = ("2048x2048", "4096x4096", "4096x11008")
"""K x N of the products of language models with 1 to 7 billion parameters."""

TOTAL_NBYTES = 128 * 2**20
"""Size of the weights of a model: several times the last-level cache."""

LEVEL = 4
"""The ``accuracy_level`` at which both runtimes round activations to int8."""

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
    command.add_argument("--seconds", type=positive, default=4, help="duration of each comparison")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print(
        "| K x N | bits | rows | threads | quantglow µs | onnxruntime µs | ratio | rate | limit |"
    )
    print("| --- " * 9 + "|")
    for depth, columns in options.sizes:
        for bits in options.bits:
            model, count = products(depth, columns, bits, options.group)
            for rows in options.rows:
                for threads in options.threads:
                    times = compared(model, (rows, depth), threads, options.seconds)
                    mine, theirs = (1e6 * median(found) / count for found in times)
                    cells = [f"{depth}x{columns}", bits, rows, threads, f"{mine:.0f}"]
                    cells += [f"{theirs:.0f}", f"{theirs / mine:.2f}"]
                    cells += rates(rows, depth * columns, bits, options.group, threads, mine)
                    print("|", " | ".join(map(str, cells)), "|", flush=True)
    return 0


def rates(rows: int, weights: int, bits: int, group: int, threads: int, us: float) -> list[str]:
    """The rate at which weights are read, or multiplied, and its share of the peak."""
    peak = native_peak(threads)
    if rows == 1:
        rate = weights * (bits / 8 + 4 / group) / us * 1e6
        return [f"{rate / 1e9:.1f} GB/s", f"{rate / peak.memory_nbytes:.0%} of memory"]
    rate = rows * weights / us * 1e6
    return [f"{rate / 1e9:.0f} GMAC/s", f"{rate / peak.integer_macs:.0%} of int8"]


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


def compared(
    model: onnx.ModelProto, shape: tuple[int, int], threads: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds of runs by quantglow and by onnxruntime, in turns."""
    feeds = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
    compiled = qg.compile(model, num_threads=threads, input_shapes={"x": shape})
    calls: tuple[Callable[[Feeds], object], ...] = (
        lambda given: compiled.run(None, given),
        onnxruntime_of(model, threads),
    )
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < 3 or time.perf_counter() < end:
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call(feeds)
            found.append(time.perf_counter() - start)
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
