"""Fourier transforms among the products, however a model spells them: STFT, DFT, or a convolution.

Kernels come in pairs in quadrature, a window times the cosine and the sine of a phase: ``c² + s²``
is the window squared, whatever the phase.  Trained weights are not like that.
"""

from __future__ import annotations

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.ops.contraction import Contraction
from quantglow.ops.convolution import MatMul
from quantglow.types import Array

LEAST = 5
"""Phases, and sizes, of the smallest transform: those of fewer samples are sums and differences."""

TOLERANCE = 1e-3

GLANCE = 64
"""Elements of two pairs that tell most matrices from those of a transform."""


def is_fourier(node: Node) -> bool:
    """Whether the node is a product with the matrix of a transform."""
    match node:
        case Contraction(w=Constant(value=value)) | MatMul(y=Constant(value=value)):
            return is_transform(value.reshape(-1, value.shape[-1]))
    return False


def is_transform(weights: Array) -> bool:
    """Whether columns, or rows, come in pairs that lie side by side, or one in either half."""
    for matrix in (weights, weights.T):
        half = matrix.shape[1] // 2
        if matrix.shape[1] % 2 or min(matrix.shape[0], half) < LEAST:
            continue
        for c, s in (
            (matrix[:, 0::2], matrix[:, 1::2]),
            (matrix[:, :half], matrix[:, half:]),
        ):
            some = slice(None, None, max(1, len(c) // GLANCE)), slice(2)
            if are_alike(c[some], s[some]) and are_alike(c, s) and are_many(c, s):
                return True
    return False


def are_alike(c: Array, s: Array) -> bool:
    """Whether ``c² + s²`` is the same in all columns, up to a factor for each."""
    power = power_of(c, s)
    total = power.sum()
    product = np.outer(power.sum(axis=1), power.sum(axis=0)) / (total or 1.0)
    return bool(total > 0 and np.abs(power - product).max() <= TOLERANCE * power.max())


def are_many(c: Array, s: Array) -> bool:
    """Whether c and s have some phases, unlike equal weights, or ones of -1 and 1."""
    power = power_of(c, s)
    phases = np.arctan2(s, c)[power > TOLERANCE * power.max()]
    return len(np.unique(np.round(phases, 2))) >= LEAST


def power_of(c: Array, s: Array) -> Array:
    return np.square(c, dtype=np.float64) + np.square(s, dtype=np.float64)
