"""Memory that executables own: arenas and constants.

Kernels may read, never write, ``SLACK_NBYTES`` beyond what they were given here; beyond buffers of
the caller they read nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quantglow.backends.llvm.kernel import KernelCall
from quantglow.instr.generate import SLACK_NBYTES
from quantglow.instr.program import View
from quantglow.types import Array

ALIGNMENT = 64
"""Bytes of a cache line."""

Allocate = Callable[[int], Array]
"""Makes ``nbytes + SLACK_NBYTES`` bytes of memory (uint8, any content)."""


def aligned_bytes(nbytes: int) -> Array:
    """Uninitialised bytes at a cache-line boundary, with slack after them."""
    raw = np.empty(nbytes + SLACK_NBYTES + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes + SLACK_NBYTES]


def load_constants(calls: Sequence[KernelCall], allocate: Allocate) -> dict[int, Array]:
    """Copies of all constants of a program with slack after them, keyed by identity."""
    loaded: dict[int, Array] = {}
    for call in calls:
        for pointer in call.pointers:
            owner = pointer.buffer if isinstance(pointer, View) else pointer
            value = owner if isinstance(owner, np.ndarray) else owner.value
            if value is not None and id(owner) not in loaded:
                loaded[id(owner)] = _copy(value, allocate)
    return loaded


def _copy(array: Array, allocate: Allocate) -> Array:
    copy = allocate(array.nbytes)
    copy[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    copy[array.nbytes :] = 0
    return copy
