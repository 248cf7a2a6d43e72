"""Filters that are even or odd about their centre have half as many products.

A Fourier transform written as a convolution of one signal has windowed cosines, which are even,
and windowed sines, which are odd: ``w[s - i] = w[i]`` or ``w[s - i] = -w[i]``.  The samples that
share a weight are added, or subtracted, before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import RewritePass, Uses
from quantglow.lowering.names import unique_names
from quantglow.lowering.rules import tag
from quantglow.ops import Concat, Conv, Elementwise, Pad, Reshape, Slice
from quantglow.ops.expression import arg, call
from quantglow.types import DType, ElementType

MIN_FILTER_PRODUCTS = 4096
"""Minimum number of weights from which on the sums cost less than the products they save."""
FEWEST_TAPS = 32
MOST_PARTS = 2
"""Maximum number of neighbouring channels, even and odd, that are computed apart."""
TOLERANCE = 2.0**-21
"""Difference of weights, as a share of the largest, up to which they are equal: exporters compute
cosines in float32."""


def fold_symmetric_filters(graph: Graph) -> Graph:
    """Conv(x, w) -> Concat(Conv(x[i] + x[s - i], w[i]), Conv(x[j] - x[s - j], w[j])), i, j < s / 2,
    for float filters of one signal that are even, or odd
    """
    return unique_names(RewritePass("fold-symmetric-filters", fold_filter)(graph))


def fold_filter(node: Node, uses: Uses) -> Node | None:
    """The filters of a bank, even and odd ones apart."""
    if not isinstance(node, Conv) or not is_plain(node):
        return None
    assert isinstance(node.w, Constant)
    w = node.w.value[0, :, 0]
    for total in (len(w), len(w) - 1):
        parts = symmetric_parts(w, total)
        if parts is not None:
            return folded(node, w, parts)
    return None


def is_plain(conv: Conv) -> bool:
    """Whether a Conv has many taps over one row of float samples."""
    height, taps, inputs, outputs = conv.w.type.shape
    stride, signal = conv.strides[1], conv.x.type
    return (
        isinstance(conv.w, Constant)
        and (conv.b is None or isinstance(conv.b, Constant))
        and conv.residual is None
        and signal.dtype is conv.w.type.dtype is DType.F32
        and (height, inputs, signal.shape[1]) == (1, 1, 1)
        and not any(conv.pads)
        and conv.dilations == (1, 1)
        and taps >= FEWEST_TAPS
        and stride <= taps
        and taps * outputs >= MIN_FILTER_PRODUCTS
    )


@dataclass(frozen=True)
class Part:
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
        """The taps without a partner that are not 0: the centre, and the first of a period."""
        pairs, own = self.pairs(w), w[:, self.first : self.end]
        alone = [*range(pairs.start), *range(pairs.stop, self.total // 2 + 1)]
        return [tap for tap in alone if (abs(own[tap]) > smallest(w)).any()]

    def weights(self, w: Array) -> Array:
        """The weights of pairs, then of singles [taps, channels]."""
        own, pairs = w[:, self.first : self.end], np.array(self.pairs(w))
        shared = (own[pairs] + self.sign * own[self.total - pairs]) / 2
        return np.concatenate([shared, own[self.singles(w)]])


def smallest(w: Array) -> float:
    """The weights, and differences of weights, that count as 0."""
    return float(abs(w).max()) * TOLERANCE


def symmetric_parts(w: Array, total: int) -> list[Part] | None:
    """The parts of filters [taps, channels]; None if a filter has no symmetry, or if there are many
    parts."""
    inner, most = w[total - len(w) + 1 :], smallest(w)
    even, odd = ((abs(inner - sign * inner[::-1]) <= most).all(axis=0) for sign in (1, -1))
    parts: list[Part] = []
    for channel in range(w.shape[1]):
        signs = [sign for sign, holds in ((1, even), (-1, odd)) if holds[channel]]
        if parts and parts[-1].sign in signs:
            parts[-1] = replace(parts[-1], end=channel + 1)
        elif signs:
            parts.append(Part(channel, channel + 1, signs[0], total))
        else:
            return None
    return parts if len(parts) <= MOST_PARTS else None


def folded(node: Conv, w: Array, parts: Sequence[Part]) -> Node:
    """The results of all parts, side by side."""
    found = tuple(convolved(node, w, part) for part in parts)
    joined = Concat(name=tag(node, "channels"), parts=found, axis=3)
    return Reshape(name=node.name, x=joined, shape=node.type.shape)


def convolved(node: Conv, w: Array, part: Part) -> Conv:
    """The channels of a part, as products of sums, of all windows in one row."""
    pairs, singles = part.pairs(w), part.singles(w)
    rows = samples(node, len(w), f"{part.kind}-rows")
    sums: list[Node] = [
        sum_filter_rows(node, rows, run, part) for run in runs(pairs, part.total, node)
    ]
    sums += [window(node, rows, tap, 1) for tap in singles]
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


def samples(node: Conv, taps: int, role: str) -> Node:
    """The signal in rows of as many samples as the stride has [N, rows, stride]."""
    (batch, _, columns, _), stride = node.type.shape, node.strides[1]
    rows, rest = columns - 1 + -(-taps // stride), -taps % stride
    x: Node = Slice(
        name=tag(node, f"{role}-read"),
        x=node.x,
        starts=(0, 0, 0, 0),
        sizes=(batch, 1, (columns - 1) * stride + taps, 1),
        steps=(1, 1, 1, 1),
    )
    if rest:
        after = (0, 0, rest, 0)
        x = Pad(name=tag(node, f"{role}-filled"), x=x, before=(0, 0, 0, 0), after=after)
    return Reshape(name=tag(node, role), x=x, shape=(batch, rows, stride))


def runs(pairs: range, total: int, node: Conv) -> Iterator[range]:
    """Parts of the pairs of which both taps lie in one row of samples each."""
    stride = node.strides[1]
    for _, run in groupby(pairs, lambda tap: (tap // stride, (total - tap) // stride)):
        found = list(run)
        yield range(found[0], found[-1] + 1)


def sum_filter_rows(node: Conv, rows: Node, taps: range, part: Part) -> Node:
    """x[i] + x[total - i], or the difference, of all windows [N, columns, taps]."""
    near = window(node, rows, taps.start, len(taps))
    far = window(node, rows, part.total - taps.start, len(taps), -1)
    return Elementwise(
        name=tag(node, f"{part.kind}-{taps.start}"),
        args=(near, far),
        expression=call("add" if part.sign > 0 else "sub", arg(0), arg(1)),
        out=ElementType(DType.F32),
    )


def window(node: Conv, rows: Node, first: int, count: int, step: int = 1) -> Slice:
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
