"""Members of a saved model's zip archive: which are compressed, and how far they may expand.

Nothing in a file is trusted, so a small file must not fill the memory: all members together have at
most ``MAX_EXPANSION`` times the bytes of the file, beyond ``FREE_NBYTES``.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

MAX_EXPANSION = 64
"""Bytes of the members for each byte of the file.  Texts of graphs reach about 30."""

FREE_NBYTES = 64 << 20
"""Bytes that the members of any file may have."""

WORTHWHILE = 0.8
"""Long members that deflate makes no smaller than this share of them stay as they are: weights of
int8 would lose a tenth, and loading them takes twice as long."""

QUICK_NBYTES = 1 << 20
"""Shorter members are compressed for any gain."""

PROBE_NBYTES, PIECES = 1 << 18, 16
"""Longer members are judged by pieces spread over them, of this many bytes together."""

METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


def write_members(path: Path, members: Mapping[str, bytes]) -> None:
    """Write an archive; members are compressed where that pays and readers allow it."""
    methods = {name: method_of(data) for name, data in members.items()}
    write_archive(path, members, methods)
    if not is_bounded(sum(map(len, members.values())), path.stat().st_size):
        write_archive(path, members, dict.fromkeys(members, zipfile.ZIP_STORED))


def write_archive(path: Path, members: Mapping[str, bytes], methods: Mapping[str, int]) -> None:
    """Write an archive, each member by its method."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data, methods[name])


def method_of(data: bytes) -> int:
    """Whether to compress a member: by how much smaller deflate makes it."""
    wanted = len(data) if len(data) < QUICK_NBYTES else WORTHWHILE * len(data)
    is_smaller = deflated_nbytes(data) < wanted
    return zipfile.ZIP_DEFLATED if is_smaller else zipfile.ZIP_STORED


def deflated_nbytes(data: bytes) -> float:
    """Size of the data when deflated, an estimate where it is long."""
    probe = probe_of(data)
    return len(zlib.compress(probe, 1)) * len(data) / max(1, len(probe))


def probe_of(data: bytes) -> bytes:
    """A member, or pieces of a long one."""
    if len(data) <= PROBE_NBYTES:
        return data
    size = PROBE_NBYTES // PIECES
    starts = (i * (len(data) - size) // (PIECES - 1) for i in range(PIECES))
    return b"".join(data[start : start + size] for start in starts)


def is_bounded(members_nbytes: int, file_nbytes: int) -> bool:
    """Whether a file of this size may have members of so many bytes."""
    return members_nbytes <= FREE_NBYTES + MAX_EXPANSION * file_nbytes


def check_members(archive: zipfile.ZipFile) -> None:
    """Raise ``ValueError`` on members that are encrypted, packed by other methods, there twice,
    that share bytes of the file, or that expand too far.
    """
    found, nbytes = archive.infolist(), nbytes_of(archive)
    if len({info.filename for info in found}) != len(found):
        raise ValueError("a member occurs twice")
    for info in found:
        is_plain = info.compress_type == zipfile.ZIP_STORED
        odd_size = is_plain and info.compress_size != info.file_size
        if info.compress_type not in METHODS or odd_size or info.flag_bits & 1:
            raise ValueError(f"member {info.filename!r} is encrypted, or packed in an unknown way")
    if sum(info.compress_size for info in found) > nbytes:
        raise ValueError("members overlap")
    check_bounded(sum(info.file_size for info in found), nbytes)


def check_bounded(members_nbytes: int, file_nbytes: int) -> None:
    """Raise ``ValueError`` where ``is_bounded`` is false."""
    if not is_bounded(members_nbytes, file_nbytes):
        raise ValueError(
            f"its members would expand to more than {MAX_EXPANSION} times the size of the file"
        )


def nbytes_of(archive: zipfile.ZipFile) -> int:
    """The size of the file."""
    assert archive.fp is not None, "the archive is open"
    return archive.fp.seek(0, os.SEEK_END)


def content_of(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member, at most as many as the directory of the archive says."""
    info = archive.getinfo(name)
    with archive.open(info) as file:
        return file.read(info.file_size)
