"""Arrays in a file of this process that has no name: pages of it take memory while they are read.

A model's weights are read to pack them for kernels, and again for further programs and for saving.
In between, the packed ones are the only copy in memory.  A file of the user's would not do: who
shortens it while it is mapped ends the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from quantglow.support.arrays import Array
from quantglow.support.processes.threads import Alive

Data = bytes | memoryview
"""Bytes in memory or in pages."""

PIECE_NBYTES = 1 << 22
"""Bytes that are hashed or written at once."""


class Sliced(Protocol):
    """Bytes that are made where they are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, bounds: slice, /) -> Data: ...


@dataclass(frozen=True)
class JoinedBytes:
    """Bytes one behind the other, which are nowhere together."""

    parts: tuple[Data | Sliced, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, bounds: slice) -> bytes:
        pieces, begin = [], 0
        for part in self.parts:
            pieces.append(part[max(0, bounds.start - begin) : max(0, bounds.stop - begin)])
            begin += len(part)
        return b"".join(pieces)


Content = Data | JoinedBytes
"""Bytes of a file or of a member of one."""

LEAST_NBYTES = 1 << 16
"""Size of the smallest array that is worth a place in the file."""
LEAST_TOTAL_NBYTES = 8 << 20
"""Size of the smallest file."""
ALIGNMENT = 64
LASTING = Path("/var/tmp")
"""The folder of temporary files that may be large; ``/tmp`` often is memory itself."""

_mapped = Alive[mmap.mmap]()


def page(arrays: Iterable[Array]) -> list[Array] | None:
    """Read-only copies of arrays in a file, which is gone with the last of them; None where there
    is no room for it.

    Each array is written before the next one is asked for.
    """
    try:
        with tempfile.TemporaryFile(dir=folder()) as file:
            written = list(map(partial(append, file), arrays))  # holds no array
            file.flush()
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: an empty file
        return None
    _mapped.add(memory)
    return [
        np.frombuffer(memory, dtype, prod(shape), start).reshape(shape)
        for start, dtype, shape in written
    ]


def page_pieces(pieces: Iterable[Data]) -> Data | None:
    """Bytes one behind the other in a file, as ``paged`` has arrays."""
    try:
        with tempfile.TemporaryFile(dir=folder()) as file:
            file.writelines(pieces)
            file.flush()
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: an empty file
        return None
    _mapped.add(memory)
    return memoryview(memory)


def together(content: Content) -> Data:
    """Bytes in one piece; those of large parts in pages, if there is room."""
    if not isinstance(content, JoinedBytes):
        return content
    paged = (
        page_pieces(iterate_pieces(content)) if is_worth_paging(map(len, content.parts)) else None
    )
    return b"".join(iterate_pieces(content)) if paged is None else paged


def iterate_pieces(content: Content) -> Iterator[Data]:
    """The bytes in pieces of ``PIECE_NBYTES``; pages are given back behind each part."""
    for part in content.parts if isinstance(content, JoinedBytes) else (content,):
        for start in range(0, len(part), PIECE_NBYTES):
            yield part[start : start + PIECE_NBYTES]
        if len(part) >= LEAST_NBYTES:
            release_pages()


def append(file: IO[bytes], array: Array) -> tuple[int, np.dtype[Any], tuple[int, ...]]:
    """Write the elements of an array behind a file; where they begin, their type and shape."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    start = file.tell()
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if array.nbytes >= LEAST_NBYTES:
        release_pages()  # the array may lie in another file
    return start, array.dtype, array.shape


def folder() -> str:
    """The folder of the file: ``$TMPDIR``, or one that lies on a disk, if possible."""
    if "TMPDIR" not in os.environ and os.access(LASTING, os.W_OK):
        return str(LASTING)
    return tempfile.gettempdir()


def mapped_file(array: Array) -> mmap.mmap | None:
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
        for memory in _mapped:
            with suppress(OSError, ValueError):
                memory.madvise(mmap.MADV_DONTNEED)
