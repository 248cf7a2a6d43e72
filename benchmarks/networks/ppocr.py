"""PP-OCRv4's recognition and detection networks, and the answers in their outputs.

The files come out of PyPI's rapidocr-onnxruntime wheel (PaddleOCR, Apache-2.0), unaltered.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tools.downloads.wheels import wheel_member

WHEEL = "rapidocr-onnxruntime==1.4.4"
MEMBERS = {
    "ppocr_rec": "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    "ppocr_det": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
}
TEXT_PROBABILITY = 0.3
"""Minimum probability of a pixel that RapidOCR takes for text."""


def ppocr(name: str, batch: int) -> Path:
    """The cached ONNX file, downloaded if it is missing; all its dimensions are free."""
    return wheel_member(WHEEL, MEMBERS[name], f"{name}.onnx")


@cache
def characters() -> NDArray[np.str_]:
    """Character of each class of the recognition; class 0 is CTC's blank."""
    properties = onnx.load(ppocr("ppocr_rec", 1)).metadata_props
    (listed,) = (entry.value for entry in properties if entry.key == "character")
    return np.array(["", *listed.splitlines(), " "])


def texts(outputs: NDArray[Any]) -> NDArray[Any]:
    """The text [N] of each line from the class probabilities [N, T, C]: the best class of every
    step, repetitions and blanks taken out.
    """
    classes = outputs.argmax(axis=2)
    fresh = np.diff(classes, axis=1, prepend=0) != 0
    return np.array(
        ["".join(characters()[line[new]]) for line, new in zip(classes, fresh, strict=True)]
    )


def text_pixels(outputs: NDArray[Any]) -> NDArray[Any]:
    """Mask of the pixels that belong to text, from the probabilities [N, 1, H, W]."""
    return outputs > TEXT_PROBABILITY
