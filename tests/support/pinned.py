"""Inputs and hashes of the graphs in ``tests/e2e/pinned``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import quantglow.ir.ops  # noqa: F401 - registers the operators that a saved graph names
from quantglow.ir.graph.graph import Graph
from quantglow.runtime.saved import saving
from quantglow.support.arrays import Array

FOLDER = Path(__file__).parents[1] / "e2e" / "pinned"
HASHES = FOLDER / "hashes.json"
"""Name of a graph -> the seed of its inputs, and the SHA-256 of its outputs."""

SPREADS = (1.0, 2.0, 8.0)
"""Magnitudes of the inputs, one for each run: the last saturates."""

NAMES: tuple[str, ...] = tuple(sorted(path.stem for path in FOLDER.glob("*.qgm")))


def pinned(name: str) -> Graph:
    """A graph of the folder."""
    return saving.load(FOLDER / f"{name}.qgm").graph


def hashes() -> dict[str, tuple[int, str]]:
    """The pinned seeds and hashes."""
    data: dict[str, tuple[int, str]] = json.loads(HASHES.read_text())
    return data


def feeds_of(graph: Graph, seed: int) -> list[dict[str, Array]]:
    """One feed for each of ``SPREADS``, the same numbers for any version of NumPy."""
    return [
        {x.name: drawn(f"{seed} {x.name} {spread}", x.type.shape, spread) for x in graph.inputs}
        for spread in SPREADS
    ]


def drawn(key: str, shape: tuple[int, ...], spread: float) -> Array:
    """Uniform float32 in [-spread, spread): 65,536 different values."""
    octets = hashlib.shake_256(key.encode()).digest(2 * int(np.prod(shape)))
    integers = np.frombuffer(octets, "<i2").astype(np.float32)
    return (integers * np.float32(spread / 2**15)).reshape(shape)


def digest(runs: Sequence[Sequence[Array]]) -> str:
    """The SHA-256 of integer outputs: types, shapes and elements."""
    digest = hashlib.sha256()
    for array in (array for run in runs for array in run):
        assert array.dtype.kind in "iu", array.dtype
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
