"""Lowering of antialiased resizing to products with its weights.

Each result reads a band of pixels only, so the results of an axis are computed in blocks, each from
the pixels that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Concat, Gemm, MatMul, Reshape, Slice, Transpose
from quantglow.ir.ops.resize import AntialiasedResize
from quantglow.support.arrays import Array
from quantglow.transforms.lowering.rules import lowers, tag

BLOCK = 16
"""Rows or columns that are computed at once."""


@lowers(AntialiasedResize)
def lower_antialiased_resize(node: AntialiasedResize) -> Node:
    """weights of H @ x, then weights of W @ that, in blocks"""
    lines = resample_lines(node)
    n, h, _, c = node.type.shape
    width = node.x.type.shape[2]
    images = Reshape(name=tag(node, "columns"), x=lines, shape=(n * h, width, c))
    planes = Transpose(name=tag(node, "planes"), x=images, perm=(0, 2, 1))
    matrix = Reshape(name=tag(node, "matrix"), x=planes, shape=(n * h * c, width))
    resized = resample_columns(node, matrix)
    narrowed = Reshape(name=tag(node, "narrowed"), x=resized, shape=(n * h, c, node.sizes[1]))
    pixels = Transpose(name=tag(node, "pixels"), x=narrowed, perm=(0, 2, 1))
    return Reshape(name=node.name, x=pixels, shape=node.type.shape)


def resample_lines(node: AntialiasedResize) -> Node:
    """The image with its final height: [N, rows, W * C]."""
    n, h, w, c = node.x.type.shape
    lines = Reshape(name=tag(node, "lines"), x=node.x, shape=(n, h, w * c))
    blocks = [
        MatMul(
            name=tag(node, f"rows{index}"),
            x=Constant(name=tag(node, f"rows{index}-weights"), value=weights),
            y=band(node, lines, first, weights.shape[1], f"band{index}"),
        )
        for index, (first, weights) in enumerate(bands(node.weights(0)))
    ]
    return join(node, blocks, "shortened")


def resample_columns(node: AntialiasedResize, matrix: Node) -> Node:
    """The product of rows of pixels, [rows, W], with the weights of W."""
    blocks = [
        Gemm(
            name=tag(node, f"columns{index}"),
            x=band(node, matrix, first, weights.shape[1], f"part{index}"),
            w=Constant(name=tag(node, f"columns{index}-weights"), value=weights.T.copy()),
        )
        for index, (first, weights) in enumerate(bands(node.weights(1)))
    ]
    return join(node, blocks, "blocks")


def bands(weights: Array) -> Iterator[tuple[int, Array]]:
    """For each block of results: the first pixel that it reads, and its weights from there on."""
    for begin in range(0, len(weights), BLOCK):
        block = weights[begin : begin + BLOCK]
        read = np.flatnonzero(block.any(axis=0))
        yield int(read[0]), np.ascontiguousarray(block[:, read[0] : read[-1] + 1])


def band(node: AntialiasedResize, x: Node, first: int, count: int, role: str) -> Node:
    """A part of axis 1."""
    before, _, *after = x.type.shape
    starts, sizes = (0, first, *(0 for _ in after)), (before, count, *after)
    return Slice(name=tag(node, role), x=x, starts=starts, sizes=sizes, steps=(1,) * x.type.rank)


def join(node: AntialiasedResize, blocks: Sequence[Node], role: str) -> Node:
    """The blocks one behind the other along axis 1."""
    return blocks[0] if len(blocks) == 1 else Concat(name=tag(node, role), parts=(*blocks,), axis=1)
