"""Render text lines with their texts, for PP-OCR's recognition.

Writes ocr_lines.npz.  A line is drawn as for the direction classifier and resized to height 48 with
its ratio, as in RapidOCR; a line wider than 320 is drawn anew.  Needs
``pip install pillow scipy matplotlib onnx onnxruntime``; the fonts come with matplotlib.
"""

from __future__ import annotations

import math

import numpy as np
from build_ocr_direction import HEIGHT, HERE, degrade, draw_line, more, random_text, resize_bilinear

WIDTH = 320
TEST_COUNT, CALIBRATION_COUNT = 300, 100


def line_that_fits(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """uint8 [48, w] with w <= 320, and its text."""
    while True:
        text = random_text(rng)
        line = draw_line(rng, text)
        width = math.ceil(HEIGHT * line.shape[1] / line.shape[0])
        if width <= WIDTH:
            return resize_bilinear(degrade(rng, line), HEIGHT, width), text


def render(seed: int, count: int) -> dict[str, np.ndarray]:
    """``count`` lines: images uint8 [N, 48, 320], widths uint16 [N], texts [N]."""
    rng = np.random.default_rng(seed)
    images, widths, texts = np.zeros((count, HEIGHT, WIDTH), np.uint8), [], []
    for image in images:
        line, text = line_that_fits(rng)
        image[:, : line.shape[1]] = line
        widths.append(line.shape[1])
        texts.append(text)
    return {"images": images, "widths": np.array(widths, np.uint16), "texts": np.array(texts)}


def main() -> None:
    if more(__doc__, render):
        return
    calibration = render(4, CALIBRATION_COUNT)
    arrays = render(3, TEST_COUNT) | {f"calibration_{n}": a for n, a in calibration.items()}
    np.savez_compressed(HERE / "ocr_lines.npz", **arrays)


if __name__ == "__main__":
    main()
