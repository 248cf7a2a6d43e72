"""Features of x86-64, from ``cpuid``, and the permission to use AMX tiles.

A virtual machine traps at each ``cpuid``, which takes microseconds: one of them shows processors
without FMA.

Linux gives the permission to all threads of the process and its forks, not to programs that it
executes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

from quantglow.codegen.llvm.isa.target import Detection

FMA, OSXSAVE, VNNI = 1 << 12, 1 << 27, 1 << 11

AVX, AVX512 = ("xcr0", 0x06), ("xcr0", 0xE6)
"""Registers that the operating system saves."""

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


def octets(code: str) -> str:
    """Machine code, written in hexadecimal, as the beginning of a function."""
    data = bytes.fromhex(code)
    text = "".join(f"\\{octet:02X}" for octet in data)
    return f'prologue [{len(data)} x i8] c"{text}"'


CPUID = octets("53 4989D0 89F8 89F1 0FA2 418900 41895804 41894808 4189500C 5B C3")
"""``push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid``, four stores to ``r8``, ``pop rbx;
ret``."""
XGETBV = octets("31C9 0F01D0 C3")
"""``xor ecx, ecx; xgetbv; ret``"""

DETECTION = Detection(
    f"""
define internal void @cpuid(i32 %leaf, i32 %subleaf, ptr %words) nounwind {CPUID} {{
  unreachable
}}

define internal i32 @xgetbv() nounwind {XGETBV} {{
  unreachable
}}

define internal i32 @cpuid_word(ptr %words, i64 %index) nounwind {{
  %at = getelementptr i32, ptr %words, i64 %index
  %value = load i32, ptr %at, align 4
  ret i32 %value
}}
""",
    f"""
entry:
  %words = alloca [4 x i32], align 4
  call void @cpuid(i32 1, i32 0, ptr %words)
  %ecx1 = call i32 @cpuid_word(ptr %words, i64 2)
  %modern = and i32 %ecx1, {FMA | OSXSAVE}
  %is.modern = icmp eq i32 %modern, {FMA | OSXSAVE}
  br i1 %is.modern, label %leaf7, label %known
leaf7:
  %saved = call i32 @xgetbv()
  call void @cpuid(i32 7, i32 0, ptr %words)
  %features = call i32 @cpuid_word(ptr %words, i64 1)
  %more = call i32 @cpuid_word(ptr %words, i64 2)
  call void @cpuid(i32 7, i32 1, ptr %words)
  %newest = call i32 @cpuid_word(ptr %words, i64 0)
  br label %known
known:
  %xcr0 = phi i32 [ 0, %entry ], [ %saved, %leaf7 ]
  %ebx7 = phi i32 [ 0, %entry ], [ %features, %leaf7 ]
  %ecx7 = phi i32 [ 0, %entry ], [ %more, %leaf7 ]
  %eax7 = phi i32 [ 0, %entry ], [ %newest, %leaf7 ]
""",
    {
        "sse2": (),
        "fma": (("ecx1", FMA), AVX),
        "avx2": (("ebx7", 1 << 5), AVX),
        "bmi2": (("ebx7", 1 << 8),),
        "avx512f": (("ebx7", 1 << 16), AVX512),
        "avx512dq": (("ebx7", 1 << 17),),
        "avx512bw": (("ebx7", 1 << 30),),
        "avx512vl": (("ebx7", 1 << 31),),
        "avx512vnni": (("ecx7", VNNI),),
        "avxvnni": (("eax7", 1 << 4),),
    },
    ("linux", "apple"),
)
"""Processors that save registers by ``xsave`` have leaf 7: its own leaf is 13.  Windows passes
arguments in other registers than this machine code takes them from."""


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
