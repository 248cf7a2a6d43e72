"""Winograd's minimal filtering: filters of three taps with half as many products.

F(4, 3) of S. Winograd, "Arithmetic Complexity of Computations" (1980): four results of a filter of
three taps are sums of six products of sums of six samples, where the filter has twelve products.
Points 0, 1, -1, 2, -2 and infinity; coefficients as in A. Lavin and S. Gray, "Fast Algorithms for
Convolutional Neural Networks" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Concat, Conv, Elementwise, Pad, Reshape, Slice
from quantglow.ir.ops.expression import Expr, arg, call, clip, const
from quantglow.ir.ops.windows import has_padding
from quantglow.ir.symbolic.size import Dim, Size, decide, is_free, surely_equal
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array
from quantglow.transforms.lowering.rules import tag, unique_names
from quantglow.transforms.rewrite import RewritePass, Uses

RESULTS, TAPS, POINTS = 4, 3, 6

SAMPLES = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
"""The factor of each point that comes of six samples."""

WEIGHTS = np.array(
    [
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ]
)
"""The factor of each point that comes of three taps."""

SUMS = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)
"""Each of four results from the products of six points."""

FOR_BIAS = 1
"""A point whose product is a summand of each result, as the bias is."""

FEWEST_CHANNELS = 48
"""Minimum number of input and of output channels, below which the sums cost more than the products
they save."""
FEWEST_RESULTS = 32
"""Minimum number of pixels: fewer do not pay for reading twice as many weights."""
MOST_ELEMENTS = 2**23
"""Maximum number of elements of the input and of the result: the sums of larger ones would leave
the caches, and need more memory than the network does."""


def minimal_filtering(graph: Graph) -> Graph:
    """Conv(x, w) -> A^T (G w · B^T x) for float filters of three taps along rows"""
    return unique_names(RewritePass("minimal-filtering", _in_tiles)(graph))


def _in_tiles(node: Node, uses: Uses) -> Node | None:
    """The tiles of a filter, if there are enough."""
    if not isinstance(node, Conv) or not _is_filter(node):
        return None
    batch, height, width, _ = node.type.shape
    pixels, widest = batch * height * width, max(node.w.type.fixed_shape[2:])
    pays = decide(pixels >= FEWEST_RESULTS) and decide(pixels * widest <= MOST_ELEMENTS)
    return _filter_tiles(node, _count_tiles(width)) if pays else None


def _count_tiles(width: Dim) -> Dim:
    """The number of tiles of a row.  The last one of a free width is never full, so that one
    program serves all widths."""
    return width // RESULTS + 1 if is_free(width) else -(-width // RESULTS)


def _is_filter(conv: Conv) -> bool:
    """Whether a Conv has three taps along float rows of many channels."""
    return (
        isinstance(conv.w, Constant)
        and (conv.b is None or isinstance(conv.b, Constant))
        and conv.x.type.dtype is conv.w.type.dtype is conv.type.dtype is DType.F32
        and conv.residual is None
        and conv.w.type.fixed_shape[:2] == (1, TAPS)
        and (conv.strides, conv.dilations, conv.group) == ((1, 1), (1, 1), 1)
        and not has_padding((conv.pads[0], 0, conv.pads[2], 0))
        and min(conv.w.type.fixed_shape[2:]) >= FEWEST_CHANNELS
    )


def _filter_tiles(node: Conv, tiles: Dim) -> Node:
    """The results of all tiles, cut to the width of the row."""
    batch, height, width, channels = node.type.shape
    pixels = batch * height * tiles
    whole_products = _tile_product(node, factors(node, tiles), pixels)
    products = _products_of_points(node, whole_products, pixels)
    parts = tuple(result(node, products, at) for at in range(RESULTS))
    joined = Concat(name=tag(node, "results"), parts=parts, axis=3)
    whole = (batch, height, RESULTS * tiles, channels)
    if not isinstance(width, Size) and width == whole[2]:
        return Reshape(name=node.name, x=joined, shape=whole)
    return Slice(
        name=node.name,
        x=Reshape(name=tag(node, "tiles"), x=joined, shape=whole),
        starts=(0, 0, 0, 0),
        sizes=node.type.shape,
        steps=(1, 1, 1, 1),
    )


def factors(node: Conv, tiles: Dim) -> Node:
    """B^T x of all tiles [N, H, tiles, points * C]."""
    x, (batch, height, _, channels) = pad(node, tiles), node.x.type.shape
    samples = [
        Slice(
            name=tag(node, f"sample{at}"),
            x=x,
            starts=(0, 0, at, 0),
            sizes=(batch, height, tiles, channels),
            steps=(1, 1, RESULTS, 1),
        )
        for at in range(POINTS)
    ]
    parts = tuple(
        _weigh(tag(node, f"factor{point}"), samples, row) for point, row in enumerate(SAMPLES)
    )
    return Concat(name=tag(node, "factors"), parts=parts, axis=3)


def pad(node: Conv, tiles: Dim) -> Node:
    """x with its pads, and as much more as fills the last tile."""
    _, left, _, right = node.pads
    missing = RESULTS * tiles - node.type.shape[2]
    if surely_equal((left, right, missing), (0, 0, 0)):
        return node.x
    pad = tag(node, "pad")
    return Pad(name=pad, x=node.x, before=(0, 0, left, 0), after=(0, 0, right + missing, 0))


def _tile_product(node: Conv, x: Node, pixels: Dim) -> Conv:
    """The products of each point [1, 1, pixels, points * O], with the bias in one of them."""
    assert isinstance(node.w, Constant)
    _, _, inputs, outputs = node.w.type.shape
    # In float64, rounded once: the sums of F(4, 3) amplify every error of a product.
    weights = np.einsum("pt,tio->ipo", WEIGHTS, node.w.value[0].astype(np.float64))
    return Conv(
        name=tag(node, "products"),
        x=Reshape(name=tag(node, "pixels"), x=x, shape=(1, 1, pixels, POINTS * inputs)),
        w=Constant(
            name=tag(node, "transformed"),
            value=weights.reshape(1, 1, inputs, POINTS * outputs).astype(np.float32),
        ),
        b=Constant(name=tag(node, "point-bias"), value=_point_bias(node, outputs)),
        group=POINTS,
    )


def _point_bias(node: Conv, outputs: Dim) -> Array:
    """Zeros but for one point."""
    bias = np.zeros((POINTS, outputs), np.float32)
    if isinstance(node.b, Constant):
        bias[FOR_BIAS] = node.b.value
    return bias.reshape(-1)


def _products_of_points(node: Conv, products: Node, pixels: Dim) -> list[Slice]:
    """The products of each point [1, 1, pixels, O]."""
    outputs = node.type.shape[3]
    return [
        Slice(
            name=tag(node, f"product{point}"),
            x=products,
            starts=(0, 0, 0, point * outputs),
            sizes=(1, 1, pixels, outputs),
            steps=(1, 1, 1, 1),
        )
        for point in range(POINTS)
    ]


def result(node: Conv, products: Sequence[Node], at: int) -> Elementwise:
    """Result ``at`` of all tiles [1, 1, pixels, O], with the activation of the Conv."""
    weighted_sum = _weigh(tag(node, f"result{at}"), products, SUMS[at])
    value = weighted_sum.expression
    if node.activation is not None:
        value = node.activation.expression().substitute([value])
    return replace(weighted_sum, expression=clip(value, node.low, node.high).rounded())


def _weigh(name: str, values: Sequence[Node], weights: Sequence[int]) -> Elementwise:
    """The sum of weighted values, added in the order of their weights' sizes."""
    # Summands in the order of their sizes lose the least by rounding (N. Higham, "Accuracy and
    # Stability of Numerical Algorithms", chapter 4).
    used = [at for at, weight in enumerate(weights) if weight]
    used.sort(key=lambda at: abs(weights[at]))
    terms = [_times(arg(place), weights[at]) for place, at in enumerate(used)]
    return Elementwise(
        name=name,
        args=tuple(values[at] for at in used),
        expression=reduce(lambda x, y: call("add", x, y), terms),
        out=ElementType(DType.F32),
    )


def _times(x: Expr, weight: int) -> Expr:
    return x if weight == 1 else call("mul", x, const(weight))
