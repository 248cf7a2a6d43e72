"""Instructions that a processor has, found by code without libraries, as LLVM IR text.

Each text defines words of 32 bits in the block ``entry``; a feature is a bit of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quantglow.backends.llvm.isa.target import Target
from quantglow.errors import OptionError


@dataclass(frozen=True)
class Detection:
    """How a family of processors is asked.

    helpers  functions and declarations
    words    instructions that define the words
    bits     feature -> its word, and a mask of it
    """

    helpers: str
    words: str
    bits: Mapping[str, tuple[tuple[str, int], ...]]

    def masks(self, features: Iterable[str]) -> dict[str, int]:
        """The bits of each word that a set of features needs."""
        found: dict[str, int] = {}
        for feature in features:
            for word, mask in self.bits[feature]:
                found[word] = found.get(word, 0) | mask
        return found


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

AVX, AVX512 = ("xcr0", 0x06), ("xcr0", 0xE6)
"""Registers that the operating system saves."""

X86 = Detection(
    f"""
define internal void @cpuid(i32 %leaf, i32 %subleaf, ptr %words) nounwind {CPUID} {{
  unreachable
}}

define internal i32 @xgetbv() nounwind {XGETBV} {{
  unreachable
}}

define internal i32 @cpuid_word(i32 %leaf, i32 %subleaf, i32 %word) nounwind {{
  %words = alloca [4 x i32], align 4
  call void @cpuid(i32 0, i32 0, ptr %words)
  %last = load i32, ptr %words, align 4
  %known = icmp ule i32 %leaf, %last
  call void @cpuid(i32 %leaf, i32 %subleaf, ptr %words)
  %at = getelementptr i32, ptr %words, i32 %word
  %value = load i32, ptr %at, align 4
  %found = select i1 %known, i32 %value, i32 0
  ret i32 %found
}}

define internal i32 @saved_registers(i32 %ecx1) nounwind {{
  %bit = and i32 %ecx1, {1 << 27}
  %answers = icmp ne i32 %bit, 0
  br i1 %answers, label %ask, label %nothing
ask:
  %found = call i32 @xgetbv()
  ret i32 %found
nothing:
  ret i32 0
}}
""",
    """
  %ecx1 = call i32 @cpuid_word(i32 1, i32 0, i32 2)
  %ebx7 = call i32 @cpuid_word(i32 7, i32 0, i32 1)
  %ecx7 = call i32 @cpuid_word(i32 7, i32 0, i32 2)
  %eax7 = call i32 @cpuid_word(i32 7, i32 1, i32 0)
  %xcr0 = call i32 @saved_registers(i32 %ecx1)
""",
    {
        "sse2": (),
        "fma": (("ecx1", 1 << 12), AVX),
        "avx2": (("ebx7", 1 << 5), AVX),
        "bmi2": (("ebx7", 1 << 8),),
        "avx512f": (("ebx7", 1 << 16), AVX512),
        "avx512dq": (("ebx7", 1 << 17),),
        "avx512bw": (("ebx7", 1 << 30),),
        "avx512vl": (("ebx7", 1 << 31),),
        "avx512vnni": (("ecx7", 1 << 11),),
        "avxvnni": (("eax7", 1 << 4),),
    },
)

AARCH64 = Detection(
    "declare i64 @getauxval(i64)\n",
    """
  %wide = call i64 @getauxval(i64 16)
  %wide2 = call i64 @getauxval(i64 26)
  %hwcap = trunc i64 %wide to i32
  %hwcap2 = trunc i64 %wide2 to i32
""",
    {"dotprod": (("hwcap", 1 << 20),), "i8mm": (("hwcap2", 1 << 13),)},
)
"""Linux says what it found out."""

DETECTIONS = {"x86_64": X86, "aarch64": AARCH64}


def detection_of(target: Target) -> Detection:
    """The detection for the family of a target.  Raises ``OptionError``."""
    found = DETECTIONS.get(target.triple.partition("-")[0])
    if found is None:
        raise OptionError(f"no code chooses levels on {target.triple}. Remedy: name one level.")
    return found
