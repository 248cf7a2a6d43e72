"""A folder of the cache whose files are run or believed: only this user and the administrator may
write to them.

Every access goes through a descriptor of the folder, opened without following a link: nobody can
exchange the folder between the check and the use.  The folders above it may belong to others.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")
"""Names of files that are being written."""
ABANDONED_SECONDS = 3600.0
"""Older temporary files were left by processes that were killed."""

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class PrivateFolder:
    """All methods raise ``OSError``: ``PermissionError`` for what others may write to."""

    path: Path

    def read(self, name: str) -> tuple[bytes, float]:
        """The content of a file and its age in seconds."""
        with self._opened() as folder:
            # Without O_NONBLOCK a pipe of that name would be waited for.
            file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=folder)
            with open(file, "rb") as stream:
                status = os.fstat(file)
                check_private(status, self.path / name)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "It is no file", str(self.path / name))
                return stream.read(), time.time() - status.st_mtime

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all; the folder is made if it does not exist."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = f".{name}.{secrets.token_hex(8)}"
        with self._opened() as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
            with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as stream:
                try:
                    stream.write(content)
                    stream.flush()
                    os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    os.unlink(temporary, dir_fd=folder)
                    raise

    def touch(self, name: str) -> None:
        """Give an existing file the date of now."""
        with self._opened() as folder:
            os.utime(name, dir_fd=folder, follow_symlinks=False)

    def files(self, suffix: str) -> list[tuple[float, int, str]]:
        """Date of last use, bytes and name of each file with a suffix, the oldest first."""
        with self._opened() as folder:
            return sorted(_files(folder, re.compile(".*" + re.escape(suffix))))

    def remove(self, name: str) -> None:
        """Remove a file; another process may have done so."""
        with self._opened() as folder, suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def sweep(self) -> None:
        """Remove what killed processes left half-written."""
        oldest = time.time() - ABANDONED_SECONDS
        with self._opened() as folder:
            for date, _, name in _files(folder, TEMPORARY):
                if date < oldest:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        try:
            check_private(os.fstat(folder), self.path)
            yield folder
        finally:
            os.close(folder)


def check_private(status: os.stat_result, path: Path) -> None:
    """Raise ``PermissionError`` where others than this user and the administrator may write."""
    others = stat.S_IWGRP | stat.S_IWOTH
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & others:
        raise PermissionError(errno.EPERM, "Other users may write to it", str(path))


def _files(folder: int, names: re.Pattern[str]) -> Iterator[tuple[float, int, str]]:
    """Date, bytes and name of each file of such a name; others may remove some meanwhile."""
    with os.scandir(folder) as scan:
        for entry in scan:
            if names.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield status.st_mtime, status.st_size, entry.name
