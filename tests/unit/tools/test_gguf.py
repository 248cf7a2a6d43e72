"""GGUF files: metadata, and tensors of each type that is read."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tools.downloads.gguf import Q4_1, Q8_0, Gguf


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def written(path: Path, version: int = 3) -> dict[str, np.ndarray]:
    """A file of one tensor of each type; what they are."""
    rng = np.random.default_rng(0)
    fours, eights = np.zeros(2, Q4_1), np.zeros(2, Q8_0)
    fours["step"], fours["least"], fours["codes"] = 0.5, -2, rng.integers(0, 256, (2, 16))
    eights["step"], eights["codes"] = 0.25, rng.integers(-128, 128, (2, 32))
    plain = rng.standard_normal(3).astype("<f4")
    parts = {"plain": (0, (3,), plain), "four": (3, (32, 2), fours), "eight": (8, (32, 2), eights)}
    names = text("names") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    head = struct.pack("<4sIQQ", b"GGUF", version, len(parts), 2)
    head += text("count") + struct.pack("<II", 4, 7) + names
    data = b""
    for name, (kind, sizes, array) in parts.items():
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, len(data))
        data += array.tobytes() + bytes(-array.nbytes % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    low, high = fours["codes"] & 15, fours["codes"] >> 4
    four = np.concatenate([low, high], axis=1) * 0.5 - 2
    return {"plain": plain, "four": four, "eight": eights["codes"] * 0.25}


def test_tensors_are_what_was_written(tmp_path: Path) -> None:
    expected = written(tmp_path / "a.gguf")
    file = Gguf(tmp_path / "a.gguf")
    assert file.metadata == {"count": 7, "names": ["a", "b"]}
    for name, array in expected.items():
        assert file[name].dtype == np.float32
        np.testing.assert_array_equal(file[name], array)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "a.gguf", version=2)
    with pytest.raises(ValueError, match="no GGUF file of version 3"):
        Gguf(tmp_path / "a.gguf")
