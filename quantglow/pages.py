"""Arrays in a file of this process that has no name: pages of it take memory while they are read.

A model's weights are read to pack them for kernels, and again for further programs and for saving.
In between, the packed ones are the only copy in memory.  A file of the user's would not do: who
shortens it while it is mapped ends the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO
from weakref import WeakSet

import numpy as np

from quantglow.types import Array

Data = bytes | memoryview
"""Bytes in memory or in pages."""

LEAST_NBYTES = 1 << 16
"""Size of the smallest array that is worth a place in the file."""
LEAST_TOTAL_NBYTES = 8 << 20
"""Size of the smallest file."""
ALIGNMENT = 64
LASTING = Path("/var/tmp")
"""The folder of temporary files that may be large; ``/tmp`` often is memory itself."""

_mapped: WeakSet[mmap.mmap] = WeakSet()


def paged(arrays: Iterable[Array]) -> list[Array] | None:
    """Read-only copies of arrays in a file, which is gone with the last of them; None where there
    is no room for it.

    Each array is written before the next one is asked for.
    """
    try:
        with tempfile.TemporaryFile(dir=folder()) as file:
            written = [(append(file, a), a.dtype, a.shape) for a in arrays]
            file.flush()
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: an empty file
        return None
    _mapped.add(memory)
    return [
        np.frombuffer(memory, dtype, size // dtype.itemsize, start).reshape(shape)
        for (start, size), dtype, shape in written
    ]


def paged_bytes(data: bytes) -> Data:
    """The bytes in pages, if that is worth it and there is room."""
    made = paged([np.frombuffer(data, np.uint8)]) if is_worth_paging([len(data)]) else None
    return data if made is None else made[0].data


def append(file: IO[bytes], array: Array) -> tuple[int, int]:
    """Write the elements of an array at the end of a file; where they begin, and their bytes."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    start = file.tell()
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return start, array.nbytes


def folder() -> str:
    """The folder of the file: ``$TMPDIR``, or one that lies on a disk, if possible."""
    if "TMPDIR" not in os.environ and os.access(LASTING, os.W_OK):
        return str(LASTING)
    return tempfile.gettempdir()


def file_of(array: Array) -> mmap.mmap | None:
    """The file that an array is a view of."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


def is_worth_paging(nbytes: Iterable[int]) -> bool:
    """Whether arrays of these sizes are worth a file."""
    return sum(size for size in nbytes if size >= LEAST_NBYTES) >= LEAST_TOTAL_NBYTES


def release_pages() -> None:
    """Give the memory of all pages back; they are read from the file again where they are used."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for memory in list(_mapped):
            with suppress(OSError, ValueError):
                memory.madvise(mmap.MADV_DONTNEED)
