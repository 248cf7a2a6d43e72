"""Arrays are read whole, or one message has the reason."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from quantglow.support import files
from quantglow.support.files import read_arrays


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(3), y=np.eye(2))
    actual = read_arrays(tmp_path / "a.npz")
    assert sorted(actual) == ["x", "y"]
    np.testing.assert_array_equal(actual["x"], np.arange(3))


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
def test_files_that_are_no_archives_of_arrays_are_refused(
    tmp_path: Path, make: object, message: str
) -> None:
    (tmp_path / "a.npz").write_bytes(make(tmp_path / "made.npz"))  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        read_arrays(tmp_path / "a.npz")


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([None]))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.slow_variants
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


def test_archives_that_unpack_to_too_much_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_NBYTES", 1 << 20)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("was read"))
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 19, np.uint8), y=np.zeros(1 << 19))
    with pytest.raises(ValueError, match=r"unpack to .* more than the 1048576 that are allowed"):
        read_arrays(tmp_path / "a.npz")


def test_arrays_that_are_not_compressed_have_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_NBYTES", 1 << 10)
    np.savez(tmp_path / "a.npz", x=np.zeros(1 << 19, np.uint8))
    assert read_arrays(tmp_path / "a.npz")["x"].nbytes == 1 << 19


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(1 << 12, np.uint8))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y.npy", b"")
        (first, again) = archive.infolist()
        again.header_offset, again.CRC = first.header_offset, first.CRC
        again.file_size = again.compress_size = first.file_size
    with pytest.raises(ValueError, match="overlap"):
        read_arrays(path)


@pytest.mark.parametrize("count", [10**9, 10**12, 10**30])
def test_a_member_that_claims_elements_it_does_not_have_is_refused(
    tmp_path: Path, count: int
) -> None:
    header = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))
    with pytest.raises(ValueError, match=r"damaged|EOF|array is too big|[Mm]aximum"):
        read_arrays(tmp_path / "a.npz")


def test_a_member_that_holds_more_than_it_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(1 << 16, np.uint8))
    whole = path.read_bytes()
    size = (128 + (1 << 16)).to_bytes(4, "little")
    assert size in whole
    path.write_bytes(whole.replace(size, (64).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"damaged|truncated|EOF"):
        read_arrays(path)
