"""Steps from stored images to model inputs, which a calibration recipe may list.

Images are [N, H, W] or [N, H, W, C].  All arithmetic is float32, in the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.errors import OptionError
from quantglow.foreign_types import Array

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Images:
    """Images with the arrays of their data set, by role, and the kind of crops."""

    values: Array
    arrays: Mapping[str, Array] = field(default_factory=dict)
    crops: str = "centre"
    seed: int = 0

    def with_values(self, values: Array) -> Images:
        return Images(values, self.arrays, self.crops, self.seed)


def divide(images: Images, by: Any) -> Array:
    """``x / by``; a list has one number for each channel."""
    divisors = _numbers("divide", by, images)
    if not divisors.all():
        raise OptionError(f"divide must not be 0, got {by!r}")
    return _float(images) / divisors


def subtract(images: Images, what: Any) -> Array:
    """``x - what``; a list has one number for each channel."""
    return _float(images) - _numbers("subtract", what, images)


def crop(images: Images, side: Any) -> Array:
    """Squares of ``side``: the centre, or random crops by the seed, half of them mirrored."""
    height, width = images.values.shape[1:3]
    if type(side) is not int or not 0 < side <= min(height, width):
        raise OptionError(f"crop must be from 1 to {min(height, width)}, got {side!r}")
    if images.crops == "centre":
        top, left = (height - side) // 2, (width - side) // 2
        return images.values[:, top : top + side, left : left + side]
    rng = np.random.default_rng(images.seed)
    found = []
    for image in images.values:
        top, left = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
        part = image[top : top + side, left : left + side]
        found.append(part[:, ::-1] if rng.random() < 0.5 else part)
    return np.stack(found)


def zero_right_of(images: Images, role: Any) -> Array:
    """0 in every column from an image's width on; ``role`` names the array of widths."""
    widths = images.arrays.get(str(role))
    if widths is None or widths.shape != images.values.shape[:1]:
        raise OptionError(f"zero_right_of names no array with one width for each image: {role!r}")
    inside = np.arange(images.values.shape[2]) < widths[:, None, None]
    inside = inside.reshape(*inside.shape, *(1,) * (images.values.ndim - 3))
    return np.where(inside, _float(images), np.float32(0))


def channels(images: Images, count: Any) -> Array:
    """Grey images as ``count`` equal channels."""
    if images.values.ndim != 3 or type(count) is not int or not 1 <= count <= 64:
        raise OptionError(f"channels takes grey images and a small number, got {count!r}")
    return np.repeat(images.values[..., None], count, axis=3)


def channels_first(images: Images, wanted: Any) -> Array:
    """[N, H, W, C] -> [N, C, H, W]."""
    if wanted is not True or images.values.ndim != 4:
        raise OptionError("channels_first = true takes images with channels")
    return np.ascontiguousarray(images.values.transpose(0, 3, 1, 2))


STEPS: dict[str, Callable[[Images, Any], Array]] = {
    "channels": channels,
    "channels_first": channels_first,
    "crop": crop,
    "divide": divide,
    "subtract": subtract,
    "zero_right_of": zero_right_of,
}


def preprocess(images: Images, steps: Sequence[tuple[str, Any]]) -> Array:
    """The images after all steps, float32.  Raises ``OptionError``."""
    for name, argument in steps:
        images = images.with_values(STEPS[name](images, argument))
    return _float(images)


def _float(images: Images) -> Array:
    return images.values.astype(np.float32, copy=False)


def _numbers(step: str, value: Any, images: Images) -> Array:
    found = value if isinstance(value, list) else [value]
    if not found or not all(type(n) in (int, float) and abs(n) <= LARGEST for n in found):
        raise OptionError(f"{step} takes a number, or a list of numbers, got {value!r}")
    if isinstance(value, list) and images.values.shape[-1] != len(value):
        raise OptionError(
            f"{step}: {len(value)} numbers for images of {images.values.shape[-1]} channels"
        )
    return np.array(value, np.float32)
