"""Preprocessing of one image: by name, or by a function of a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from quantglow.arguments import brief
from quantglow.data.array_files import one_line
from quantglow.errors import OptionError
from quantglow.foreign_types import Array

Preprocess = Callable[[Any], Any]
"""A Pillow image in RGB -> the sample of a model."""

SIDE, RATIO = 224, 0.875
"""Side of a centre crop, and its ratio to the shorter side of the resized image."""


@dataclass(frozen=True)
class Crop:
    """The centre of an image whose shorter side was resized: uint8 [1, side, side, 3]."""

    side: int = SIDE

    def __call__(self, image: Any) -> Array:
        shorter = round(self.side / RATIO)
        scale = shorter / min(image.size)
        width, height = (max(shorter, round(length * scale)) for length in image.size)
        resized = image.resize((width, height), resample=BILINEAR)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        box = (left, top, left + self.side, top + self.side)
        return np.asarray(resized.crop(box), np.uint8)[None]


BILINEAR = 2
"""Pillow's number of the filter."""


@dataclass(frozen=True)
class Normalized:
    """``(crop * factor - mean) / std``: float32 [1, 3, side, side]."""

    crop: Crop
    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Any) -> Array:
        x: Array = self.crop(image).astype(np.float32) * np.float32(self.factor)
        x = (x - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def imagenet(side: int) -> Preprocess:
    """As torchvision's classifiers are evaluated."""
    return Normalized(Crop(side), 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def inception(side: int) -> Preprocess:
    """Values from -1 to 1, as TensorFlow's classifiers take them."""
    return Normalized(Crop(side), 1 / 127.5, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))


PREPROCESSING: dict[str, Callable[[int], Preprocess]] = {
    "crop": Crop,
    "imagenet": imagenet,
    "inception": inception,
    "none": lambda side: lambda image: np.asarray(image, np.uint8)[None],
}
"""Preprocessing by name, given the side of the crop: "imagenet", or "imagenet:299"."""


def preprocessing(option: str, given: Any) -> Preprocess:
    """A function of an image, a name of ``PREPROCESSING``, or "module:function".

    Raises ``OptionError``.
    """
    if callable(given):
        return given  # type: ignore[no-any-return]
    if not isinstance(given, str):
        raise OptionError(f"{option} is missing or no text: {brief(given)}. {REMEDY}")
    name, _, rest = given.partition(":")
    if name in PREPROCESSING:
        if rest and not (rest.isdecimal() and 0 < int(rest) < 2**16):
            raise OptionError(f"{option} {given!r} has no side of pixels. {REMEDY}")
        return PREPROCESSING[name](int(rest) if rest else SIDE)
    if not name or not rest:
        raise OptionError(f"{option} {given!r} is unknown. {REMEDY}")
    return function_of(option, name, rest)


REMEDY = (
    f"Remedy: one of {', '.join(PREPROCESSING)}, with a side as imagenet:299, or a function of an "
    "image as module:function."
)


def function_of(option: str, module: str, name: str) -> Preprocess:
    """A function of a module, which may lie in the current folder.  Raises ``OptionError``."""
    with current_folder_first():
        try:
            found = getattr(import_module(module), name)
        except Exception as error:
            kind = type(error).__name__
            raise OptionError(
                f"{option} cannot load {name!r} of module {module!r}: {kind}: {one_line(error)}. "
                f"{REMEDY}"
            ) from error
    if not callable(found):
        raise OptionError(f"{option}: {module}:{name} is no function. {REMEDY}")
    return found  # type: ignore[no-any-return]


@contextmanager
def current_folder_first() -> Iterator[None]:
    """Modules of the current folder are found, as ``python -m`` finds them."""
    own = os.getcwd()
    sys.path.insert(0, own)
    try:
        yield
    finally:
        sys.path.remove(own)
