"""Fourier transforms among the products, however a model spells them: STFT, DFT, a constant-Q
transform, as matrices or convolutions.

Kernels come in pairs in quadrature, a window times the cosine and the sine of a phase: ``c² + s²``
is the window squared, whatever the phase.  The kernels of a Fourier transform share one window;
those of a constant-Q transform have one each, and the phase of ``c + is`` turns by the same angle
from sample to sample.  Trained weights are not like that.

Cosines and sines are columns of one matrix, or those of two operators that read the same value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from weakref import WeakKeyDictionary

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import MatMul
from quantglow.support.arrays import Array

LEAST = 5
"""Minimum number of phases, and of samples, of a transform: smaller ones are sums and
differences."""

TOLERANCE = 1e-3
"""Maximum deviation of a power, relative to the largest."""

STEADY = 0.02
"""Maximum deviation of a phase from its steady turn, in radians."""

SUPPORT = 0.01
"""Minimum magnitude of a sample whose phase counts, relative to the largest of its kernel."""

GLANCE = 64
"""Number of samples of two pairs that suffice to reject most other matrices."""

MAX_SIBLINGS = 8
"""Maximum number of products of one value that are compared in pairs."""

_KNOWN: WeakKeyDictionary[Constant, bool] = WeakKeyDictionary()
"""Weights that were looked at: many plans are made of the same ones."""


def transforms(graph: Graph) -> set[Node]:
    """The products with the matrix of a transform, or with its cosines or sines."""
    products: set[Node] = set()
    siblings: defaultdict[tuple[Node, tuple[int, ...]], list[Node]] = defaultdict(list)
    for node in graph.compute_nodes():
        if (weights := _constant_weights(node)) is not None:
            siblings[node.operands[0], _matrix_in(weights).shape].append(node)
            products.update([node] if _holds_transform(weights) else [])
    for nodes in siblings.values():
        for pair in combinations(nodes[:MAX_SIBLINGS], 2):
            matrices = [_matrix_in(w) for w in map(_constant_weights, pair) if w is not None]
            if are_kernels(matrices[0], matrices[1]):
                products.update(pair)
    return products


def is_fourier(node: Node) -> bool:
    """Whether the node is a product with the matrix of a transform."""
    weights = _constant_weights(node)
    return weights is not None and _holds_transform(weights)


def _constant_weights(node: Node) -> Constant | None:
    """The constant weights of a product."""
    match node:
        case Contraction(w=Constant() as weights) | MatMul(y=Constant() as weights):
            return weights
    return None


def _matrix_in(weights: Constant) -> Array:
    """Weights with one kernel a column."""
    return weights.value.reshape(-1, weights.value.shape[-1])


def _holds_transform(weights: Constant) -> bool:
    """``is_transform`` of the weights of a product, computed once."""
    verdict = _KNOWN.get(weights)
    if verdict is None:
        verdict = _KNOWN[weights] = is_transform(_matrix_in(weights))
    return verdict


def is_transform(weights: Array) -> bool:
    """Whether columns, or rows, come in pairs: neighbors, or one in each half."""
    return any(are_kernels(c, s) for matrix in (weights, weights.T) for c, s in _pairs_in(matrix))


def _pairs_in(matrix: Array) -> Iterator[tuple[Array, Array]]:
    """The columns as pairs: neighbors, then one in each half."""
    half = matrix.shape[1] // 2
    if matrix.shape[1] % 2 == 0:
        yield matrix[:, 0::2], matrix[:, 1::2]
        yield matrix[:, :half], matrix[:, half:]


def are_kernels(c: Array, s: Array) -> bool:
    """Whether the columns of c and s are the cosines and sines of a transform."""
    if min(c.shape) < LEAST:
        return False
    some = slice(None, None, max(1, len(c) // GLANCE)), slice(2)
    if are_alike(c[some], s[some]) and are_alike(c, s) and _are_many(c, s):
        return True
    return _turn_steadily(c[:, :2], s[:, :2]) and _turn_steadily(c, s) and differ(turns(c, s))


def are_alike(c: Array, s: Array) -> bool:
    """Whether ``c² + s²`` is the same in all columns, up to a factor for each."""
    power = _squared_magnitudes(c, s)
    total = power.sum()
    if not 0 < total < np.inf:
        return False
    product = np.outer(power.sum(axis=1), power.sum(axis=0)) / total
    return bool(np.abs(power - product).max() <= TOLERANCE * power.max())


def _are_many(c: Array, s: Array) -> bool:
    """Whether c and s have several phases, unlike equal weights, or weights of -1 and 1."""
    power = _squared_magnitudes(c, s)
    return differ(np.arctan2(s, c)[power > TOLERANCE * power.max()])


def _turn_steadily(c: Array, s: Array) -> bool:
    """Whether the phase of each column turns by the same angle from row to row."""
    if not (np.isfinite(c).all() and np.isfinite(s).all()):
        return False
    steps, counts = _phase_steps(c, s)
    directions = np.exp(1j * turns(c, s))
    away = np.abs(steps - np.where(steps == 0, 0, directions))
    return bool(counts.min() >= LEAST and away.max() <= STEADY)


def turns(c: Array, s: Array) -> Array:
    """The angle by which the phase of each column turns, in radians."""
    steps, _ = _phase_steps(c, s)
    angles: Array = np.angle(steps.sum(axis=0))
    return angles


def _phase_steps(c: Array, s: Array) -> tuple[Array, Array]:
    """The turn from each row to the next, as complex numbers of magnitude 1, or 0 outside the
    support of a kernel; and the number of turns in each column.
    """
    z = c.astype(np.float64) + 1j * s.astype(np.float64)
    size = np.abs(z)
    inside = size > SUPPORT * size.max(axis=0)
    both = inside[1:] & inside[:-1]
    products = np.where(both, z[1:] * z[:-1].conj(), 0)
    return np.divide(products, np.abs(products), where=both, out=products), both.sum(axis=0)


def differ(phases: Array) -> bool:
    """Whether there are enough distinct phases for a transform."""
    return len(np.unique(np.round(phases, 2))) >= LEAST


def _squared_magnitudes(c: Array, s: Array) -> Array:
    return np.square(c, dtype=np.float64) + np.square(s, dtype=np.float64)
