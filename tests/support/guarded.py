"""Arrays between guard pages: a kernel that reads past them crashes."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from quantglow.support.arrays import Array

_libc = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS = 0
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(array: Array, at_end: bool) -> Array:
    """A copy that ends just before a guard page, or begins just after one."""
    page = mmap.PAGESIZE
    room = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    raw = np.frombuffer(memory, np.uint8)
    for border in (0, page + room):
        protect(raw.ctypes.data + border, page)
    start = page + room - array.nbytes if at_end else page
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def protect(address: int, nbytes: int) -> None:
    """Forbid all access to whole pages."""
    if _libc.mprotect(address, nbytes, _NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect failed")
