"""Antialiased resizing of photographs inside of a model, beside Pillow.

The model is a step alone, ``steps.Resize(antialias=True)``, from uint8 [1, H, W, 3] to float
[1, 3, SIDE, SIDE]; Pillow gives bytes.  They take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from PIL import Image

import quantglow as qg
from benchmarks.networks.samples import DATASETS
from benchmarks.support.arguments import positive
from benchmarks.support.quantglow_runtime import compiled_whole
from quantglow import steps
from quantglow.support.arrays import Array

SIZES = ("256x256", "375x500", "1080x1920")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--sizes", nargs="+", default=SIZES, metavar="HxW", help="of the image")
    command.add_argument("--side", type=positive, default=224, help="of the result")
    command.add_argument("--threads", type=positive, default=1)
    command.add_argument("--rounds", type=positive, default=50)


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table; a difference is the largest one, in steps of bytes."""
    print("| image | Pillow ms | quantglow ms | difference |")
    print("| --- " * 4 + "|")
    for text in options.sizes:
        height, width = map(int, text.split("x"))
        photo = photograph(height, width)
        model = resizing(options.side, photo, options.threads)
        theirs, ours, apart = compared(photo, model, options.side, options.rounds)
        print(f"| {height} × {width} | {theirs:.3f} | {ours:.3f} | {apart:.2f} |", flush=True)
    return 0


def photograph(height: int, width: int) -> Array:
    """A photograph of the repository, enlarged: uint8 [H, W, 3]."""
    with np.load(DATASETS / "photos.npz", allow_pickle=False) as data:
        image = Image.fromarray(data["images"][0])
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def resizing(side: int, photo: Array, threads: int) -> Callable[[Array], Any]:
    """The compiled step."""
    shape = f"float[1, 3, {side}, {side}]"
    text = (
        f'<ir_version: 9, opset_import: ["": 18]> g ({shape} x) => ({shape} y) {{ y = Relu (x) }}'
    )
    before = [
        steps.ElementType("uint8"),
        steps.Layout("NHWC"),
        steps.Resize(side, side, antialias=True),
    ]
    return compiled_whole(
        qg.compile(
            onnx.parser.parse_model(text),
            num_threads=threads,
            before=before,
            input_shapes={"x": (1, *photo.shape)},
        )
    )


def compared(
    photo: Array, model: Callable[[Array], Any], side: int, rounds: int
) -> tuple[float, float, float]:
    """Median milliseconds of Pillow and of the model, and the largest difference."""
    image, batch = Image.fromarray(photo), photo[None]
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        start = time.perf_counter()
        theirs = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))
        middle = time.perf_counter()
        ours = model(batch)
        times.append((middle - start, time.perf_counter() - middle))
    apart = float(np.abs(ours[0].transpose(1, 2, 0) - theirs).max())
    first, second = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    return first, second, apart
