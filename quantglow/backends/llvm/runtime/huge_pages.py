"""Memory in large pages.

Virtual machines look up addresses in tables of tables, so small pages cost some hundredths of an
inference there.
"""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from quantglow.backends.llvm.runtime.buffers import aligned_bytes
from quantglow.errors import OutOfMemoryError
from quantglow.foreign_types import Array
from quantglow.memory.arena_order import ALIGNMENT
from quantglow.processes.system import at_fork

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

at_fork(before=_allocating.acquire, parent=_allocating.release, child=_allocating.release)

HAS_LARGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")
"""Whether this system can be asked for them (Linux)."""


def mapped_bytes(nbytes: int) -> Array:
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

    rest: Array = field(default_factory=lambda: np.empty(0, np.uint8))
    _first_nbytes: int = 0

    def __call__(self, nbytes: int) -> Array:
        """Bytes of any content, at a cache-line boundary."""
        with _allocating:
            if self._first_nbytes + nbytes <= FIRST_NBYTES:
                self._first_nbytes += nbytes
                return aligned_bytes(nbytes)
            if nbytes >= PAGE_NBYTES:
                return mapped_bytes(nbytes)
            if nbytes > self.rest.size:
                self.rest = mapped_bytes(CHUNK_NBYTES)
            found = self.rest[:nbytes]
            self.rest = self.rest[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
            return found
