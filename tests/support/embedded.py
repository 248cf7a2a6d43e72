"""The two networks of the repository, with inputs from their calibration data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantglow.cli.demo import mnist, ocr_direction
from quantglow.support.arrays import Array

MAKERS = {"mnist": mnist, "ppocr_cls": ocr_direction}


@dataclass(frozen=True)
class Network:
    """A model file, and images [n, C, H, W] to feed it."""

    path: Path
    input_name: str
    images: Array

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of its input, with one sample."""
        return {self.input_name: (1, *self.images.shape[1:])}

    def feeds(self, count: int, seed: int = 0) -> list[dict[str, Array]]:
        """``count`` inputs of one sample each, drawn by ``seed``."""
        chosen = np.random.default_rng(seed).permutation(len(self.images))[:count]
        return [{self.input_name: self.images[i : i + 1]} for i in chosen]


def network(name: str) -> Network:
    """``mnist`` or ``ppocr_cls``."""
    example = MAKERS[name]()
    return Network(example.model, example.input_name, example.calibration)
