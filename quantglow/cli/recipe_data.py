"""Data of recipes: steps from stored images to inputs, and answers read from the first output.

Images are [N, H, W] or [N, H, W, C].  All arithmetic is float32, in the order of the steps.

Recipes compare answers with labels and with those of the float model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.api.pipeline.calibration import check_classes
from quantglow.importer.onnx import open_model
from quantglow.ir.graph.graph import Graph
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, ModelError, OptionError

LARGEST = float(np.finfo(np.float32).max)

Reader = Callable[[Array], Any]
"""The first output for one sample -> its answer."""

CHARACTERS = "character"
"""Entry of a model's metadata: characters of its classes from 1 on, one a line (PaddleOCR)."""

LABELS = {"class": ("iu", "the index of a class, an integer,"), "text": ("U", "one text")}
"""Kinds of arrays that may hold labels, and what a label is."""


@dataclass(frozen=True)
class ImageSet:
    """Images with the arrays of their data set, by role, and the kind of crops."""

    values: Array
    arrays: Mapping[str, Array] = field(default_factory=dict)
    crops: str = "centre"
    seed: int = 0

    def with_values(self, values: Array) -> ImageSet:
        return ImageSet(values, self.arrays, self.crops, self.seed)


def divide(images: ImageSet, by: Any) -> Array:
    """``x / by``; a list has one number for each channel."""
    divisors = _numbers("divide", by, images)
    if not divisors.all():
        raise OptionError(f"divide must not be 0, got {by!r}")
    return _float(images) / divisors


def subtract(images: ImageSet, what: Any) -> Array:
    """``x - what``; a list has one number for each channel."""
    return _float(images) - _numbers("subtract", what, images)


def crop(images: ImageSet, side: Any) -> Array:
    """Squares of ``side``: the center, or random crops by the seed, half of them mirrored."""
    height, width = images.values.shape[1:3]
    if type(side) is not int or not 0 < side <= min(height, width):
        raise OptionError(f"crop must be from 1 to {min(height, width)}, got {side!r}")
    if images.crops == "centre":
        top, left = (height - side) // 2, (width - side) // 2
        return images.values[:, top : top + side, left : left + side]
    rng = np.random.default_rng(images.seed)
    crops = []
    for image in images.values:
        top, left = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
        part = image[top : top + side, left : left + side]
        crops.append(part[:, ::-1] if rng.random() < 0.5 else part)
    return np.stack(crops)


def _clear_right(images: ImageSet, role: Any) -> Array:
    """0 in every column from an image's width on; ``role`` names the array of widths."""
    widths = images.arrays.get(str(role))
    if widths is None or widths.shape != images.values.shape[:1]:
        raise OptionError(f"zero_right_of names no array with one width for each image: {role!r}")
    inside = np.arange(images.values.shape[2]) < widths[:, None, None]
    inside = inside.reshape(*inside.shape, *(1,) * (images.values.ndim - 3))
    return np.where(inside, _float(images), np.float32(0))


def channels(images: ImageSet, count: Any) -> Array:
    """Gray images as ``count`` equal channels."""
    if images.values.ndim != 3 or type(count) is not int or not 1 <= count <= 64:
        raise OptionError(f"channels takes gray images and a small number, got {count!r}")
    return np.repeat(images.values[..., None], count, axis=3)


def channels_first(images: ImageSet, layout: Any) -> Array:
    """[N, H, W, C] -> [N, C, H, W]."""
    if layout is not True or images.values.ndim != 4:
        raise OptionError("channels_first = true takes images with channels")
    return np.ascontiguousarray(images.values.transpose(0, 3, 1, 2))


STEPS: dict[str, Callable[[ImageSet, Any], Array]] = {
    "channels": channels,
    "channels_first": channels_first,
    "crop": crop,
    "divide": divide,
    "subtract": subtract,
    "zero_right_of": _clear_right,
}


def preprocess(images: ImageSet, steps: Sequence[tuple[str, Any]]) -> Array:
    """The images after all steps, float32.  Raises ``OptionError``."""
    for name, argument in steps:
        images = images.with_values(STEPS[name](images, argument))
    return _float(images)


def _float(images: ImageSet) -> Array:
    return images.values.astype(np.float32, copy=False)


def _numbers(step: str, value: Any, images: ImageSet) -> Array:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(type(n) in (int, float) and abs(n) <= LARGEST for n in numbers):
        raise OptionError(f"{step} takes a number, or a list of numbers, got {value!r}")
    if isinstance(value, list) and images.values.shape[-1] != len(value):
        raise OptionError(
            f"{step}: {len(value)} numbers for images of {images.values.shape[-1]} channels"
        )
    return np.array(value, np.float32)


def _largest(model: Path) -> Reader:
    """The index of the largest score."""
    del model
    return lambda scores: int(np.argmax(scores))


def text(model: Path) -> Reader:
    """The text of every sample, by CTC: the best class of each step, without repetitions and class
    0.

    The output is [..., steps, classes].  Raises ``ModelError`` if the model does not name its
    classes.
    """
    listed = open_model(model).metadata.get(CHARACTERS)
    if listed is None:
        raise ModelError(
            f"the model {str(model)!r} has no entry {CHARACTERS!r} in its metadata. Remedy: add "
            'one, the characters of classes 1, 2, … one a line, or use model.answers = "class".'
        )
    characters = ["", *listed.splitlines(), " "]

    def read(scores: Array) -> str:
        if scores.shape[-1] != len(characters):
            raise ModelError(
                f"the model {str(model)!r} has {scores.shape[-1]} classes, but its metadata "
                f"{len(characters) - 2} characters, to which nothing and the space are added."
            )
        classes = scores.reshape(-1, scores.shape[-1]).argmax(-1)
        fresh = np.diff(classes, prepend=0) != 0
        return "".join(characters[index] for index in classes[fresh])

    return read


READERS: dict[str, Callable[[Path], Reader]] = {"class": _largest, "text": text}


def check_labels(labels: Array | None, answers: str, graph: Graph) -> None:
    """Raise ``CalibrationError`` for labels that can never be equal to such answers of the graph's
    first output."""
    kinds, dimensions = LABELS[answers]
    if labels is not None and (labels.dtype.kind not in kinds or labels.ndim != 1):
        raise CalibrationError(
            f"labels of {labels.dtype} and shape {labels.shape} are never equal to answers of kind "
            f"{answers!r}. Remedy: {dimensions} for each image."
        )
    if labels is not None and answers == "class":
        name, scores = graph.outputs[0]
        check_classes(labels, prod(scores.type.fixed_shape), "the evaluation data", name)


def same(answers: Sequence[Any], others: Sequence[Any]) -> float:
    """Share of answers that are equal."""
    return float(np.mean([one == other for one, other in zip(answers, others, strict=True)]))
