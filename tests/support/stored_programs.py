"""Models that are run as a new process runs them, which finds their programs on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from quantglow.support.arrays import Array
from tests.support.free_network import SHAPES, image
from tests.support.small_network import small_model


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the kernels of this process, as a new one does not have them."""
    monkeypatch.setattr("quantglow.runtime.jit.library.libraries", {})


def run_small() -> bytes:
    compiled = qg.compile(small_model(), num_threads=1)
    (info,) = compiled.get_inputs()
    x = np.random.default_rng(1).standard_normal(info.shape).astype(np.float32)
    return b"".join(array.tobytes() for array in compiled.run(None, {info.name: x}))


def run_shapes(path: Path) -> list[bytes]:
    """Outputs at all shapes."""
    compiled = qg.load(path, num_threads=1)
    outputs: list[list[Array]] = [compiled.run(None, {"x": image(shape)}) for shape in SHAPES]
    return [array.tobytes() for value in outputs for array in value]
