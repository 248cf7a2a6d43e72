"""Folders of images as samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quantglow.arguments import file_path, flag, options_named
from quantglow.data.array_files import one_line
from quantglow.data.preprocessing import preprocessing
from quantglow.data.samples import LABELS, Located, Unnamed
from quantglow.errors import CalibrationError
from quantglow.extras import package

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

    @options_named()
    def __init__(
        self, path: str | os.PathLike[str], preprocess: Any, *, labels: bool = False
    ) -> None:
        self.path = Path(file_path("path", path))
        self.preprocess = preprocessing("preprocess", preprocess)
        self.files = image_files(self.path)
        self.classes: list[str] = (
            classes_of(self.path, self.files) if flag("labels", labels) else []
        )

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Any]:
        library = package("PIL.Image", "images", f"the folder {str(self.path)!r}", CalibrationError)
        for file in self.files:
            place = repr(str(file.relative_to(self.path)))
            yield self.sample(self.prepared(opened(library, file), place), file, place)

    def prepared(self, image: Any, place: str) -> Any:
        """The result of preprocessing.  Raises ``CalibrationError`` for what a function raises."""
        try:
            return self.preprocess(image)
        except Exception as error:
            raise CalibrationError(
                f"preprocess fails on {place}: {type(error).__name__}: {one_line(error)}. "
                "Remedy: look at the function, or leave the image out."
            ) from error

    def sample(self, found: Any, file: Path, place: str) -> Any:
        """A sample that knows its place, and its label if there are classes."""
        if not self.classes:
            return Located(found, place) if isinstance(found, Mapping) else Unnamed(found, place)
        label = self.classes.index(file.relative_to(self.path).parts[0])
        if isinstance(found, Mapping):
            return Located({**found, LABELS[0]: label}, place)
        return Unnamed(found, place, label)


def image_files(folder: Path) -> list[Path]:
    """The images below a folder.  Raises ``CalibrationError`` if there are none."""
    try:
        found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        folder.stat()
    except OSError as error:
        raise CalibrationError(
            f"cannot read the image folder {str(folder)!r}: {one_line(error)}. "
            "Remedy: give a folder that exists."
        ) from error
    if not found:
        raise CalibrationError(
            f"{str(folder)!r} has no images ({', '.join(SUFFIXES)}). Remedy: give a folder of them."
        )
    return found


def classes_of(folder: Path, files: list[Path]) -> list[str]:
    """The names of subfolders, which are classes.  Raises ``CalibrationError``."""
    for file in files:
        if file.parent == folder:
            raise CalibrationError(
                f"{file.name!r} of {str(folder)!r} lies in no subfolder, so it has no label. "
                "Remedy: a subfolder for each class, in the order of the model's classes."
            )
    return sorted({entry.name for entry in folder.iterdir() if entry.is_dir()})


def opened(library: Any, file: Path) -> Any:
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
