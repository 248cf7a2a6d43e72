"""Memory that executables own: arenas and constants, in large pages where they help.

Kernels may read, never write, ``InstructionSet.slack_nbytes`` beyond arenas and constants; beyond
buffers of the caller they read nothing.

Virtual machines look up addresses in nested page tables, so small pages cost some hundredths of an
inference there.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.symbolic.size import FixedShape
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.errors import OutOfMemoryError
from quantglow.support.pages import release_pages
from quantglow.support.processes.system import at_fork, c_function

RELEASE_EVERY_NBYTES = 4 * 2**20
"""Packed constants after which freed memory is given back."""

SHARED_NBYTES = 4096
"""Larger constants are looked for among those there are."""

Allocate = Callable[[int], Array]
"""Makes ``nbytes`` bytes of memory (uint8, any content)."""

_shared: WeakValueDictionary[tuple[bytes, int], Array] = WeakValueDictionary()
"""Copies by content and slack, in the process's own memory: programs of one model at other shapes,
and other models with the same weights, read the same bytes."""

PAGE_NBYTES = 2 * 2**20
"""Bytes of a large page on systems whose small pages have 4 KB."""
CHUNK_NBYTES = 4 * PAGE_NBYTES
"""Bytes mapped at once for requests smaller than a page; pages that nobody writes to take no
memory."""
FIRST_NBYTES = PAGE_NBYTES // 2
"""Bytes that every program gets in small pages first."""

_allocating = threading.RLock()
"""Held while a program's rest changes, and while this process forks, so that a child finds it free:
one for all programs, because each holds it for some microseconds."""

HAS_LARGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")
"""Whether this system can be asked for large pages (Linux)."""


def uninitialized(shape: FixedShape, dtype: np.dtype[Any]) -> Array:
    """A new array of any content.  Raises ``OutOfMemoryError``."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: for more than the address space
        raise OutOfMemoryError(math.prod(shape) * dtype.itemsize) from error


def aligned_bytes(nbytes: int) -> Array:
    """Uninitialized bytes at a cache-line boundary."""
    raw = uninitialized((nbytes + ALIGNMENT,), np.dtype(np.uint8))
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def aligned_address(array: Array) -> int:
    """The address of the first element."""
    # Twice as fast, which small networks feel; types of other packages have no ``data``.
    if array.size and array.flags.carray and array.dtype.isbuiltin == 1:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


@dataclass(repr=False)
class Constants(Concise):
    """Copies of a program's constants with ``slack_nbytes`` zeros after them; ``shared``: with
    other programs that have equal ones.
    """

    allocate: Allocate
    slack_nbytes: int
    shared: bool
    _kept_nbytes: int = 0

    def copy(self, array: Array, digest: bytes | None = None) -> Array:
        """A copy of ``array``, whose own memory is no longer needed; ``digest``: its SHA-256, if
        that is known."""
        self._count(array.nbytes)
        if not self.shared or array.nbytes < SHARED_NBYTES:
            return self._new_copy(array)
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = digest or hashlib.sha256(octets.data).digest(), self.slack_nbytes
        shared = _shared.get(key)
        if shared is None:
            shared = _shared.setdefault(key, self._new_copy(octets))
        return shared

    def find_copy(self, digest: bytes) -> Array | None:
        """The copy of an array with this SHA-256, if a program has one."""
        return _shared.get((digest, self.slack_nbytes))

    def _new_copy(self, array: Array) -> Array:
        copy = self.allocate(array.nbytes + self.slack_nbytes)
        copy[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        copy[array.nbytes :] = 0
        return copy

    def _count(self, nbytes: int) -> None:
        """Give memory back from time to time: packing needs more than it keeps."""
        self._kept_nbytes += nbytes
        if self._kept_nbytes >= RELEASE_EVERY_NBYTES:
            release_freed()
            self._kept_nbytes = 0


def release_freed() -> None:
    """Give freed memory back to the system: glibc keeps megabytes of what packing freed, and pages
    that were read stay in memory."""
    release_pages()
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)


at_fork(before=_allocating.acquire, parent=_allocating.release, child=_allocating.release)


def map_bytes(nbytes: int) -> Array:
    """Zeros, in large pages as far as whole ones fit and the system has them.

    Raises ``OutOfMemoryError``.
    """
    try:
        memory = mmap.mmap(-1, nbytes + PAGE_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise OutOfMemoryError(nbytes) from error
    with suppress(OSError):  # a system without: small ones are as right
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % PAGE_NBYTES
    return raw[start : start + nbytes]


@dataclass
class LargePages:
    """Allocates the memory of one program.  May be called from several threads."""

    unused: Array = field(default_factory=lambda: np.empty(0, np.uint8))
    _first_nbytes: int = 0

    def __call__(self, nbytes: int) -> Array:
        """Bytes of any content, at a cache-line boundary."""
        with _allocating:
            if self._first_nbytes + nbytes <= FIRST_NBYTES:
                self._first_nbytes += nbytes
                return aligned_bytes(nbytes)
            if nbytes >= PAGE_NBYTES:
                return map_bytes(nbytes)
            if nbytes > self.unused.size:
                self.unused = map_bytes(CHUNK_NBYTES)
            block = self.unused[:nbytes]
            self.unused = self.unused[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
            return block
