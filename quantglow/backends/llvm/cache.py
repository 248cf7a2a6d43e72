"""Compiled objects on disk, shared by all processes of a user.

``$QUANTGLOW_CACHE_DIR/kernels``, by default ``~/.cache/quantglow/kernels``; the empty string
disables it.  An entry is a file named by the symbol it defines, and the symbol is a hash of all
that the code depends on, so entries never become stale.  A file is ``MAGIC``, the SHA-256 of symbol
and object, then the object.  It is written aside and renamed: readers see all of it or nothing.

Other entries are named by a kernel call, see ``identity``, and hold the symbol of its kernel.

The cache only saves time.  What cannot be read is compiled again; what cannot be written is not
kept, and the debug log says so.  A hash tells damage, not intent, and entries are run: a folder
that other users may write to is not used.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from quantglow import debug
from quantglow.files import replacing

ENVIRONMENT = "QUANTGLOW_CACHE_DIR"
MAGIC = b"quantglow-object-1\n"
SUFFIX = ".o"
MOST_NBYTES = 512 * 2**20
"""All entries together."""
KEPT_SHARE = 0.75
"""Of ``MOST_NBYTES`` after a pruning, so that the next one is far away."""
PRUNE_EVERY_NBYTES = 32 * 2**20
"""Bytes a process writes between two looks at the size of the cache."""
PRUNE_EVERY_SECONDS = 24 * 3600.0
"""Processes that write less look at the size once in this time, all together."""
TOUCH_AFTER_SECONDS = 24 * 3600.0
"""A used entry gets a new date when it is older: pruning removes what was used longest ago."""


@dataclass
class ObjectCache:
    """Objects in ``folder``; without a folder nothing is kept."""

    folder: Path | None
    most_nbytes: int = MOST_NBYTES
    _unchecked_nbytes: int = field(default=0, init=False)

    def get(self, symbol: str) -> bytes | None:
        """The object that defines ``symbol``, or None where there is no intact one."""
        if self.folder is None or not is_private(self.folder):
            return None
        path = self._path(self.folder, symbol)
        try:
            with open(path, "rb") as file:
                age = time.time() - os.fstat(file.fileno()).st_mtime
                entry = file.read()
        except OSError as error:
            self._missed(symbol, error)
            return None
        code = unsealed(symbol, entry)
        if code is None:
            debug.log(2, f"kernel cache: {path} is damaged and will be replaced")
        elif age > TOUCH_AFTER_SECONDS:
            self._touch(path)
        return code

    def put(self, symbol: str, code: bytes) -> None:
        """Keep an object; a full or read-only disk is no error."""
        if self.folder is None:
            return
        entry = sealed(symbol, code)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_private(self.folder):
                return
            with replacing(self._path(self.folder, symbol)) as temporary:
                temporary.write_bytes(entry)
            self._unchecked_nbytes += len(entry)
            if self._is_pruning_due(self.folder):
                self.prune()
        except OSError as error:
            debug.log(2, f"kernel cache: {symbol} is not kept: {error}")

    def prune(self) -> None:
        """Remove what was used longest ago if the entries are too large together."""
        assert self.folder is not None
        self._unchecked_nbytes = 0
        found = sorted(_dated_sizes(self.folder))
        total = sum(nbytes for _, nbytes, _ in found)
        if total <= self.most_nbytes:
            return
        for _, nbytes, path in found:
            Path(path).unlink(missing_ok=True)
            total -= nbytes
            if total <= self.most_nbytes * KEPT_SHARE:
                break
        debug.log(2, f"kernel cache: pruned to {total} bytes")

    @staticmethod
    def _path(folder: Path, symbol: str) -> Path:
        return folder / (symbol + SUFFIX)

    @staticmethod
    def _missed(symbol: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            debug.log(2, f"kernel cache: {symbol} cannot be read: {error}")

    @staticmethod
    def _touch(path: Path) -> None:
        try:
            os.utime(path)
        except OSError as error:
            debug.log(2, f"kernel cache: {path} keeps its date: {error}")

    def _is_pruning_due(self, folder: Path) -> bool:
        """After much was written here, or when no process has looked for a day."""
        if self._unchecked_nbytes >= PRUNE_EVERY_NBYTES:
            return True
        marker = folder / ".looked"
        try:
            recent = time.time() - marker.stat().st_mtime < PRUNE_EVERY_SECONDS
        except FileNotFoundError:
            recent = False
        if not recent:
            marker.touch()
        return not recent


def _dated_sizes(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Date of last use, bytes and path of each file; other processes may remove some meanwhile."""
    with os.scandir(folder) as scan:
        for entry in scan:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield status.st_mtime, status.st_size, entry.path


def is_private(folder: Path) -> bool:
    """Whether nobody but this user and the administrator can have written there."""
    if not hasattr(os, "geteuid"):
        return True
    try:
        status = folder.stat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    if status.st_uid in (0, os.geteuid()) and not status.st_mode & others:
        return True
    debug.log(1, f"cache: {folder} is not used: other users may write to it")
    return False


def sealed(symbol: str, code: bytes) -> bytes:
    """The content of an entry."""
    return MAGIC + _digest(symbol, code) + code


def unsealed(symbol: str, entry: bytes) -> bytes | None:
    """The object in an entry, or None if a byte of it differs from what was written."""
    start = len(MAGIC) + hashlib.sha256().digest_size
    code = entry[start:]
    return code if entry[:start] == MAGIC + _digest(symbol, code) else None


def _digest(symbol: str, code: bytes) -> bytes:
    return hashlib.sha256(symbol.encode() + b"\0" + code).digest()


def user_cache() -> ObjectCache:
    """The cache that the environment asks for."""
    return ObjectCache(cache_folder("kernels"))


def cache_folder(kind: str) -> Path | None:
    """Where entries of a kind are kept; None if nothing is to be kept."""
    root = os.environ.get(ENVIRONMENT)
    if root == "":
        return None
    try:
        return (Path(root) if root else Path.home() / ".cache" / "quantglow") / kind
    except RuntimeError as error:  # a user without a home
        debug.log(2, f"kernel cache: disabled: {error}")
        return None
