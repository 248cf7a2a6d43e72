"""The choice of what computes layers and statistics while a model is calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from quantglow.ops.native import NativeOps, computing_with
from quantglow.options import COMPILED, ProfileWith


@contextmanager
def computing(profile_with: ProfileWith) -> Iterator[None]:
    """Inside, machine code computes, or NumPy (``options.PROFILES_WITH``).

    NumPy's floating-point errors are handled as by default, whatever the application has set: small
    products underflow.
    """
    ops = compiled_ops() if profile_with == COMPILED else None
    with computing_with(ops), np.errstate(all="warn", under="ignore"):
        yield


def compiled_ops() -> NativeOps:
    """Native code for this processor."""
    # Only here: it loads LLVM, or the cache of kernels.
    from quantglow.backends.llvm.array_kernels.native import array_kernels

    return array_kernels()
