"""Cache of compiled objects: entries on disk, and entries that saved models carry.

The folder is ``$QUANTGLOW_CACHE_DIR/kernels``, by default ``~/.cache/quantglow/kernels`` on Linux;
the empty string disables it; ``choose_folder`` names another one for this process.  An entry is a
file named by the symbol it defines, and the symbol is a hash of all that the code depends on, so
entries never become stale.  A file is ``MAGIC``, the SHA-256 of symbol and object, then the object.
It is written aside and renamed: readers see all of it or nothing.  Other entries are named by a
kernel call (``codegen.llvm.kernel.call_names``) and hold the symbol of its kernel.

The cache only saves time.  Unreadable entries are compiled again; entries that cannot be written
are not kept, and the debug log says so.  A hash detects damage, not intent, and entries are run:
``support.private_folder`` says whose files are used.

Entries that a saved model carries have the same names, so one that does not fit this processor or
this version is never asked for.  They are found as long as a model that brought them is in use.
Loading them means trusting their file, because they are run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantglow.support import debug
from quantglow.support.errors import OptionError
from quantglow.support.private_folder import PrivateFolder
from quantglow.support.processes.system import user_caches
from quantglow.support.processes.threads import Alive

Data = bytes | memoryview

ENVIRONMENT = "QUANTGLOW_CACHE_DIR"
MAGIC = b"quantglow-object-1\n"
SUFFIX = ".o"
MARKER = ".looked"
"""The file whose date is that of the last look at the size."""
CHOSEN = ".chosen"
"""A file that is written, and removed, where a folder is chosen."""
MOST_NBYTES = 512 * 2**20
"""Maximum size of all entries together, in bytes."""
KEPT_SHARE = 0.75
"""Share of ``MOST_NBYTES`` left by a pruning, so that the next one is far away."""
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
        """The object that defines ``symbol``, or None where there is no intact one.

        A damaged one is removed: writers who ask ``has`` first would leave it there.
        """
        if (brought := carried_entry(symbol)) is not None:
            return bytes(brought)
        if self.folder is None:
            return None
        try:
            entry, age = PrivateFolder(self.folder).read(symbol + SUFFIX)
        except OSError as error:
            unused(error)
            return None
        code = unseal(symbol, entry)
        if code is None:
            debug.log(2, f"kernel cache: {symbol} is damaged and removed")
            self._remove(symbol)
        elif age > TOUCH_AFTER_SECONDS:
            self._touch(PrivateFolder(self.folder), symbol)
        return code

    def entries(self) -> dict[str, bytes]:
        """All intact entries by their names.  Raises ``OSError``."""
        assert self.folder is not None
        files = PrivateFolder(self.folder).files(SUFFIX) if self.folder.exists() else []
        names = sorted(name.removesuffix(SUFFIX) for _, _, name in files)
        objects = ((name, self.get(name)) for name in names)
        return {name: code for name, code in objects if code is not None}

    def has(self, symbol: str) -> bool:
        """Whether there is an entry, which may be damaged."""
        try:
            return self.folder is not None and PrivateFolder(self.folder).has(symbol + SUFFIX)
        except OSError:
            return False

    def put(self, symbol: str, code: bytes) -> None:
        """Keep an object; a full or read-only disk is no error."""
        if self.folder is None:
            return
        entry = seal(symbol, code)
        try:
            PrivateFolder(self.folder).write(symbol + SUFFIX, entry)
            self._unchecked_nbytes += len(entry)
            if self._is_pruning_due(PrivateFolder(self.folder)):
                self.prune()
        except OSError as error:
            unused(error)

    def prune(self) -> None:
        """Remove what was used longest ago if the entries are too large together, and what killed
        processes left.  Raises ``OSError``."""
        assert self.folder is not None
        self._unchecked_nbytes = 0
        folder = PrivateFolder(self.folder)
        folder.sweep()
        files = folder.files(SUFFIX)
        total = sum(nbytes for _, nbytes, _ in files)
        if total <= self.most_nbytes:
            return
        for _, nbytes, name in files:
            folder.remove(name)
            total -= nbytes
            if total <= self.most_nbytes * KEPT_SHARE:
                break
        debug.log(2, f"kernel cache: pruned to {total} bytes")

    def _remove(self, symbol: str) -> None:
        assert self.folder is not None
        try:
            PrivateFolder(self.folder).remove(symbol + SUFFIX)
        except OSError as error:
            unused(error)

    @staticmethod
    def _touch(folder: PrivateFolder, symbol: str) -> None:
        try:
            folder.touch(symbol + SUFFIX)
        except OSError as error:
            debug.log(2, f"kernel cache: {symbol} keeps its date: {error}")

    def _is_pruning_due(self, folder: PrivateFolder) -> bool:
        """After much was written here, or when no process has looked for a day."""
        if self._unchecked_nbytes >= PRUNE_EVERY_NBYTES:
            return True
        try:
            _, age = folder.read(MARKER)
        except FileNotFoundError:
            age = PRUNE_EVERY_SECONDS
        if age < PRUNE_EVERY_SECONDS:
            return False
        folder.write(MARKER, b"")
        return True


def unused(error: OSError) -> None:
    """Log why the cache does not help; an entry that does not exist is no news."""
    if not isinstance(error, FileNotFoundError):
        debug.log(1 if isinstance(error, PermissionError) else 2, f"cache: {error}")


def seal(symbol: str, code: bytes) -> bytes:
    """The content of an entry."""
    return MAGIC + _digest(symbol, code) + code


def unseal(symbol: str, entry: bytes) -> bytes | None:
    """The object in an entry, or None if a byte of it differs from what was written."""
    start = len(MAGIC) + hashlib.sha256().digest_size
    code = memoryview(entry)[start:]
    return bytes(code) if entry[:start] == MAGIC + _digest(symbol, code) else None


def _digest(symbol: str, code: bytes | memoryview) -> bytes:
    checksum = hashlib.sha256(symbol.encode() + b"\0")
    checksum.update(code)
    return checksum.digest()


def user_cache() -> ObjectCache:
    """The cache of the folder that the environment names."""
    return ObjectCache(cache_folder("kernels"))


_chosen: list[str] = []
"""The folder that was chosen for this process, if one was."""


def choose_folder(name: str, folder: str) -> None:
    """Use a folder in place of that of the environment, in this process and from now on; none for
    an empty text.  ``name``: the option with it.

    Raises ``OptionError`` for one in which nothing can be kept, and where another one was chosen.
    """
    root = str(Path(folder).expanduser().absolute()) if folder else ""
    if root in _chosen:
        return
    if _chosen:
        raise OptionError(
            f"{name}={folder!r}: this process has its cache in {_chosen[0]!r} already, and has "
            f"one cache. Remedy: give all sessions of a process the same {name}."
        )
    try:
        if root:
            place = PrivateFolder(Path(root) / "kernels")
            place.write(CHOSEN, b"")
            place.remove(CHOSEN)
    except OSError as error:
        raise OptionError(
            f"{name}={folder!r}: nothing can be kept there: {error}. Remedy: name a folder that "
            f"this user may write to and no others, or set no {name}."
        ) from error
    _chosen.append(root)


def cache_folder(kind: str) -> Path | None:
    """The folder of entries of a kind; None if nothing is to be kept."""
    root = _chosen[0] if _chosen else os.environ.get(ENVIRONMENT)
    if root == "":
        return None
    try:
        return (Path(root).expanduser() if root else user_caches() / "quantglow") / kind
    except RuntimeError as error:  # a user without a home
        debug.log(2, f"kernel cache: disabled: {error}")
        return None


class CarriedObjects:
    """Entries of one file, by their names."""

    def __init__(self, entries: Mapping[str, Data]) -> None:
        self.entries = dict(entries)
        _carried.add(self)

    def drop(self, name: str) -> None:
        """Give an entry back that is kept elsewhere by now."""
        self.entries.pop(name, None)


_carried = Alive[CarriedObjects]()


def carried_entry(name: str) -> Data | None:
    """The entry of this name that a file brought, if there is one."""
    entries = (each.entries.get(name) for each in _carried)
    return next((entry for entry in entries if entry is not None), None)


def drop_carried(name: str) -> None:
    """Give back all entries of this name."""
    for each in _carried:
        each.drop(name)
