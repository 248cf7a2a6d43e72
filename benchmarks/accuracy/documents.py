"""Rendered identity documents: text and tables over a machine-readable zone.

The zone (MRZ, ICAO Doc 9303 part 4) has two lines of 44 characters of one width.  Pillow draws them
in matplotlib's DejaVu Sans Mono, both of ``pip install 'quantglow[bench]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.detector import page

Array = NDArray[Any]

HEIGHT, ZONE_TOP = 430, 330
LINE_TOPS, LEFT, FONT_SIZE = (345, 381), 12, 22
"""Places in pixels: 44 characters fill the width of a page."""

LENGTH = 44
"""Characters in a line of the zone."""


def document(rng: np.random.Generator) -> Array:
    """The upper part of a page over a zone, bytes [HEIGHT, W, 3]."""
    # Imported here because only this benchmark needs what quantglow[bench] installs.
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    sheet = page(rng)[:HEIGHT].copy()
    sheet[ZONE_TOP:] = int(rng.integers(225, 256))
    image = Image.fromarray(sheet)
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans Mono"), FONT_SIZE)
    ink = int(rng.integers(10, 60))
    for top, line in zip(LINE_TOPS, zone(rng), strict=True):
        ImageDraw.Draw(image).text((LEFT, top), line, font=font, fill=(ink, ink, ink))
    return np.asarray(image)


def zone(rng: np.random.Generator) -> tuple[str, str]:
    """The lines of a passport: country and names; number, birth, sex, expiry, check digits."""
    country, number = word(rng, 3), word(rng, 9, ascii_uppercase + digits)
    names = [word(rng, int(size)) for size in rng.integers(3, 9, 3)]
    first = f"P<{country}{names[0]}<{names[1]}<<{names[2]}"
    dates = f"{word(rng, 7, digits)}{word(rng, 1, 'FM')}{word(rng, 7, digits)}"
    second = f"{number}{word(rng, 1, digits)}{country}{dates}".ljust(LENGTH - 2, "<")
    return first.ljust(LENGTH, "<"), second + word(rng, 2, digits)


def word(rng: np.random.Generator, size: int, characters: Sequence[str] = ascii_uppercase) -> str:
    """Random characters."""
    return "".join(characters[i] for i in rng.integers(len(characters), size=size))
