"""Bytes of arrays that objects own, arrays in files not counted."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator

import numpy as np

from quantglow.codegen.llvm.emitted import EmittedProgram

LEAST_NBYTES = 1024


def owned() -> dict[int, int]:
    """Bytes of each block of memory that arrays or texts use, by ``id``: those of NumPy, bytes, and
    constants of kernels."""
    gc.collect()
    actual: dict[int, int] = {}
    for value in gc.get_objects():
        if isinstance(value, EmittedProgram):
            actual |= {id(array): array.nbytes for array in value.constants}
        for block in blocks(value):
            actual.setdefault(id(block), nbytes_of(block))
    return actual


def blocks(value: object) -> Iterator[np.ndarray | bytes]:
    """The memory of large arrays and bytes that an object refers to."""
    for part in gc.get_referents(value):
        if isinstance(part, np.ndarray | bytes):
            block = owner_of(part)
            if isinstance(block, np.ndarray | bytes) and nbytes_of(block) >= LEAST_NBYTES:
                yield block


def owner_of(value: object) -> object:
    """The object whose memory an array uses."""
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
    if isinstance(value, memoryview):
        value = value.obj
    return None if isinstance(value, mmap.mmap) else value


def nbytes_of(block: np.ndarray | bytes) -> int:
    return len(block) if isinstance(block, bytes) else block.nbytes
