"""onnxruntime's int8 on x86 without VNNI: sums of products of bytes saturate at 16 bits."""

from __future__ import annotations

import platform

from quantglow.backends.llvm.targets import runs_here
from quantglow.backends.onnxruntime.session import EXACT_SUMS

SATURATES = (
    "onnxruntime's int8 is less exact on this processor, which has no VNNI: sums saturate at 16 "
    f'bits. Its session option {EXACT_SUMS}="1" avoids that and is slower.'
)


def saturates() -> bool:
    """Whether onnxruntime's sums saturate here, without that option."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and not any(map(runs_here, ("avx512vnni", "avxvnni")))


def saturation_note() -> str:
    """The note on onnxruntime's int8; empty where it is exact."""
    return SATURATES if saturates() else ""
