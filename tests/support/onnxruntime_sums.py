"""Whether onnxruntime saturates sums of byte products at 16 bits: on x86 without VNNI."""

from __future__ import annotations

import platform

from quantglow.codegen.llvm.targets import runs_here


def saturates() -> bool:
    """Whether it does here, without the session option ``session.x64quantprecision``."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and not any(map(runs_here, ("avx512vnni", "avxvnni")))
