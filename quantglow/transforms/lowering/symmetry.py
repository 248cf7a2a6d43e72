"""Symmetric filters and products: equal or opposite weights need half the products.

Filters: a Fourier transform written as a convolution of one signal has windowed cosines, which are
even, and windowed sines, which are odd: ``w[s - i] = w[i]`` or ``w[s - i] = -w[i]``.  The samples
that share a weight are added, or subtracted, before they are multiplied.

Products: every second bin of a Fourier transform is even about a quarter of the period, the others
are odd: ``cos(2 pi k (n/2 - i) / n) = (-1)^k cos(2 pi k i / n)``.  A window makes it
``w[s - i, k] = (-1)^k r[i] w[i, k]``, with one ratio for all bins.  The columns that are even, and
those that are odd, are products with half of the rows; a cosine transform that was folded about the
center is folded about a quarter of its period here, then about an eighth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Concat, Conv, Elementwise, Pad, Reshape, Slice, Transpose
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.ops.windows import has_padding
from quantglow.ir.symbolic.size import Dim, decide
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array
from quantglow.transforms.lowering.rules import tag, unique_names
from quantglow.transforms.rewrite import RewritePass, Uses

MIN_FILTER_PRODUCTS = 4096
"""Minimum number of weights of a filter whose sums cost less than the products they save."""
FEWEST_TAPS = 32
MOST_PARTS = 2
"""Maximum number of neighboring channels, even and odd, that are computed apart."""
TOLERANCE = 2.0**-21
"""Difference of weights, as a share of the largest, up to which they are equal: exporters compute
cosines in float32."""

MIN_MATRIX_PRODUCTS = 8192
"""Minimum number of weights of a matrix whose sums cost less than the products they save."""

FEWEST_ROWS = 32
FEWEST_CHANNELS = 32
GLANCE = 2
"""Pairs that reject most matrices."""


def fold_symmetric_filters(graph: Graph) -> Graph:
    """Conv(x, w) -> Concat(Conv(x[i] + x[s - i], w[i]), Conv(x[j] - x[s - j], w[j])), i, j < s / 2,
    for float filters of one signal that are even, or odd
    """
    return unique_names(RewritePass("fold-symmetric-filters", _fold_filter)(graph))


def _fold_filter(node: Node, uses: Uses) -> Node | None:
    """The filters of a bank, even and odd ones apart."""
    if not isinstance(node, Conv) or not _is_plain(node):
        return None
    assert isinstance(node.w, Constant)
    w = node.w.value[0, :, 0]
    for total in (len(w), len(w) - 1):
        parts = _symmetric_parts(w, total)
        if parts is not None:
            return _fold(node, w, parts)
    return None


def _is_plain(conv: Conv) -> bool:
    """Whether a Conv has many taps over one row of float samples."""
    height, taps, inputs, outputs = conv.w.type.fixed_shape
    stride, signal = conv.strides[1], conv.x.type
    return (
        isinstance(conv.w, Constant)
        and (conv.b is None or isinstance(conv.b, Constant))
        and conv.residual is None
        and signal.dtype is conv.w.type.dtype is DType.F32
        and height == inputs == 1
        and decide(signal.shape[1] == 1)
        and not has_padding(conv.pads)
        and conv.dilations == (1, 1)
        and taps >= FEWEST_TAPS
        and stride <= taps
        and taps * outputs >= MIN_FILTER_PRODUCTS
    )


@dataclass(frozen=True)
class SymmetricPart:
    """Channels ``first`` up to ``end`` of filters [taps, channels], even (``sign`` 1) or odd (-1)
    about ``total / 2``: taps i and ``total - i`` share their weights."""

    first: int
    end: int
    sign: int
    total: int

    @property
    def kind(self) -> str:
        return "even" if self.sign > 0 else "odd"

    def pairs(self, w: Array) -> range:
        """The smaller taps of all pairs."""
        return range(self.total - len(w) + 1, (self.total + 1) // 2)

    def singles(self, w: Array) -> list[int]:
        """The taps without a partner that are not 0: the center, and the first of a period."""
        pairs, channels = self.pairs(w), w[:, self.first : self.end]
        alone = [*range(pairs.start), *range(pairs.stop, self.total // 2 + 1)]
        return [tap for tap in alone if (abs(channels[tap]) > _smallest(w)).any()]

    def weights(self, w: Array) -> Array:
        """The weights of pairs, then of singles [taps, channels]."""
        channels, pairs = w[:, self.first : self.end], np.array(self.pairs(w))
        shared = (channels[pairs] + self.sign * channels[self.total - pairs]) / 2
        return np.concatenate([shared, channels[self.singles(w)]])


def _smallest(w: Array) -> float:
    """The weights, and differences of weights, that count as 0."""
    return float(abs(w).max()) * TOLERANCE


def _symmetric_parts(w: Array, total: int) -> list[SymmetricPart] | None:
    """The parts of filters [taps, channels]; None if a filter has no symmetry, or if there are many
    parts."""
    inner, most = w[total - len(w) + 1 :], _smallest(w)
    even, odd = ((abs(inner - sign * inner[::-1]) <= most).all(axis=0) for sign in (1, -1))
    parts: list[SymmetricPart] = []
    for channel in range(w.shape[1]):
        # A channel of zeros is even and odd: it joins the part before it.
        signs = [sign for sign, holds in ((1, even), (-1, odd)) if holds[channel]]
        if parts and parts[-1].sign in signs:
            parts[-1] = replace(parts[-1], end=channel + 1)
        elif signs:
            parts.append(SymmetricPart(channel, channel + 1, signs[0], total))
        else:
            return None
    return parts if len(parts) <= MOST_PARTS else None


def _fold(node: Conv, w: Array, parts: Sequence[SymmetricPart]) -> Node:
    """The results of all parts, side by side."""
    convolutions = tuple(_convolve(node, w, part) for part in parts)
    joined = Concat(name=tag(node, "channels"), parts=convolutions, axis=3)
    return Reshape(name=node.name, x=joined, shape=node.type.shape)


def _convolve(node: Conv, w: Array, part: SymmetricPart) -> Conv:
    """The channels of a part, as products of sums, of all windows in one row."""
    pairs, singles = part.pairs(w), part.singles(w)
    rows = _samples(node, len(w), f"{part.kind}-rows")
    sums: list[Node] = [
        _sum_filter_rows(node, rows, run, part) for run in _runs(pairs, part.total, node)
    ]
    sums += [_window(node, rows, tap, 1) for tap in singles]
    joined = Concat(name=tag(node, f"{part.kind}-sums"), parts=tuple(sums), axis=2)
    batch, _, columns, _ = node.type.shape
    channels = slice(part.first, part.end)
    shape = (1, 1, batch * columns, len(pairs) + len(singles))
    value = np.ascontiguousarray(part.weights(w)[None, None])
    assert node.b is None or isinstance(node.b, Constant)
    return replace(
        node,
        name=tag(node, part.kind),
        x=Reshape(name=tag(node, f"{part.kind}-image"), x=joined, shape=shape),
        w=Constant(name=tag(node, f"{part.kind}-weights"), value=value),
        b=node.b
        and replace(node.b, name=tag(node, f"{part.kind}-bias"), value=node.b.value[channels]),
        strides=(1, 1),
    )


def _samples(node: Conv, taps: int, role: str) -> Node:
    """The signal in rows of as many samples as the stride has [N, rows, stride]."""
    (batch, _, columns, _), stride = node.type.shape, node.strides[1]
    rows, missing = columns - 1 + -(-taps // stride), -taps % stride
    x: Node = Slice(
        name=tag(node, f"{role}-read"),
        x=node.x,
        starts=(0, 0, 0, 0),
        sizes=(batch, 1, (columns - 1) * stride + taps, 1),
        steps=(1, 1, 1, 1),
    )
    if missing:
        after = (0, 0, missing, 0)
        x = Pad(name=tag(node, f"{role}-filled"), x=x, before=(0, 0, 0, 0), after=after)
    return Reshape(name=tag(node, role), x=x, shape=(batch, rows, stride))


def _runs(pairs: range, total: int, node: Conv) -> Iterator[range]:
    """Parts of the pairs of which both taps lie in one row of samples each."""
    stride = node.strides[1]
    for _, run in groupby(pairs, lambda tap: (tap // stride, (total - tap) // stride)):
        taps = list(run)
        yield range(taps[0], taps[-1] + 1)


def _sum_filter_rows(node: Conv, rows: Node, taps: range, part: SymmetricPart) -> Node:
    """x[i] + x[total - i], or the difference, of all windows [N, columns, taps]."""
    near = _window(node, rows, taps.start, len(taps))
    far = _window(node, rows, part.total - taps.start, len(taps), -1)
    return Elementwise(
        name=tag(node, f"{part.kind}-{taps.start}"),
        args=(near, far),
        expression=call("add" if part.sign > 0 else "sub", arg(0), arg(1)),
        out=ElementType(DType.F32),
    )


def _window(node: Conv, rows: Node, first: int, count: int, step: int = 1) -> Slice:
    """``count`` taps from ``first`` on, of all windows [N, columns, count]."""
    row, start = divmod(first, node.strides[1])
    batch, _, columns, _ = node.type.shape
    return Slice(
        name=tag(node, f"{rows.name.rpartition(':')[2]}-{first}-{step}"),
        x=rows,
        starts=(0, row, start),
        sizes=(batch, columns, count),
        steps=(1, 1, step),
    )


def fold_symmetric_products(graph: Graph) -> Graph:
    """x w -> (x[i] + r x[s - i]) w[i, 0::2] beside (x[i] - r x[s - i]) w[i, 1::2], i < s / 2, for
    float matrices with w[s - i, k] = ±(-1)^k r[i] w[i, k]
    """
    return unique_names(RewritePass("fold-symmetric-products", _fold_product)(graph))


def _fold_product(node: Node, uses: Uses) -> Node | None:
    """The even and the odd columns of a product, interleaved."""
    if not isinstance(node, Conv) or not _is_product(node):
        return None
    assert isinstance(node.w, Constant)
    w = node.w.value[0, 0]
    if not np.isfinite(w).all():
        return None
    pairing = next((p for total in _totals(w) if (p := Pairing.of(w, total)) is not None), None)
    return None if pairing is None else _interleave(node, w, pairing)


def _is_product(conv: Conv) -> bool:
    """Whether a Conv is a large product of float rows with a constant matrix."""
    height, width, inputs, outputs = conv.w.type.fixed_shape
    return (
        isinstance(conv.w, Constant)
        and (conv.b is None or isinstance(conv.b, Constant))
        and conv.residual is None
        and conv.x.type.dtype is conv.w.type.dtype is DType.F32
        and (height, width, conv.group, conv.strides) == (1, 1, 1, (1, 1))
        and not has_padding(conv.pads)
        and inputs >= FEWEST_ROWS
        and outputs >= FEWEST_CHANNELS
        and inputs * outputs >= MIN_MATRIX_PRODUCTS
    )


def _totals(w: Array) -> range:
    """Sums of the numbers of paired rows: all rows, or all but the first or the last one."""
    return range(len(w) - 2, len(w) + 1)


@dataclass(frozen=True)
class Pairing:
    """Rows i and ``total - i`` of a matrix [K, N], i in ``near``, are equal up to a factor.

    ``factors`` [2, pairs]: the factors that the samples of both rows have in the sums, of which
    the larger one is 1; ``sign``: that of the first column.
    """

    total: int
    near: range
    factors: Array
    sign: int

    @staticmethod
    def of(w: Array, total: int) -> Pairing | None:
        """The pairing of a matrix about ``total / 2``; None if its rows differ."""
        near = range(max(0, total - len(w) + 1), (total + 1) // 2)
        if len(near) < len(w) // 2 - 1:
            return None
        most = abs(w).max() * TOLERANCE
        glance, whole = (
            (w[rows.start : rows.stop], _mirror(w, rows, total)) for rows in (near[:GLANCE], near)
        )
        if (
            _alternating(*glance, most) is None
            or (alternation := _alternating(*whole, most)) is None
        ):
            return None
        factors, sign = alternation
        return Pairing(total, near, factors, sign)

    def ends(self, w: Array) -> list[int]:
        """Rows before and behind all pairs that are not 0, those behind them first: a period ends
        where it begins."""
        return _present(w, [*range(self.total + 1, len(w)), *range(self.near.start)])

    def center(self, w: Array) -> list[int]:
        """The row that is its own partner, if it is not 0."""
        return _present(w, [] if self.total % 2 else [self.total // 2])

    def weights(self, w: Array, parity: int) -> Array:
        """Rows of pairs, [pairs, columns of this parity]: the mean of both rows, in the length of
        the longer one."""
        first, second = w[self.near.start : self.near.stop], _mirror(w, self.near, self.total)
        sign = self.sign * (-1) ** parity
        near, far = self.factors[:, :, None]
        # Least squares over both rows average the rounding of exported cosines.  The larger factor
        # is 1, so that only a pair of zeros has a sum of squares below 1.
        both = first[:, parity::2] * near + sign * far * second[:, parity::2]
        return np.asarray(both / (near**2 + far**2).clip(1), np.float32)


def _alternating(first: Array, second: Array, most: float) -> tuple[Array, int] | None:
    """Factors [2, rows] and the sign with which ``first factors[1]`` is ``second factors[0]`` in
    even columns, and its negative in odd ones, up to ``most``."""
    signs = np.where(np.arange(first.shape[1]) % 2, -1.0, 1.0)
    sign = 1 if (first * second * signs).sum() >= 0 else -1
    lengths = np.stack([np.linalg.norm(rows, axis=1) for rows in (first, second)])
    factors = lengths / np.maximum(lengths.max(axis=0), np.finfo(np.float32).tiny)
    # Multiplied crosswise, not divided: at the ends of a window, one row of a pair may be zero.
    crossed = first * factors[1][:, None] - sign * signs * second * factors[0][:, None]
    return (factors, sign) if (abs(crossed) <= most).all() else None


def _present(w: Array, rows: list[int]) -> list[int]:
    """The rows that are not 0."""
    return [row for row in rows if abs(w[row]).max() > abs(w).max() * TOLERANCE]


def _mirror(w: Array, near: range, total: int) -> Array:
    """The partners of rows, in float64, which the result of a product with them has, too."""
    return w[total - near.stop + 1 : total - near.start + 1][::-1].astype(np.float64)


def _interleave(node: Conv, w: Array, pairing: Pairing) -> Node:
    """The even and the odd columns side by side, then in their order."""
    *pixels, channels = node.type.shape
    columns = int(channels)
    width = -(-columns // 2)
    parts = tuple(_product(node, w, pairing, parity, width) for parity in (0, 1))
    joined = Concat(name=tag(node, "parities"), parts=parts, axis=3)
    count = pixels[0] * pixels[1] * pixels[2]
    pairs = Reshape(name=tag(node, "pairs"), x=joined, shape=(count, 2, width))
    transposed = Transpose(name=tag(node, "turned"), x=pairs, perm=(0, 2, 1))
    rows = Reshape(name=tag(node, "columns"), x=transposed, shape=(*pixels, 2 * width))
    if columns == 2 * width:
        return replace(rows, name=node.name)
    return _cut(node.name, rows, range(columns))


def _product(node: Conv, w: Array, pairing: Pairing, parity: int, width: Dim) -> Conv:
    """The columns of a parity, and columns of 0 up to ``width``."""
    columns = w[:, parity::2]
    ends, center = pairing.ends(columns), pairing.center(columns)
    filled = ((0, 0), (0, width - columns.shape[1]))
    value = np.concatenate([columns[ends], pairing.weights(w, parity), columns[center]])
    value = np.pad(value, filled)
    kind = ("even", "odd")[parity]
    ends_read, center_read = (
        [_cut(tag(node, f"row-{row}"), node.x, range(row, row + 1)) for row in rows]
        for rows in (ends, center)
    )
    parts = (*ends_read, _sum_product_rows(node, pairing, parity), *center_read)
    sums = Concat(name=tag(node, f"{kind}-sums"), parts=parts, axis=3)
    return replace(
        node,
        name=tag(node, kind),
        x=sums,
        w=Constant(
            name=tag(node, f"{kind}-weights"), value=np.ascontiguousarray(value[None, None])
        ),
        b=_bias(node, parity, filled[1]),
    )


def _bias(node: Conv, parity: int, filled: tuple[int, int]) -> Constant | None:
    """The bias of the columns of a parity."""
    if node.b is None:
        return None
    assert isinstance(node.b, Constant)
    value = np.pad(node.b.value[parity::2], filled)
    return Constant(name=tag(node, f"bias-{parity}"), value=value)


def _sum_product_rows(node: Conv, pairing: Pairing, parity: int) -> Elementwise:
    """Sums or differences of pairs."""
    near = pairing.near
    far = range(pairing.total - near.start, pairing.total - near.stop, -1)
    sides = [_cut(tag(node, f"side-{taps.step}"), node.x, taps) for taps in (near, far)]
    scaled = bool((pairing.factors != 1).any())
    factors = [
        Constant(name=tag(node, f"factors-{side}"), value=np.asarray(values, np.float32))
        for side, values in enumerate(pairing.factors)
    ]
    terms = [call("mul", arg(at), arg(2 + at)) if scaled else arg(at) for at in (0, 1)]
    return Elementwise(
        name=tag(node, f"sums-{parity}"),
        args=(*sides, *factors) if scaled else tuple(sides),
        expression=call("add" if pairing.sign * (-1) ** parity > 0 else "sub", *terms),
        out=ElementType(DType.F32),
    )


def _cut(name: str, x: Node, channels: range) -> Slice:
    """Some channels of an image."""
    return Slice(
        name=name,
        x=x,
        starts=(0, 0, 0, channels.start),
        sizes=(*x.type.shape[:3], len(channels)),
        steps=(1, 1, 1, channels.step),
    )
