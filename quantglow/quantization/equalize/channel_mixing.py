"""mix-channels: other coordinates for values between which the network is linear.

Convolutions alone read the results of convolutions without activation, and sums of them (the
residual stream of an inverted bottleneck).  With any invertible F they may hold y instead of
x = F y:

    producers: F^-1 W1, F^-1 b1      readers: W2 F      sums: F^-1 x + F^-1 z = F^-1 (x + z)

The float function stays the same; the noise of rounding y to 256 steps changes.  Rotations of such
streams are known from language models (QuaRot, Ashkboos et al., 2024, arXiv:2404.00456; SpinQuant,
Liu et al., 2024, arXiv:2405.16406).  Here F may be any matrix, as in transform coding (Goyal,
2001): channel i needs a step proportional to its reach, so that the readers see the noise

    J = sum over i of |y_i|**2 (F' M F)_ii,      M = mean over readers' channels of w w' / variance

where ``|y_i|`` is the 12-norm over the data: the range of the least square error is the same
multiple of it for Gaussian and for Laplacian values, within 5 %.  J is minimized by steepest
descent in relative coordinates, ``F <- F (I - E)``, from the identity; the descent is cut short
for wide layers, where a step costs most and noise is spread over many channels anyway.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Add, AveragePool, Conv, Gemm, ReduceMean
from quantglow.quantization.equalize.channel_groups import channel_groups, takes_factors
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

NORM = 12
ROWS = 2**14
"""Maximum number of rows of a value to learn from."""

ROWS_WORK = 2**24
"""Maximum number of multiply-accumulates of one product of a descent's step: rows times channels
squared."""

ROWS_PER_CHANNEL = 8
"""Minimum number of rows of a value to learn from, for each channel."""

STEPS_WORK = 2**30
"""Maximum of the same for all steps together."""

MIN_ROWS = 2
"""Minimum number of rows of a value from which its channels have a covariance."""

MAX_STEPS = 50
MAX_CHANNELS = 256
FIRST_STEP, MAX_STEP, MIN_STEP = 0.05, 0.3, 1e-3
MAX_CONDITION = 32.0
"""Maximum condition number of F: weights lose as many of their float32 digits."""

GRID = 64
"""F is rounded to multiples of its largest element over this.  That removes the effects of the
order in which float32 sums were added, and costs little, since the minimum is flat."""

NEAR_NBYTES = 2**17
"""Size of rows that are computed together."""

TINY = 1e-12


def linear_streams(graph: Graph) -> list[list[Node]]:
    """Groups of values that may be mixed, each by one F."""
    return [group for group in channel_groups(graph) if _is_linear(graph, group)]


@dataclass
class LinearStreams:
    """Linear streams of ``graph``, and a part of their rows.  ``samples``: their number."""

    graph: Graph
    groups: Sequence[Sequence[Node]]
    samples: int

    def __post_init__(self) -> None:
        nodes = [node for group in self.groups for node in group]
        self.strides = {node.name: _stride(node, self.samples) for node in nodes}
        self.rows: dict[str, list[Array]] = {name: [] for name in self.strides}
        self.counts = dict.fromkeys(self.strides, 0)

    @property
    def names(self) -> Collection[str]:
        """The values that are read."""
        return self.strides.keys()

    def part(self, name: str, value: Array) -> Array:
        """The rows of one value."""
        return value.reshape(-1, value.shape[-1])

    def add(self, parts: Mapping[str, Array]) -> None:
        """Keep the same share of all rows of each value, however samples are batched."""
        for name, rows in parts.items():
            stride = self.strides[name]
            self.rows[name].append(rows[-self.counts[name] % stride :: stride].copy())
            self.counts[name] += len(rows)

    def mixtures(self) -> dict[str, Array]:
        """Value name -> F [C, C] float32, for each value whose channels are worth mixing."""
        rows = {name: np.concatenate(parts) for name, parts in self.rows.items() if parts}
        whole = [
            group
            for group in self.groups
            if all(len(rows.get(node.name, ())) >= MIN_ROWS for node in group)
        ]

        def mixture(group: Sequence[Node]) -> Array | None:
            x = np.concatenate([rows[node.name] for node in group])
            noise = np.mean([m for n in group for m in _metrics(self.graph, n, rows)], axis=0)
            return descend(x, noise)

        mixtures: dict[str, Array] = {}
        for group, matrix in zip(whole, each(mixture, whole), strict=True):
            if matrix is not None:
                mixtures |= {node.name: matrix for node in group}
        return mixtures


def _is_linear(graph: Graph, group: Sequence[Node]) -> bool:
    """Whether all producers and readers of the values of the group take any matrix."""
    members = set(group)
    readers = {user for node in group for user in graph.users[node]}
    return (
        2 <= int(group[0].type.shape[-1]) <= MAX_CHANNELS
        and all(_makes(node) for node in group)
        and all(user in members or _reads(user) for user in readers)
        and all(_reads(user) for user in readers if isinstance(user, Conv | Gemm))
        and any(isinstance(user, Conv | Gemm) for user in readers)
    )


def _makes(node: Node) -> bool:
    if isinstance(node, Conv | Gemm) and not node.is_bare:
        return False
    if isinstance(node, Add) and (node.low, node.high) != (-math.inf, math.inf):
        return False
    return isinstance(node, Add | ReduceMean | AveragePool) or _reads(node)


def _reads(node: Node) -> bool:
    whole = isinstance(node, Gemm) or (isinstance(node, Conv) and node.group == 1)
    return whole and takes_factors(node)


def _stride(node: Node, samples: int) -> int:
    size, channels = int(node.type.size), int(node.type.shape[-1])
    enough = max(min(ROWS, ROWS_WORK // channels**2), ROWS_PER_CHANNEL * channels)
    return max(1, samples * (size // channels) // enough)


def _metrics(graph: Graph, node: Node, rows: Mapping[str, Array]) -> Iterator[Array]:
    """``mean of w w' / variance`` over the channels of each reader, [C, C]."""
    covariance = np.cov(rows[node.name].astype(np.float64), rowvar=False)
    for user in graph.users[node]:
        if isinstance(user, Conv | Gemm) and user.x is node:
            w = user.w.value.astype(np.float64)  # type: ignore[attr-defined]
            by_offset = w.reshape(-1, *w.shape[-2:])
            variance = np.einsum("tio,ij,tjo->o", by_offset, covariance, by_offset, optimize=True)
            weighted = by_offset / np.maximum(variance, TINY)
            yield np.einsum("tio,tjo->ij", weighted, by_offset, optimize=True) / w.shape[-1]


