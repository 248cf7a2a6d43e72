"""Leave to use AMX tiles: Linux gives their 8 KB of state to processes that ask for it only."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


@cache
def tiles_allowed() -> bool:
    """Whether this process may use tiles; asks once, for all its threads."""
    if sys.platform != "linux":
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_long)
    syscall.restype = ctypes.c_long
    return bool(syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)
