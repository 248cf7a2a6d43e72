"""Memory that executables own: arenas and constants.

Kernels may read, never write, ``InstructionSet.slack_nbytes`` beyond arenas and constants; beyond
buffers of the caller they read nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from quantglow.concise import Concise
from quantglow.errors import OutOfMemoryError
from quantglow.foreign_types import Array
from quantglow.memory.arena_order import ALIGNMENT
from quantglow.pages import release_pages
from quantglow.processes.system import c_function

RELEASE_EVERY_NBYTES = 4 * 2**20
"""Packed constants after which freed memory is given back."""

SHARED_NBYTES = 4096
"""Larger constants are looked for among those there are."""

Allocate = Callable[[int], Array]
"""Makes ``nbytes`` bytes of memory (uint8, any content)."""


def uninitialised(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array of any content.  Raises ``OutOfMemoryError``."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: for more than the address space
        raise OutOfMemoryError(math.prod(shape) * dtype.itemsize) from error


def aligned_bytes(nbytes: int) -> Array:
    """Uninitialised bytes at a cache-line boundary."""
    raw = uninitialised((nbytes + ALIGNMENT,), np.dtype(np.uint8))
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def address_of(array: Array) -> int:
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
        found = _shared.get(key)
        if found is None:
            found = _shared.setdefault(key, self._new_copy(octets))
        return found

    def known(self, digest: bytes) -> Array | None:
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


_shared: WeakValueDictionary[tuple[bytes, int], Array] = WeakValueDictionary()
"""Copies by content and slack, in the process's own memory: programs of one model at other shapes,
and other models with the same weights, read the same bytes."""


def release_freed() -> None:
    """Give freed memory back to the system: glibc keeps megabytes of what packing freed, and pages
    that were read stay in memory."""
    release_pages()
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)
