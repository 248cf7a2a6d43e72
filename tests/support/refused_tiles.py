"""A Linux that refuses AMX tiles to a process: a seccomp filter, for x86-64.

The filter is for the thread that asks and for those that it starts, so it comes before other
threads.
"""

from __future__ import annotations

import ctypes
import errno
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
NUMBER_AT, ARCHITECTURE_AT, ARGUMENT_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""
X86_64, ARCH_PRCTL, REQUEST_PERMISSION = 0xC000003E, 158, 0x1023
ALLOW, ERROR = 0x7FFF0000, 0x00050000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
"""Instructions of BPF: a word of the data, a comparison, the end."""

FILTER = (
    (LOAD, 0, 0, ARCHITECTURE_AT),
    (JUMP_IF_EQUAL, 0, 5, X86_64),
    (LOAD, 0, 0, NUMBER_AT),
    (JUMP_IF_EQUAL, 0, 3, ARCH_PRCTL),
    (LOAD, 0, 0, ARGUMENT_AT),
    (JUMP_IF_EQUAL, 0, 1, REQUEST_PERMISSION),
    (RETURN, 0, 0, ERROR | errno.EPERM),
    (RETURN, 0, 0, ALLOW),
)
"""Operation, instructions to skip if equal and if not, operand."""


class Program(ctypes.Structure):
    """``struct sock_fprog``"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_tiles() -> None:
    """From now on the system call that requests tiles fails with EPERM in this process.  Raises
    ``OSError`` where there are no filters."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in FILTER))
    program = Program(len(FILTER), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    asked = (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    )
    for arguments in asked:
        if prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl", str(arguments[0]))
