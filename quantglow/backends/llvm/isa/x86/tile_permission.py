"""Permission to use AMX tiles: Linux gives their 8 KB of state only to processes that ask for it.

The permission is for all threads of the process and for its forks, not for programs it executes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


@cache
def tile_refusal() -> str:
    """Why this process may not use tiles, empty if it may; asks once."""
    if sys.platform != "linux":
        return f"nobody knows how to ask for AMX tiles on {sys.platform}"
    error = request_tiles()
    return f"Linux refuses AMX tiles to this process ({os.strerror(error)})" if error else ""


def request_tiles() -> int:
    """Ask Linux for permission; the number of its error, 0 if it is given."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_long)
    syscall.restype = ctypes.c_long
    done = syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0
    return 0 if done else ctypes.get_errno()
