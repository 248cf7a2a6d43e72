"""Extract PP-OCR's text direction classifier and render labelled text lines for it.

Writes ppocr_cls.onnx and ocr_direction.npz.  A line is drawn upright (label 0) or turned by 180
degrees (label 1) and resized for the classifier as in RapidOCR, without the normalisation, which
README.md describes.  ``--output FILE.npz --count N --seed S`` renders other lines only.  Needs
``pip install pillow scipy matplotlib onnx onnxruntime``; the fonts come with matplotlib.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from wheels import download_wheel

HERE = Path(__file__).resolve().parent
RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
MODEL = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
HEIGHT, WIDTH = 48, 192
TEST_COUNT, CALIBRATION_COUNT = 400, 100
FONTS = (
    "DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSansMono DejaVuSansMono-Bold "
    "DejaVuSerif DejaVuSerif-Bold DejaVuSerif-Italic STIXGeneral STIXGeneralBol STIXGeneralItalic"
)
WORDS = (
    "the river crosses green valley market street number open closed platform ticket office "
    "please return bottle within seven days total price water bread coffee morning evening "
    "station north south garden library museum bridge harbour winter summer Monday Friday "
    "Invoice Receipt Amount Delivery Customer Address Phone Order Hotel Bakery Exit Entrance "
    "Warning Fragile Handle Care Made Product Volume Chapter Quality Figure Table Paris Berlin"
)


def random_text(rng: np.random.Generator) -> str:
    """One to three words, or a number with its unit; at least four characters."""
    if rng.random() < 0.2:
        number = f"{rng.integers(10, 9999)}.{rng.integers(10, 99)}"
        return f"{rng.choice(['Total', 'No.', 'EUR', 'Tel.', 'kg'])} {number}"
    text = " ".join(rng.choice(WORDS.split(), rng.integers(1, 4)))
    text = text if len(text) >= 4 else f"{text} {rng.choice(WORDS.split())}"
    return str(rng.choice([text, text.upper(), text.capitalize()]))


def draw_line(rng: np.random.Generator, text: str) -> np.ndarray:
    """``text`` as grey uint8 [h, w]: random font, size, margins and contrast, either polarity."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(
        folder / f"{rng.choice(FONTS.split())}.ttf", int(rng.integers(18, 64))
    )
    left, top, right, bottom = font.getbbox(text)
    margin = (np.array([0.3, 0.1]) * font.size * rng.uniform(0.3, 1.5, 2)).astype(int) + 1
    size = (int(right - left + 2 * margin[0]), int(bottom - top + 2 * margin[1]))
    paper, contrast = int(rng.integers(150, 256)), int(rng.integers(60, 150))
    image = Image.new("L", size, paper)
    start = (int(margin[0] - left), int(margin[1] - top))
    ImageDraw.Draw(image).text(start, text, paper - contrast, font=font)
    line = np.asarray(image)
    return 255 - line if rng.random() < 0.3 else line


def degrade(rng: np.random.Generator, line: np.ndarray) -> np.ndarray:
    """A slight blur, a brightness slope and sensor noise."""
    blurred = ndimage.gaussian_filter(line.astype(np.float32), rng.uniform(0, 0.02) * len(line))
    slope = np.linspace(-1, 1, line.shape[1], dtype=np.float32) * rng.uniform(-20, 20)
    noise = rng.normal(0, rng.uniform(0, 10), line.shape)
    return np.clip(np.rint(blurred + slope + noise), 0, 255).astype(np.uint8)


def resize_bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Half-pixel bilinear without smoothing, edges repeated: OpenCV's default resize."""
    rows = (np.arange(height) + 0.5) * image.shape[0] / height - 0.5
    columns = (np.arange(width) + 0.5) * image.shape[1] / width - 0.5
    grid = np.meshgrid(rows, columns, indexing="ij")
    values = ndimage.map_coordinates(image.astype(np.float64), grid, order=1, mode="nearest")
    return np.rint(values).astype(np.uint8)


def fit_to_input(image: np.ndarray) -> tuple[np.ndarray, int]:
    """uint8 [48, 192], blank right of the line, and its width; a longer line is squeezed.

    RapidOCR normalises first and pads with 0.0, which has no uint8 value; so the width is returned.
    """
    width = min(WIDTH, math.ceil(HEIGHT * image.shape[1] / image.shape[0]))
    canvas = np.zeros((HEIGHT, WIDTH), np.uint8)
    canvas[:, :width] = resize_bilinear(image, HEIGHT, width)
    return canvas, width


def render(seed: int, count: int) -> dict[str, np.ndarray]:
    """``count`` lines: images uint8 [N, 48, 192], widths uint8 [N], labels uint8 [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count).astype(np.uint8)
    images, widths = [], []
    for label in labels:
        line = degrade(rng, draw_line(rng, random_text(rng)))
        image, width = fit_to_input(line[::-1, ::-1] if label else line)
        images.append(image)
        widths.append(width)
    return {"images": np.stack(images), "widths": np.array(widths, np.uint8), "labels": labels}


def preprocess(images: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """float32 [N, 3, 48, 192]: (x / 255 - 0.5) / 0.5, 0.0 right of the line, grey three times."""
    x = (images.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    x = np.where(np.arange(WIDTH) < widths[:, None, None], x, np.float32(0))
    return np.repeat(x[:, None], 3, axis=1)


def accuracy(path: Path, data: dict[str, np.ndarray]) -> float:
    """Top-1 accuracy of the classifier under onnxruntime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    scores = session.run(None, {"x": preprocess(data["images"], data["widths"])})[0]
    return float(np.mean(scores.argmax(axis=1) == data["labels"]))


def more(description: str | None, render: Callable[[int, int], dict[str, np.ndarray]]) -> bool:
    """Write lines of another seed if the command line asks for them; whether it does."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="only write --count lines of --seed there")
    parser.add_argument("--count", type=int, default=TEST_COUNT)
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    if given.output:
        np.savez_compressed(given.output, **render(given.seed, given.count))
    return given.output is not None


def main() -> None:
    if more(__doc__, render):
        return
    (HERE / "ppocr_cls.onnx").write_bytes(download_wheel(RAPIDOCR).read(MODEL))
    test, calibration = render(1, TEST_COUNT), render(2, CALIBRATION_COUNT)
    arrays = test | {f"calibration_{name}": array for name, array in calibration.items()}
    np.savez_compressed(HERE / "ocr_direction.npz", **arrays)
    print(f"test accuracy {accuracy(HERE / 'ppocr_cls.onnx', test):.4f}")


if __name__ == "__main__":
    main()
