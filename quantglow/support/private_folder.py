"""A folder of the cache whose files are run or believed: only this user and the administrator may
write to them.

Every access goes through a descriptor of the folder, opened without following a link: nobody can
exchange the folder between the check and the use.  The folders above it may belong to others.
Windows has no such descriptors, owners or modes: there, the permissions of the user's own folder
must do.
"""

from __future__ import annotations

import errno
import operator
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")
"""Names of files that are being written."""
ABANDONED_SECONDS = 3600.0
"""Older temporary files were left by processes that were killed."""

HAS_DESCRIPTORS = os.open in os.supports_dir_fd
"""Whether names may be relative to a descriptor of a folder."""


def flags(*names: str) -> int:
    """Flags of ``os.open``, as far as this system has them."""
    return reduce(operator.or_, (getattr(os, name, 0) for name in names))


_OPEN = flags("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY")
_FOLDER = flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW")


@dataclass(frozen=True)
class PrivateFolder:
    """All methods raise ``OSError``: ``PermissionError`` for what others may write to."""

    path: Path

    def read(self, name: str) -> tuple[bytes, float]:
        """The content of a file and its age in seconds."""
        with self._open() as folder:
            # Without O_NONBLOCK a pipe of that name would be waited for.
            file = os.open(self._name(name), flags("O_RDONLY", "O_NONBLOCK") | _OPEN, dir_fd=folder)
            with open(file, "rb") as stream:
                status = os.fstat(file)
                _check_private(status, self.path / name)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "It is no file", str(self.path / name))
                return stream.read(), time.time() - status.st_mtime

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        with self._open() as folder:
            try:
                os.stat(self._name(name), dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all; the folder is made if it does not exist."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._name(f".{name}.{secrets.token_hex(8)}")
        with self._open() as folder:
            how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
            try:
                with open(os.open(temporary, how, 0o600, dir_fd=folder), "wb") as stream:
                    stream.write(content)
                ends = {"src_dir_fd": folder, "dst_dir_fd": folder}
                os.replace(temporary, self._name(name), **ends)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def append(self, name: str, content: bytes) -> None:
        """Add to the end of a file at once; folder and file are made if they do not exist."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._open() as folder:
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags("O_NONBLOCK") | _OPEN
            file = os.open(self._name(name), how, 0o600, dir_fd=folder)
            with open(file, "wb", buffering=0) as stream:
                _check_private(os.fstat(file), self.path / name)
                stream.write(content)

    def touch(self, name: str) -> None:
        """Give an existing file the date of now."""
        with self._open() as folder:
            follow = os.utime not in os.supports_follow_symlinks
            os.utime(self._name(name), dir_fd=folder, follow_symlinks=follow)

    def files(self, suffix: str) -> list[tuple[float, int, str]]:
        """Date of last use, bytes and name of each file with a suffix, the oldest first."""
        with self._open() as folder:
            return sorted(self._files(folder, re.compile(".*" + re.escape(suffix))))

    def remove(self, name: str) -> None:
        """Remove a file; another process may have done so."""
        with self._open() as folder, suppress(FileNotFoundError):
            os.unlink(self._name(name), dir_fd=folder)

    def sweep(self) -> None:
        """Remove what killed processes left half-written."""
        oldest = time.time() - ABANDONED_SECONDS
        with self._open() as folder:
            for date, _, name in self._files(folder, TEMPORARY):
                if date < oldest:
                    with suppress(FileNotFoundError):
                        os.unlink(self._name(name), dir_fd=folder)

    def _files(
        self, folder: int | None, names: re.Pattern[str]
    ) -> Iterator[tuple[float, int, str]]:
        """Date, bytes and name of each file of such a name; others may remove some meanwhile."""
        with os.scandir(self.path if folder is None else folder) as scan:
            for entry in scan:
                if names.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield status.st_mtime, status.st_size, entry.name

    def _name(self, name: str) -> str:
        """A file relative to the descriptor, or its path where there is none."""
        return name if HAS_DESCRIPTORS else str(self.path / name)

    @contextmanager
    def _open(self) -> Iterator[int | None]:
        """A descriptor of the folder, None on systems without."""
        if not HAS_DESCRIPTORS:
            yield None
            return
        folder = os.open(self.path, _FOLDER)
        try:
            _check_private(os.fstat(folder), self.path)
            yield folder
        finally:
            os.close(folder)


def _check_private(status: os.stat_result, path: Path) -> None:
    """Raise ``PermissionError`` where others than this user and the administrator may write."""
    if not HAS_DESCRIPTORS:
        return
    others = stat.S_IWGRP | stat.S_IWOTH
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & others:
        raise PermissionError(errno.EPERM, "Other users may write to it", str(path))
