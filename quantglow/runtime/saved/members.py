"""Members of a saved model's zip archive: compression, and limits on their expansion.

Files are not trusted, so a small file must not fill the memory: all members together have at most
``MAX_EXPANSION`` times the bytes of the file, beyond ``FREE_NBYTES``.
"""

from __future__ import annotations

import os
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantglow.support.pages import (
    PIECE_NBYTES,
    Content,
    Data,
    JoinedBytes,
    iterate_pieces,
    release_pages,
)

MAX_EXPANSION = 64
"""Maximum number of bytes in members for each byte of the file.  Texts of graphs reach about 30."""

FREE_NBYTES = 64 << 20
"""Number of bytes that the members of any file may have."""

WORTHWHILE = 0.8
"""Maximum share of its size that deflate may leave of a long member; other members are stored.
int8 weights would shrink by a tenth, and loading them would take twice as long."""

QUICK_NBYTES = 1 << 20
"""Size in bytes below which members are compressed for any gain."""

MOST_FILES = 64
"""Maximum number of files in a file, at any depth: parts whose shapes are known later and later,
and bodies of loops."""

PROBE_NBYTES, PIECES = 1 << 18, 16
"""Long members are judged by ``PIECES`` pieces spread over them, of ``PROBE_NBYTES`` together."""

METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


def write_members(path: Path, members: Mapping[str, Content]) -> None:
    """Write an archive; members are compressed if that pays and readers allow it."""
    methods = {name: _choose_method(data) for name, data in members.items()}
    _write_archive(path, members, methods)
    if not is_bounded(sum(map(len, members.values())), path.stat().st_size):
        _write_archive(path, members, dict.fromkeys(members, zipfile.ZIP_STORED))


def _write_archive(path: Path, members: Mapping[str, Content], methods: Mapping[str, int]) -> None:
    """Write an archive, each member by its method."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if isinstance(content, JoinedBytes):
                _write_parts(archive, name, content, methods[name])
            else:
                archive.writestr(name, content, methods[name])


def _write_parts(archive: zipfile.ZipFile, name: str, content: JoinedBytes, method: int) -> None:
    """A member of an archive that is open for writing, piece by piece."""
    info = zipfile.ZipInfo(name, time.localtime()[:6])
    info.compress_type, info.file_size = method, len(content)
    info.external_attr = 0o600 << 16
    with archive.open(info, "w") as file:
        for piece in iterate_pieces(content):
            file.write(piece)


def _choose_method(data: Content) -> int:
    """Compression method of a member, by the size that deflate gives it."""
    return zipfile.ZIP_DEFLATED if member_nbytes(data) < len(data) else zipfile.ZIP_STORED


def member_nbytes(data: Content) -> float:
    """Size of a member in a file; for long data an estimate."""
    deflated = _estimate_deflated(data)
    limit = len(data) if len(data) < QUICK_NBYTES else WORTHWHILE * len(data)
    return deflated if deflated < limit else len(data)


def _estimate_deflated(data: Content) -> float:
    """Size of the data when deflated; for long data an estimate."""
    probe = _sample_content(data)
    return len(zlib.compress(probe, 1)) * len(data) / max(1, len(probe))


def _sample_content(data: Content) -> Data:
    """A member, or pieces of a long one."""
    if len(data) <= PROBE_NBYTES:
        return b"".join(iterate_pieces(data))
    size = PROBE_NBYTES // PIECES
    starts = (i * (len(data) - size) // (PIECES - 1) for i in range(PIECES))
    probe = b"".join(data[start : start + size] for start in starts)
    release_pages()
    return probe


def is_bounded(members_nbytes: int, file_nbytes: int) -> bool:
    """Whether a file of this size may have members of ``nbytes``."""
    return members_nbytes <= FREE_NBYTES + MAX_EXPANSION * file_nbytes


@dataclass
class Allowance:
    """Bytes that the members of a file, and of files in these, may have beyond ``FREE_NBYTES``
    each: a file in a file is no new one, or each could expand the one before it.  ``files``: number
    of files that may be in it, at any depth."""

    nbytes: int
    files: int = MOST_FILES

    @staticmethod
    def of(archive: zipfile.ZipFile) -> Allowance:
        """Allowance of a file: its size times ``MAX_EXPANSION``."""
        return Allowance(MAX_EXPANSION * _archive_nbytes(archive))

    def spend(self, members_nbytes: int) -> None:
        """Take the bytes of a file's members.  Raises ``ValueError``."""
        self.nbytes -= max(0, members_nbytes - FREE_NBYTES)
        if self.nbytes < 0:
            raise ValueError(
                f"its members would expand to more than {MAX_EXPANSION} times the size of the file"
            )

    def open_file(self) -> None:
        """Count a file in the file.  Raises ``ValueError``."""
        self.files -= 1
        if self.files < 0:
            raise ValueError(f"it has more than {MOST_FILES} files inside of each other")


def check_members(archive: zipfile.ZipFile, allowance: Allowance) -> None:
    """Raise ``ValueError`` for members that are encrypted, compressed by other methods, present
    twice, share bytes of the file, or expand too far.
    """
    members, nbytes = archive.infolist(), _archive_nbytes(archive)
    if len({info.filename for info in members}) != len(members):
        raise ValueError("a member occurs twice")
    for info in members:
        is_plain = info.compress_type == zipfile.ZIP_STORED
        odd_size = is_plain and info.compress_size != info.file_size
        if info.compress_type not in METHODS or odd_size or info.flag_bits & 1:
            raise ValueError(f"member {info.filename!r} is encrypted, or packed in an unknown way")
    if sum(info.compress_size for info in members) > nbytes:
        raise ValueError("members overlap")
    allowance.spend(sum(info.file_size for info in members))


def _archive_nbytes(archive: zipfile.ZipFile) -> int:
    """The size of the file."""
    assert archive.fp is not None, "the archive is open"
    return archive.fp.seek(0, os.SEEK_END)


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member, at most the number that the directory of the archive states."""
    info = archive.getinfo(name)
    with archive.open(info) as file:
        return file.read(info.file_size)


def pieces_in(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """The same bytes in pieces."""
    left = archive.getinfo(name).file_size
    with archive.open(name) as file:
        while left > 0 and (piece := file.read(min(left, PIECE_NBYTES))):
            left -= len(piece)
            yield piece
