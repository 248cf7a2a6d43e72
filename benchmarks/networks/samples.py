"""Calibration and evaluation inputs: real data of ``datasets/``, preprocessed for each network.

Every function returns float32 arrays [n, ...].  The seed draws the images and, for photographs, the
crops and flips.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
DATASETS = Path(__file__).resolve().parents[2] / "datasets"
CROP = 224
PAGE, LINE_PITCH = 640, 64
TOKENS = 128
LABELED_CROPS, LABELED_SEED = 100, 1
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)


@cache
def load(name: str) -> dict[str, NDArray[Any]]:
    """All arrays of one file of ``datasets/``."""
    with np.load(DATASETS / name, allow_pickle=False) as archive:
        return dict(archive)


def pick(available: int, count: int, seed: int) -> NDArray[np.int64]:
    """``count`` indices below ``available``, repeated only if there are too few."""
    rng = np.random.default_rng(seed)
    rounds = -(-count // available)
    return np.concatenate([rng.permutation(available) for _ in range(rounds)])[:count]


def normalize_digits(images: NDArray[np.uint8]) -> Array:
    """[N, 28, 28] -> [N, 1, 28, 28] in [0, 1]."""
    return images[:, None].astype(np.float32) / np.float32(255)


def digits(count: int, seed: int) -> Array:
    """MNIST training digits kept for calibration."""
    images = load("mnist_test.npz")["calibration_images"]
    return normalize_digits(images[pick(len(images), count, seed)])


def digits_labeled() -> tuple[Array, NDArray[Any]]:
    """All 1,000 test digits."""
    data = load("mnist_test.npz")
    return normalize_digits(data["images"]), data["labels"]


def normalize_lines(images: NDArray[np.uint8], widths: NDArray[Any]) -> Array:
    """[N, 48, W] -> [N, 3, 48, W]: (x / 255 - 0.5) / 0.5, and 0.0 right of the line."""
    x = (images.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    x = np.where(np.arange(images.shape[2]) < widths[:, None, None], x, np.float32(0))
    return np.repeat(x[:, None], 3, axis=1)


def text_lines(count: int, seed: int) -> Array:
    """Rendered text lines kept for calibration."""
    data = load("ocr_direction.npz")
    rows = pick(len(data["calibration_labels"]), count, seed)
    return normalize_lines(data["calibration_images"][rows], data["calibration_widths"][rows])


def text_lines_labeled() -> tuple[Array, NDArray[Any]]:
    """All 400 test lines."""
    data = load("ocr_direction.npz")
    return normalize_lines(data["images"], data["widths"]), data["labels"]


def words(count: int, seed: int) -> Array:
    """Rendered lines of up to 320 columns, kept for calibration."""
    data = load("ocr_lines.npz")
    rows = pick(len(data["calibration_widths"]), count, seed)
    return normalize_lines(data["calibration_images"][rows], data["calibration_widths"][rows])


def words_labeled() -> tuple[Array, NDArray[Any]]:
    """All 300 test lines, and their texts."""
    data = load("ocr_lines.npz")
    return normalize_lines(data["images"], data["widths"]), data["texts"]


def page(rng: np.random.Generator) -> NDArray[np.uint8]:
    """A sheet [640, 640] of uneven brightness, with two text lines of full or half size a row."""
    data = load("ocr_lines.npz")
    paper = rng.uniform(180, 225) + np.linspace(-1, 1, PAGE) * rng.uniform(-30, 30)
    sheet = np.tile(paper.astype(np.uint8), (PAGE, 1))
    for top in range(8, PAGE - LINE_PITCH + 8, LINE_PITCH):
        for half in (0, PAGE // 2):
            row, step = rng.integers(len(data["calibration_widths"])), rng.integers(1, 3)
            line = data["calibration_images"][row, ::step, : data["calibration_widths"][row] : step]
            left = half + int(rng.integers(PAGE // 2 - line.shape[1] + 1))
            sheet[top : top + line.shape[0], left : left + line.shape[1]] = line
    return sheet


def pages(count: int, seed: int) -> Array:
    """Sheets of text for the detection, [N, 3, 640, 640]."""
    rng = np.random.default_rng(seed)
    sheets = np.stack([page(rng) for _ in range(count)])
    return normalize_imagenet(np.repeat(sheets[..., None], 3, axis=3))


def passages(count: int, seed: int) -> NDArray[np.int64]:
    """Token ids [N, 128] of English passages kept for calibration, 0 behind their end."""
    ids = load("passages.npz")["calibration_ids"]
    return ids[pick(len(ids), count, seed)].astype(np.int64)


def photo_crops(count: int, seed: int) -> NDArray[np.uint8]:
    """Random 224 x 224 crops, half of them mirrored, [N, 224, 224, 3]."""
    images = load("photos.npz")["images"]
    rng = np.random.default_rng(seed)
    slack = images.shape[1] - CROP + 1
    crops = []
    for index in pick(len(images), count, seed):
        top, left = rng.integers(0, slack, 2)
        crop = images[index, top : top + CROP, left : left + CROP]
        crops.append(crop[:, ::-1] if rng.random() < 0.5 else crop)
    return np.stack(crops)


def channels_first(images: Array) -> Array:
    """NHWC -> NCHW, contiguous."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def normalize_lite(crops: NDArray[np.uint8]) -> Array:
    """EfficientNet-Lite: (x - 127) / 128."""
    return channels_first((crops.astype(np.float32) - np.float32(127)) / np.float32(128))


def normalize_imagenet(crops: NDArray[np.uint8]) -> Array:
    """torchvision: (x / 255 - mean) / std."""
    unit = crops.astype(np.float32) / np.float32(255)
    return channels_first((unit - IMAGENET_MEAN) / IMAGENET_STD)


def lite_photos(count: int, seed: int) -> Array:
    """Crops for EfficientNet-Lite0."""
    return normalize_lite(photo_crops(count, seed))


def lite_photos_labeled() -> tuple[Array, NDArray[Any]]:
    """100 crops of the 20 photographs for EfficientNet-Lite0, with ImageNet classes."""
    labels = load("photos.npz")["labels"]
    chosen = pick(len(labels), LABELED_CROPS, LABELED_SEED)
    return lite_photos(LABELED_CROPS, LABELED_SEED), labels[chosen]


def imagenet_photos(count: int, seed: int) -> Array:
    """Crops for ResNet-50 and MobileNetV2."""
    return normalize_imagenet(photo_crops(count, seed))
