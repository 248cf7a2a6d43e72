"""``quantglow demo``: two embedded networks from ONNX to int8 machine code, checked and timed.

Their data lies in ``datasets/`` of the repository, and in ``_data`` when installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from quantglow.api.compile import compile
from quantglow.api.quantize_and_compile import quantize_and_compile
from quantglow.evaluation.baselines.onnxruntime_quantizer import int8_runners
from quantglow.evaluation.latencies import medians
from quantglow.evaluation.outputs import Runner
from quantglow.evaluation.report import Report
from quantglow.ort.quantizer_input import quantizer_input
from quantglow.ort.session import EXACT_SUMS, Session
from quantglow.report.tables import ReportTable, number
from quantglow.runtime.programs.build import thread_count
from quantglow.support.arrays import Array
from quantglow.support.errors import QuantglowError

CALIBRATION_SAMPLES = 50
OURS, PEER = "quantglow", "onnxruntime"

_TIME = frozenset({"time"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num-threads", type=int, help="threads of each runtime (default: the physical cores)"
    )


def run(options: argparse.Namespace, console: Console) -> None:
    """Run every example and print its tables."""
    start = time.perf_counter()
    threads = thread_count(options.num_threads)
    for make in EXAMPLES:
        example = make()
        console.rule(example.title)
        runners, report = prepare(example, threads)
        console.print(report.headline, _operators_line(report), sep="\n", highlight=False)
        console.print(stages_table(report).rich())
        console.print(results_table(example, runners, threads).rich())
    console.rule()
    console.print(f"{time.perf_counter() - start:.0f} s in all")


def prepare(example: Example, threads: int) -> tuple[dict[str, Runner], Report]:
    """Models of both precisions and both runtimes, by title, and the report of quantglow's int8."""
    shape = (1, *example.images.shape[1:])
    shapes = {example.input_name: shape}
    samples = example.calibration[:CALIBRATION_SAMPLES]
    feeds = [{example.input_name: image[None]} for image in samples]
    exact = compile(example.model, num_threads=threads, input_shapes=shapes)
    int8 = quantize_and_compile(example.model, feeds, num_threads=threads, input_shapes=shapes)
    fixed = quantizer_input(example.model, shapes)
    usual, exact_sums = int8_runners(fixed, feeds, threads)
    is_exact = all(np.array_equal(usual(one)[0], exact_sums(one)[0]) for one in feeds)
    runners: dict[str, Runner] = {
        f"{PEER} float": Session(fixed.SerializeToString(), threads).run,
        f"{OURS} float": lambda feeds: exact.run(None, feeds),
        f"{PEER} int8": usual,
        **({} if is_exact else {f"{PEER} int8, {EXACT_SUMS}=1": exact_sums}),
        f"{OURS} int8": lambda feeds: int8.run(None, feeds),
    }
    return runners, int8.report


def stages_table(report: Report) -> ReportTable:
    """Time of each stage of ``quantize_and_compile``."""
    rows = [(stage, f"{seconds * 1e3:.0f} ms") for stage, seconds in report.seconds.items()]
    return ReportTable("From ONNX to checked int8 machine code", ("stage", "time"), rows, _TIME)


def results_table(
    example: Example, runners: dict[str, Runner], threads: int, seconds: float = 0.35
) -> ReportTable:
    """Accuracy on the labeled images, latency of one image measured for ``seconds`` each."""
    one = {example.input_name: example.images[:1]}
    calls = {name: lambda run=run: run(one) for name, run in runners.items()}
    times = medians(calls, seconds)
    baseline = times[f"{PEER} float"]
    rows = [
        (
            name,
            f"{accuracy(run, example):.2%}",
            f"{times[name] * 1e6:.0f} µs",
            number(baseline / times[name], "{:.2f} x"),
        )
        for name, run in runners.items()
    ]
    numbers = ("accuracy", "latency", f"speed against {PEER} float")
    title = f"{len(example.labels)} labelled images, {threads} thread(s), batch 1"
    return ReportTable(title, ("runtime", *numbers), rows, frozenset(numbers))


def accuracy(run: Runner, example: Example) -> float:
    """Share of the labeled images whose largest score is the label."""
    classes = [int(run({example.input_name: image[None]})[0].argmax()) for image in example.images]
    return float(np.mean(np.array(classes) == example.labels))


def _operators_line(report: Report) -> str:
    """The operators in int8, what they are compared with, and the arena."""
    int8 = sum(layer.precision != "float" for layer in report.layers)
    return (
        f"{int8} of {len(report.layers)} operators are int8, compared with {report.compared_with}; "
        f"arena {report.memory.peak_nbytes / 1000:.1f} kB, "
        f"{report.memory.efficiency:.0%} of it needed at once"
    )


@dataclass(frozen=True)
class Example:
    """A model with labeled images and calibration images, preprocessed: float32 [n, ...]."""

    title: str
    model: Path
    input_name: str
    images: Array
    labels: Array
    calibration: Array


def data_folder() -> Path:
    """Folder of the data files.  Raises ``QuantglowError`` if the installation lacks them."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_data", package.parent / "datasets"):
        if (folder / "mnist_cnn.onnx").is_file():
            return folder
    raise QuantglowError(
        "the demo's data is missing from this installation. "
        "Remedy: install from a complete checkout with `pip install .`"
    )


def mnist() -> Example:
    """Handwritten digits."""
    folder = data_folder()
    with np.load(folder / "mnist_test.npz", allow_pickle=False) as data:
        images, labels = _digits(data["images"]), data["labels"]
        calibration = _digits(data["calibration_images"])
    model = folder / "mnist_cnn.onnx"
    return Example("MNIST digits, small CNN", model, "image", images, labels, calibration)


def ocr_direction() -> Example:
    """Lines of text, upright or upside down."""
    folder = data_folder()
    with np.load(folder / "ocr_direction.npz", allow_pickle=False) as data:
        images, labels = _lines(data["images"], data["widths"]), data["labels"]
        calibration = _lines(data["calibration_images"], data["calibration_widths"])
    model = folder / "ppocr_cls.onnx"
    return Example("PP-OCR text direction classifier", model, "x", images, labels, calibration)


EXAMPLES: tuple[Callable[[], Example], ...] = (mnist, ocr_direction)


def _digits(images: Array) -> Array:
    """uint8 [N, 28, 28] -> [N, 1, 28, 28] in [0, 1]."""
    return images[:, None].astype(np.float32) / np.float32(255)


def _lines(images: Array, widths: Array) -> Array:
    """uint8 [N, 48, 192] -> [N, 3, 48, 192]: (x / 255 - 0.5) / 0.5, and 0 right of the line."""
    x = (images.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    x = np.where(np.arange(images.shape[2]) < widths[:, None, None], x, np.float32(0))
    return np.repeat(x[:, None], 3, axis=1)
