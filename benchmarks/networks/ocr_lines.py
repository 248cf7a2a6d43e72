"""PP-OCR on more lines than `datasets/` holds, and without its last Softmax.

If a network is sure of a line, its probabilities are 0 or 1 whatever the noise, so the SQNR of the
direction classifier is the error of the single line that float is least sure of.  The noise of
every line shows in the logits.  A Softmax ignores an offset of all logits of a row, so their mean
is subtracted first.

The scripts of `datasets/` render the lines on first use, which takes Pillow, SciPy and matplotlib
(``pip install 'quantglow[bench]'``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.networks import samples
from tools.downloads.model_cache import cached, content_key

Source = Callable[[int], Path]
"""Batch -> ONNX file."""
COUNTS = {"ppocr_cls": 2000, "ppocr_rec": 1000}
SCRIPTS = {"ppocr_cls": "build_ocr_direction.py", "ppocr_rec": "build_ocr_lines.py"}
LABELS = {"ppocr_cls": "labels", "ppocr_rec": "texts"}
SEED = 11
"""Seed of lines that are neither calibration samples nor in `datasets/`."""


def more_lines(name: str) -> tuple[samples.Array, NDArray[Any]]:
    """Lines for a network of ``COUNTS``, with their labels."""
    script, count = samples.DATASETS / SCRIPTS[name], COUNTS[name]
    file = f"{name}-lines-{SEED}-{count}-{content_key(script)}.npz"
    with np.load(cached(file, partial(_render, script, count)), allow_pickle=False) as data:
        return samples.normalize_lines(data["images"], data["widths"]), data[LABELS[name]]


def _render(script: Path, count: int, target: Path) -> None:
    command = [sys.executable, str(script), "--count", str(count), "--seed", str(SEED)]
    subprocess.run([*command, "--output", str(target)], check=True)


def centered(logits: NDArray[Any]) -> NDArray[Any]:
    """Logits less the mean of their row."""
    return np.asarray(logits - logits.mean(axis=-1, keepdims=True))


def logits_file(source: Source, batch: int) -> Path:
    """The ONNX file of a network without its last Softmax."""
    file = source(batch)
    name = f"{file.stem}-b{batch}-logits-{content_key(file)}.onnx"
    return cached(name, lambda path: onnx.save(without_softmax(onnx.load(file)), path))


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the logits in place of its only output."""
    (output,) = model.graph.output
    makers = {name: node for node in model.graph.node for name in node.output}
    last = makers[output.name]
    while last.op_type == "Identity":
        model.graph.node.remove(last)
        last = makers[last.input[0]]
    if last.op_type != "Softmax":
        raise ValueError(f"{output.name} comes from {last.op_type}, not from Softmax")
    output.name = last.input[0]
    model.graph.node.remove(last)
    return model
