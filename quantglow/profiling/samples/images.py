"""Folders of images as samples, and the preprocessing of an image, by name or by a function."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.profiling.samples.files import LABELS, Located, Unnamed, one_line
from quantglow.support.arguments import brief, file_path, flag, options_named
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, OptionError
from quantglow.support.extras import package

Preprocess = Callable[[Any], Any]
"""A Pillow image in RGB -> the sample of a model."""

SIDE, RATIO = 224, 0.875
"""Side of a center crop, and its ratio to the shorter side of the resized image."""

BILINEAR = 2
"""Pillow's number of the filter."""

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

MAX_PIXELS = 1 << 26
"""Maximum number of pixels of an image: a small file can unpack to any number."""


class ImageFolder:
    """The images of a folder and its subfolders as samples of a model with one input.

    path        the folder; images come in the order of their names
    preprocess  "imagenet", "inception" or "crop", with a side as "imagenet:299"; "none"; a function
                from a Pillow image in RGB to a sample; or the name of one, "module:function"
    labels      the class of an image is the index of its subfolder among all, in the order of their
                names: the report then has the share of right answers

    An image is read when its sample is needed.  Iterating raises ``CalibrationError`` for files
    that are no images, and without Pillow (``quantglow[images]``).
    """

    @options_named
    def __init__(
        self, path: str | os.PathLike[str], preprocess: Any, *, labels: bool = False
    ) -> None:
        self.path = Path(file_path("path", path))
        self.preprocess = preprocessing("preprocess", preprocess)
        self.files = _image_files(self.path)
        self.classes: list[str] = (
            _list_classes(self.path, self.files) if flag("labels", labels) else []
        )

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Any]:
        library = package("PIL.Image", "images", f"the folder {str(self.path)!r}", CalibrationError)
        for file in self.files:
            place = repr(str(file.relative_to(self.path)))
            yield self.sample(self.prepared(_open_image(library, file), place), file, place)

    def prepared(self, image: Any, place: str) -> Any:
        """The result of preprocessing.  Raises ``CalibrationError`` for what a function raises."""
        try:
            return self.preprocess(image)
        except Exception as error:
            raise CalibrationError(
                f"preprocess fails on {place}: {type(error).__name__}: {one_line(error)}. "
                "Remedy: look at the function, or leave the image out."
            ) from error

    def sample(self, values: Any, file: Path, place: str) -> Any:
        """A sample that knows its place, and its label if there are classes."""
        if not self.classes:
            return Located(values, place) if isinstance(values, Mapping) else Unnamed(values, place)
        label = self.classes.index(file.relative_to(self.path).parts[0])
        if isinstance(values, Mapping):
            return Located({**values, LABELS[0]: label}, place)
        return Unnamed(values, place, label)


def _image_files(folder: Path) -> list[Path]:
    """The images below a folder.  Raises ``CalibrationError`` if there are none."""
    try:
        files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        folder.stat()
    except OSError as error:
        raise CalibrationError(
            f"cannot read the image folder {str(folder)!r}: {one_line(error)}. "
            "Remedy: give a folder that exists."
        ) from error
    if not files:
        raise CalibrationError(
            f"{str(folder)!r} has no images ({', '.join(SUFFIXES)}). Remedy: give a folder of them."
        )
    return files


def _list_classes(folder: Path, files: list[Path]) -> list[str]:
    """The names of subfolders, which are classes.  Raises ``CalibrationError``."""
    for file in files:
        if file.parent == folder:
            raise CalibrationError(
                f"{file.name!r} of {str(folder)!r} lies in no subfolder, so it has no label. "
                "Remedy: a subfolder for each class, in the order of the model's classes."
            )
    return sorted({entry.name for entry in folder.iterdir() if entry.is_dir()})


def _open_image(library: Any, file: Path) -> Any:
    """An image in RGB.  Raises ``CalibrationError``."""
    try:
        with library.open(file) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"{width} x {height} are more than {MAX_PIXELS} pixels")
            return image.convert("RGB")
    except Exception as error:
        raise CalibrationError(
            f"cannot read the image {str(file)!r}: {one_line(error)}. "
            "Remedy: leave it out, or save it anew."
        ) from error


@dataclass(frozen=True)
class Crop:
    """The center of an image whose shorter side was resized: uint8 [1, side, side, 3]."""

    side: int = SIDE

    def __call__(self, image: Any) -> Array:
        shorter = round(self.side / RATIO)
        scale = shorter / min(image.size)
        width, height = (max(shorter, round(length * scale)) for length in image.size)
        resized = image.resize((width, height), resample=BILINEAR)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        box = (left, top, left + self.side, top + self.side)
        return np.asarray(resized.crop(box), np.uint8)[None]


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


def preprocessing(option: str, choice: Any) -> Preprocess:
    """A function of an image, a name of ``PREPROCESSING``, or "module:function".

    Raises ``OptionError``.
    """
    if callable(choice):
        return choice  # type: ignore[no-any-return]
    if not isinstance(choice, str):
        raise OptionError(f"{option} is missing or no text: {brief(choice)}. {REMEDY}")
    name, _, argument = choice.partition(":")
    if name in PREPROCESSING:
        if argument and not (argument.isdecimal() and 0 < int(argument) < 2**16):
            raise OptionError(f"{option} {choice!r} has no side of pixels. {REMEDY}")
        return PREPROCESSING[name](int(argument) if argument else SIDE)
    if not name or not argument:
        raise OptionError(f"{option} {choice!r} is unknown. {REMEDY}")
    return _load_function(option, name, argument)


REMEDY = (
    f"Remedy: one of {', '.join(PREPROCESSING)}, with a side as imagenet:299, or a function of an "
    "image as module:function."
)


def _load_function(option: str, module: str, name: str) -> Preprocess:
    """A function of a module, which may lie in the current folder.  Raises ``OptionError``."""
    with _current_folder_first():
        try:
            function = getattr(import_module(module), name)
        except Exception as error:
            kind = type(error).__name__
            raise OptionError(
                f"{option} cannot load {name!r} of module {module!r}: {kind}: {one_line(error)}. "
                f"{REMEDY}"
            ) from error
    if not callable(function):
        raise OptionError(f"{option}: {module}:{name} is no function. {REMEDY}")
    return function  # type: ignore[no-any-return]


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """Modules of the current folder are found, as ``python -m`` finds them."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
