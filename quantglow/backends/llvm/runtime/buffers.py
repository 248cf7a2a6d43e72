"""Memory that executables own: arenas and constants.

Kernels may read, never write, ``SLACK_NBYTES`` beyond what they were given here; beyond buffers of
the caller they read nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from quantglow.concise import Concise
from quantglow.errors import OutOfMemoryError
from quantglow.instr.generate import SLACK_NBYTES
from quantglow.memory.planner import ALIGNMENT
from quantglow.types import Array

RELEASE_EVERY_NBYTES = 4 * 2**20
"""Packed constants after which freed memory is given back."""

SHARED_NBYTES = 4096
"""Larger constants are looked for among those there are."""

Allocate = Callable[[int], Array]
"""Makes ``nbytes + SLACK_NBYTES`` bytes of memory (uint8, any content)."""


def uninitialised(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array of any content.  Raises ``OutOfMemoryError``."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: for more than the address space
        raise OutOfMemoryError(math.prod(shape) * dtype.itemsize) from error


def aligned_bytes(nbytes: int) -> Array:
    """Uninitialised bytes at a cache-line boundary, with slack after them."""
    raw = uninitialised((nbytes + SLACK_NBYTES + ALIGNMENT,), np.dtype(np.uint8))
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes + SLACK_NBYTES]


@dataclass(repr=False)
class Constants(Concise):
    """Copies of a program's constants with slack after them; ``shared``: with other programs that
    have equal ones.
    """

    allocate: Allocate
    shared: bool
    _kept_nbytes: int = 0

    def copy(self, array: Array) -> Array:
        """A copy of ``array``, whose own memory is no longer needed."""
        self._count(array.nbytes)
        if not self.shared or array.nbytes < SHARED_NBYTES:
            return _new_copy(array, self.allocate)
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = hashlib.sha256(octets.data).digest()
        found = _shared.get(key)
        if found is None:
            found = _shared.setdefault(key, _new_copy(octets, self.allocate))
        return found

    def _count(self, nbytes: int) -> None:
        """Give memory back from time to time: packing needs more than it keeps."""
        self._kept_nbytes += nbytes
        if self._kept_nbytes >= RELEASE_EVERY_NBYTES:
            release_freed()
            self._kept_nbytes = 0


_shared: WeakValueDictionary[bytes, Array] = WeakValueDictionary()
"""Copies by content, in the process's own memory: programs of one model at other shapes, and other
models with the same weights, read the same bytes.
"""


def _new_copy(array: Array, allocate: Allocate) -> Array:
    copy = allocate(array.nbytes)
    copy[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    copy[array.nbytes :] = 0
    return copy


def release_freed() -> None:
    """Give freed memory back to the system: glibc keeps megabytes of what packing freed."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
