"""Arrays are read whole, or one message says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantglow.files import read_arrays


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(3), y=np.eye(2))
    found = read_arrays(tmp_path / "a.npz")
    assert sorted(found) == ["x", "y"]
    np.testing.assert_array_equal(found["x"], np.arange(3))


def test_no_array_is_no_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz")
    assert read_arrays(tmp_path / "none.npz") == {}


def damaged(path: Path) -> bytes:
    """An archive in which one byte is another one."""
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 99, 999))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    return bytes(data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: b"", "is empty"),
        (lambda path: b"hello, world", "is no .npz file"),
        (lambda path: b"PK\x03\x04 and so on", "is damaged"),
        (lambda path: damaged(path)[:200], "is damaged"),
        (damaged, "is damaged"),
        (lambda path: b"\x93NUMPY\x01\x00", "one array without a name"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, make: object, message: str) -> None:
    (tmp_path / "a.npz").write_bytes(make(tmp_path / "made.npz"))  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        read_arrays(tmp_path / "a.npz")


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([None]))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("flip", [0x01, 0x20, 0xFF])
def test_any_altered_byte_gives_arrays_or_one_kind_of_error(tmp_path: Path, flip: int) -> None:
    path, causes = tmp_path / "a.npz", set()
    np.savez_compressed(path, x=np.linspace(0, 1, 99), y=np.arange(3))
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ flip]) + whole[position + 1 :])
        try:
            read_arrays(path)
        except (OSError, ValueError) as error:
            causes.add(type(error.__cause__).__name__)
    assert {"BadZipFile", "NotImplementedError", "error"} <= causes
