"""Models of which only weights are quantized: DequantizeLinear of constants, float activations.

Products keep these weights, as ``GroupedMatMul`` with one group for each output channel; for other
operators they become float.  All else of the graph is float, and may be quantized.
"""

from __future__ import annotations

import math

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass, run_passes
from quantglow.ops import Dequantize, Gemm, GroupedMatMul, MatMul, Reshape
from quantglow.ops.weight_groups import BITS, GRAIN, LONGEST, PackedWeights, packed_codes
from quantglow.quantization.qdq.movement import real_constants
from quantglow.types import Array


def has_quantized_weights_only(graph: Graph) -> bool:
    """Whether integers that stand for real numbers are constants that become float at once."""
    return all(
        isinstance(node, Constant) and all(isinstance(user, Dequantize) for user in readers)
        for node, readers in graph.users.items()
        if node.type.quant is not None
    )


def with_stored_weights(graph: Graph) -> Graph:
    """The graph in float, but for the weights of products, which stay as they are."""
    return run_passes(graph, [keep_stored_weights, real_constants])


@rewrite_pass("keep-stored-weights")
def keep_stored_weights(node: Node, uses: Uses) -> Node | None:
    """Gemm(x, Dequantize(Constant)) -> GroupedMatMul, likewise MatMul"""
    match node:
        case Gemm(x=x, w=Dequantize(x=Constant() as stored), b=b) if node.is_bare:
            packed = packed_weights(stored)
        case MatMul(x=x, y=Dequantize(x=Constant() as stored), out=None):
            packed, b = packed_weights(stored), None
        case _:
            return None
    if packed is None or not x.type.dtype.is_float:
        return None
    rows, shape = (math.prod(x.type.shape[:-1]), x.type.shape[-1]), node.type.shape
    if x.type.rank != 2:
        x = Reshape(name=uses.fresh(f"{node.name}:rows"), x=x, shape=rows)
    name = node.name if len(shape) == 2 else uses.fresh(f"{node.name}:product")
    product = grouped(name, x, packed, b, uses)
    return product if len(shape) == 2 else Reshape(name=node.name, x=product, shape=shape)


def grouped(name: str, x: Node, packed: PackedWeights, b: Node | None, uses: Uses) -> Node:
    """The product with packed weights."""

    def constant(tag: str, array: Array | None) -> Constant | None:
        fresh = uses.fresh(f"{name}:{tag}")
        return None if array is None else Constant(name=fresh, value=array)

    codes, scales = constant("codes", packed.codes), constant("scales", packed.scales)
    assert codes is not None and scales is not None
    points = constant("zero_points", packed.zero_points)
    return GroupedMatMul(
        name=name, x=x, w=codes, scales=scales, zero_points=points, b=b, bits=packed.bits
    )


def packed_weights(stored: Constant) -> PackedWeights | None:
    """Integers [K, N] with one scale for all or for each column as one group for each column; None
    for others."""
    quant = stored.type.quant
    if quant is None or stored.type.rank != 2 or quant.axis not in (None, 1):
        return None
    depth, columns = stored.type.shape
    length = -(-depth // GRAIN) * GRAIN
    if not depth or length > LONGEST:
        return None
    scales = np.broadcast_to(np.array(quant.scales, np.float32), columns)
    points = np.broadcast_to(np.array(quant.zero_points, np.int64), columns)
    codes = np.tile(points[:, None], length)
    codes[:, :depth] = stored.value.T
    bits = next((b for b in BITS if fits(codes, b) and fits(points, b)), None)
    if bits is None:
        return None
    middle = 2 ** (bits - 1)
    return PackedWeights(
        packed_codes((codes + middle)[:, None], bits),
        np.ascontiguousarray(scales[:, None]),
        (points + middle).astype(np.uint8)[:, None] if points.any() else None,
        bits,
    )


def fits(codes: Array, bits: int) -> bool:
    """Whether signed codes have so few bits."""
    return bool((-(2 ** (bits - 1)) <= codes).all() and (codes < 2 ** (bits - 1)).all())
