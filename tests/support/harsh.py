"""Conditions that make small graphs run as large ones do, and stray accesses end the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from quantglow.ir.program.layout import ALIGNMENT
from quantglow.memory import plans as batches
from quantglow.runtime.native import compilation, executable
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.sequences import BatchedExecutable
from quantglow.runtime.shapes import general
from quantglow.support.arrays import Array
from tests.support.guarded import guarded

PATTERN = 0xA5
"""Content of memory that nothing has written yet; results must not depend on it."""


@contextmanager
def harsh() -> Iterator[None]:
    """Let threads share calls and programs of any size, and batches of any size run in pieces.

    Arenas, constants and outputs of compiled programs end at guard pages.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable, "SERIAL_WORK", 0.0)
        patch.setattr(executable, "SERIAL_PROGRAM", 0.0)
        patch.setattr(batches, "pieces_for", some_pieces)
        patch.setattr(general, "pieces_for", some_pieces)
        patch.setattr(compilation, "allocator", lambda target: guarded_bytes)
        for kind in (LlvmExecutable, BatchedExecutable):
            patch.setattr(kind, "new_outputs", guarded_version(kind.new_outputs))
        yield


def some_pieces(batch: int, traffic: batches.Traffic, threads: int) -> int:
    """More than one piece if the batch has parts; another divisor for each number of threads."""
    return batches.divisors(batch)[: threads + 1][-1]


def guarded_bytes(nbytes: int) -> Array:
    """Memory of a program, aligned."""
    room = -(-nbytes // ALIGNMENT) * ALIGNMENT
    return guarded(patterned(room), at_end=True)[:nbytes]


def guarded_version(new_outputs: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """The method with its arrays moved to guarded pages."""

    def moved(array: Array) -> Array:
        fresh = patterned(array.nbytes).view(array.dtype).reshape(array.shape)
        return guarded(fresh, at_end=True)

    return lambda self: [moved(array) for array in new_outputs(self)]


def patterned(nbytes: int) -> Array:
    """``PATTERN`` repeated to a number of bytes."""
    return np.full(nbytes, PATTERN, np.uint8)
