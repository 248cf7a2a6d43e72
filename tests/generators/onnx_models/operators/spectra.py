"""Fourier transforms and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import Drawing, Rejected, Value
from tests.generators.onnx_models.operators.family import draws


def numbers(d: Drawing, *ranks: int, complex_: bool) -> Value:
    """Real or complex numbers, their parts on a last axis."""
    x = d.floats(*ranks)
    parts = [d.inner("Unsqueeze", x, axes=[x.rank])]
    if complex_:
        parts.append(d.inner("Mul", parts[0], d.normal(*x.shape, 1)))
    return d.inner("Concat", *parts, axis=x.rank) if complex_ else parts[0]


@draws("DFT")
def transform(d: Drawing) -> object:
    is_back, onesided = d.chance(0.4), d.chance(0.4)
    x = numbers(d, 1, 2, 3, complex_=is_back if onesided else d.chance(0.5))
    axis = d.integer(0, x.rank - 2)
    size = x.shape[axis]
    inputs: dict[str, Any] = {"inverse": int(is_back), "onesided": int(onesided)}
    inputs["axis"] = axis - x.rank if d.chance(0.3) else axis
    if is_back and onesided:
        if size < 2:
            raise Rejected("no sample")
        # onnxruntime interprets more bins than half of them differently.
        inputs["dft_length"] = 2 * (size - 1) + d.integer(0, 1)
    elif d.chance(0.5):
        inputs["dft_length"] = d.integer(1, size + 3)
    return d.node("DFT", x, **inputs)


@draws("STFT")
def short_time(d: Drawing) -> object:
    complex_ = d.chance(0.3)
    x = numbers(d, 2, complex_=complex_)
    n = d.integer(1, x.shape[1])
    # ONNX's inference forgets the default of ``onesided``.
    inputs: dict[str, Any] = {"onesided": 0 if complex_ else d.integer(0, 1)}
    operands = [x, d.constant(np.int64(d.integer(1, 5)))]
    if d.chance(0.6):
        operands.append(d.normal(n))
    if len(operands) == 2 or d.chance(0.3):
        inputs["frame_length"] = n
    return d.node("STFT", *operands, **inputs)


@draws("HannWindow", "HammingWindow", "BlackmanWindow", often=0.3)
def window(d: Drawing) -> object:
    op = d.choose(("HannWindow", "HammingWindow", "BlackmanWindow"))
    size = d.constant(np.int64(d.integer(2, 17)))
    built = d.inner(op, size, **d.some({"periodic": (0, 1)}))
    # A window ends in 0 up to rounding: Ceil and Sign would show the difference.
    return d.node("Add", built, d.normal(1))
