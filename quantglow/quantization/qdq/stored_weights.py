"""Models of which only weights are quantized: DequantizeLinear of constants, float activations.

All else of the graph is float, and may be quantized.  The weights stay:

* products keep them as ``GroupedMatMul`` with one group for each output channel;
* rows of tables are looked up as integers;
* other layers keep them behind Dequantize, which no pass looks through, and at last as
  ``StoredConstant``: int8 layers have these very integers where there is one scale for each output
  channel, others stay float.

Operators that are no layers have them as real numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node, StoredConstant
from quantglow.ir.ops import (
    Dequantize,
    Elementwise,
    Gather,
    Gemm,
    GroupedMatMul,
    MatMul,
    Reshape,
    Transpose,
)
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.expression import arg
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.groupwise import BITS, GRAIN, LONGEST, PackedWeights, pack_codes
from quantglow.ir.symbolic.size import Dim, prod
from quantglow.ir.types import DType, ElementType
from quantglow.quantization.qdq.contraction import fold_stored_scales
from quantglow.quantization.qdq.operators import real_constants
from quantglow.support.arrays import Array
from quantglow.transforms.float import MOVES, optimize
from quantglow.transforms.float.elimination import (
    eliminate_common_subexpressions,
    eliminate_identity,
)
from quantglow.transforms.rewrite import Pass, Uses, repeat, rewrite_pass, run_passes


def has_quantized_weights_only(graph: Graph) -> bool:
    """Whether integers that stand for real numbers are constants that become float at once."""
    return all(
        isinstance(node, Constant) and all(isinstance(user, Dequantize) for user in readers)
        for node, readers in graph.users.items()
        if node.type.quant is not None
    )


def with_stored_weights(graph: Graph) -> Graph:
    """The optimized graph in float, but for its weights, which stay as they are."""
    return run_passes(optimize(run_passes(graph, STORED_WEIGHT_PASSES)), [stored_constants])


@rewrite_pass("lay-out-stored-weights")
def lay_out_stored_weights(node: Node, uses: Uses) -> Node | None:
    """Transpose(Dequantize(Constant)) -> Dequantize(Constant)"""
    match node:
        case Transpose(x=Dequantize(x=Constant() as stored), perm=perm):
            quant = stored.type.quant
            assert quant is not None
            axis = None if quant.axis is None else perm.index(quant.axis)
            element = ElementType(stored.type.dtype, replace(quant, axis=axis))
            value = np.ascontiguousarray(stored.value.transpose(perm))
            name = uses.fresh(f"{node.name}:codes")
            x = Constant(name=name, value=value, element=element)
            return Dequantize(name=node.name, x=x)
    return None


@rewrite_pass("turn-stored-products")
def turn_stored_products(node: Node, uses: Uses) -> Node | None:
    """MatMul(Dequantize(Constant), y) -> Transpose(MatMul(Transpose(y), Dequantize(Constant)))"""
    match node:
        case MatMul(x=Dequantize(x=Constant() as stored) as left, y=y, out=None):
            pass
        case _:
            return None
    if stored.type.rank != 2 or isinstance(y, Constant | Dequantize):
        return None
    rank = y.type.rank
    swapped = (*range(rank - 2), rank - 1, rank - 2)

    def transpose(tag: str, x: Node, perm: tuple[int, ...]) -> Node:
        return Transpose(name=uses.fresh(f"{node.name}:{tag}"), x=x, perm=perm)

    weights = lay_out_stored_weights.rule(transpose("weights", left, (1, 0)), uses)
    assert weights is not None
    columns = transpose("columns", y, swapped)
    product = MatMul(name=uses.fresh(f"{node.name}:turned"), x=columns, y=weights)
    return Transpose(name=node.name, x=product, perm=swapped)


@rewrite_pass("keep-stored-weights")
def keep_stored_weights(node: Node, uses: Uses) -> Node | None:
    """Gemm(x, Dequantize(Constant)) -> GroupedMatMul, likewise MatMul"""
    match node:
        case Gemm(x=x, w=Dequantize(x=Constant() as stored), b=b) if node.is_bare:
            packed = _as_packed_weights(stored)
        case MatMul(x=x, y=Dequantize(x=Constant() as stored), out=None):
            packed, b = _as_packed_weights(stored), None
        case _:
            return None
    if packed is None or not x.type.dtype.is_float:
        return None
    rows, shape = (prod(x.type.shape[:-1]), x.type.shape[-1]), node.type.shape
    if x.type.rank != 2:
        x = Reshape(name=uses.fresh(f"{node.name}:rows"), x=x, shape=rows)
    name = node.name if len(shape) == 2 else uses.fresh(f"{node.name}:product")
    product = _grouped_product(name, x, packed, b, uses)
    return product if len(shape) == 2 else Reshape(name=node.name, x=product, shape=shape)


def _grouped_product(name: str, x: Node, packed: PackedWeights, b: Node | None, uses: Uses) -> Node:
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


def _as_packed_weights(stored: Constant) -> PackedWeights | None:
    """Integers [K, N] with one scale for all or for each column as one group for each column; None
    for others."""
    quant = stored.type.quant
    if quant is None or stored.type.rank != 2 or quant.axis not in (None, 1):
        return None
    depth, columns = stored.type.fixed_shape
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
        pack_codes((codes + middle)[:, None], bits),
        np.ascontiguousarray(scales[:, None]),
        (points + middle).astype(np.uint8)[:, None] if points.any() else None,
        bits,
    )


def fits(codes: Array, bits: int) -> bool:
    """Whether signed codes have so few bits."""
    return bool((-(2 ** (bits - 1)) <= codes).all() and (codes < 2 ** (bits - 1)).all())


@rewrite_pass("look-up-stored-rows")
def look_up_stored_rows(node: Node, uses: Uses) -> Node | None:
    """Gather(Dequantize(x), i) -> (Gather(x, i) - zero_point) * scale"""
    match node:
        case Gather(x=Dequantize(x=Constant() as stored), indices=indices, axis=axis):
            quant = stored.type.quant
        case _:
            return None
    if quant is None or stored.type.dtype is not DType.I8 or isinstance(indices, Constant):
        return None

    def gather(tag: str, array: Array, along: int) -> Node:
        table = Constant(name=uses.fresh(f"{node.name}:{tag}"), value=array)
        name = uses.fresh(f"{node.name}:{tag}-rows")
        return Gather(name=name, x=table, indices=indices, axis=along)

    def parameter(tag: str, values: tuple[float, ...]) -> Node:
        array = np.array(values, np.float32)
        ones: list[Dim] = [1] * node.type.rank
        if quant.axis == axis:
            place = slice(axis, axis + indices.type.rank)
            ones[place] = indices.type.shape
            rows = gather(tag, array, 0)
            name = uses.fresh(f"{node.name}:{tag}-as")
            return Reshape(name=name, x=rows, shape=tuple(ones))
        if quant.axis is not None:
            ones[quant.axis + (indices.type.rank - 1) * (quant.axis > axis)] = len(array)
        return Constant(name=uses.fresh(f"{node.name}:{tag}"), value=array.reshape(ones))

    codes = gather("codes", (stored.value.astype(np.int16) + 128).astype(np.uint8), axis)
    points = parameter("zero_points", tuple(z + 128.0 for z in quant.zero_points))
    value = fn("mul", fn("sub", fn("float", arg(0)), arg(1)), arg(2))
    args = (codes, points, parameter("scales", quant.scales))
    return Elementwise(name=node.name, args=args, expression=value, out=ElementType(DType.F32))


@rewrite_pass("real-operands-but-weights")
def real_operands_but_weights(node: Node, uses: Uses) -> Node | None:
    """f(Dequantize(Constant)) -> f(Constant), unless these are weights, or moved"""
    if isinstance(node, Dequantize | MatMul | Gather | Reshape | Transpose):
        return None
    weights = node.w if isinstance(node, Contraction) else None
    operands = tuple(
        o if o is weights else real_constants.rule(o, uses) or o for o in node.operands
    )
    if all(a is b for a, b in zip(operands, node.operands, strict=True)):
        return None
    return node.with_operands(operands)


@rewrite_pass("stored-constants")
def stored_constants(node: Node, uses: Uses) -> Node | None:
    """Dequantize(Constant) -> StoredConstant, and what is moved of it"""
    match node:
        case Dequantize(x=Constant() as integers):
            return StoredConstant(name=node.name, value=_real_value(node), integers=integers)
        case Reshape(x=StoredConstant()) | Transpose(x=StoredConstant()):
            return StoredConstant(name=node.name, value=_real_value(node))
    return None


def _real_value(node: Node) -> Array:
    """The value of a node whose operand is a Constant."""
    (x,) = node.operands
    assert isinstance(x, Constant)
    return np.array(node.evaluate(x.value), order="C")


STORED_WEIGHT_PASSES: tuple[Pass, ...] = (
    lay_out_stored_weights,
    turn_stored_products,
    keep_stored_weights,
    look_up_stored_rows,
    repeat(
        "move-transposes",
        eliminate_identity,
        *MOVES,
        eliminate_common_subexpressions,
    ),
    real_operands_but_weights,
    fold_stored_scales,
)
"""An imported graph whose activations are float to one that the quantizer takes."""
