"""The choice of what computes layers and statistics while a model is calibrated."""

from __future__ import annotations

from contextlib import AbstractContextManager

from quantglow.ops.native import NativeOps, computing_with
from quantglow.options import COMPILED, ProfileWith


def computing(profile_with: ProfileWith) -> AbstractContextManager[None]:
    """Inside, machine code computes, or NumPy (``options.PROFILES_WITH``)."""
    return computing_with(compiled_ops() if profile_with == COMPILED else None)


def compiled_ops() -> NativeOps:
    """Native code for this processor."""
    # Only here: it loads LLVM, or the cache of kernels.
    from quantglow.backends.llvm.array_kernels.native import array_kernels

    return array_kernels()