def descend(x: Array, noise: Array) -> Array | None:
    """F [C, C] with a small J for the rows ``x`` [rows, C] and M = ``noise``; None if the search
    finds none.
    """
    descent = _Descent.start(x.astype(np.float32), noise)
    if descent is None:
        return None
    steps = min(MAX_STEPS, STEPS_WORK // max(len(x) * x.shape[1] ** 2, 1))
    size = FIRST_STEP
    for _ in range(steps):
        direction = descent.direction()
        while size >= MIN_STEP:
            further = descent.move(size * direction)
            if further.cost < descent.cost:
                descent, size = further, min(1.3 * size, MAX_STEP)
                break
            size /= 2
    rounded = np.rint(descent.f / np.abs(descent.f).max() * GRID) / GRID
    if np.linalg.cond(rounded) > MAX_CONDITION:
        return None
    return np.asarray(rounded, np.float32)


@dataclass(frozen=True)
class _Descent:
    """``y`` [C, rows] = ``F^-1 x``, each channel of norm 1; ``metric`` = F' M F.

    The rows of a channel lie side by side, as reductions want them.
    """

    y: Array
    f: Array
    metric: Array

    @staticmethod
    def start(x: Array, noise: Array) -> _Descent | None:
        y = np.array(x.T, order="C")
        norms = _norms(y)
        if not len(x) or norms.min(initial=math.inf) <= TINY:
            return None
        return _Descent(_divide(y, norms), np.diag(norms), noise * np.outer(norms, norms))

    @property
    def cost(self) -> float:
        return float(np.trace(self.metric))

    def direction(self) -> Array:
        """E [C, C] that lowers J at first order, its largest element 1."""
        sums = np.zeros(self.metric.shape)
        for some in _near(self.y):
            square = np.square(some)
            power = np.square(square)
            power *= power
            power *= square
            power *= some
            sums += power @ some.T  # some ** 11
        # The derivative of a 12-norm of 1 by y is mean(y**11 dy), and F' M F changes by
        # -E' F' M F - F' M F E: half of dJ / dE is diag(F' M F) mean(y**11 y') - F' M F.
        correlation = sums / self.y.shape[1]
        gradient = np.diag(self.metric)[:, None] * correlation - self.metric
        return np.asarray(-gradient / max(np.abs(gradient).max(), TINY))

    def move(self, e: Array) -> _Descent:
        """With ``y + E y`` instead of ``y``, of norm 1 again."""
        forward = np.eye(len(e)) + e
        y = forward.astype(np.float32) @ self.y
        norms = _norms(y)
        back = np.linalg.inv(forward) * norms
        return _Descent(_divide(y, norms), self.f @ back, back.T @ self.metric @ back)


def _divide(y: Array, norms: Array) -> Array:
    """Each channel over its norm, in the place of ``y``."""
    return np.asarray(np.divide(y, norms.astype(np.float32)[:, None], out=y))


def _norms(y: Array) -> Array:
    """The 12-norm of each channel [C, rows] over its rows."""
    reach = np.maximum(np.maximum(y.max(axis=1, initial=0.0), -y.min(axis=1, initial=0.0)), TINY)
    scales, sums = (1 / reach).astype(np.float32)[:, None], np.zeros(len(y))
    for some in _near(y):
        square = some * scales
        np.square(square, out=square)
        sixth = np.multiply(np.square(square), square, out=square)
        sums += np.einsum("cr,cr->c", sixth, sixth)
    return np.asarray(reach.astype(np.float64) * (sums / max(y.shape[1], 1)) ** (1 / NORM))


def _near(y: Array) -> list[Array]:
    """Some rows after the other, so that what is computed of them stays in the cache."""
    return np.array_split(y, max(1, y.nbytes // NEAR_NBYTES), axis=1) if y.size else []
