"""Importers of weights of 2, 4 or 8 bits in blocks: products, and rows of tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.nodes.values import Blocked, as_float32
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    Elementwise,
    Expand,
    Gather,
    Gemm,
    GroupedMatMul,
    QuantizeRows,
    Reshape,
    Slice,
)
from quantglow.ir.ops.expression import arg, const
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.groupwise import BITS, PackedWeights, pack_codes, unpack_codes
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_in, prod
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

INT8_LEVEL = 4
"""The accuracy level at which activations may be int8."""


@dataclass(frozen=True)
class PackedOperands:
    """Operands of MatMulNBits: codes as they are packed, scales and zero points [N, G]."""

    codes: Array
    scales: Array
    zero_points: Array | None
    bits: int
    depth: int

    @property
    def block(self) -> int:
        """Weights of a block."""
        return int(self.codes.shape[2] * 8 // self.bits)

    @property
    def whole_points(self) -> Array | None:
        """Zero points as codes; None also where they are not codes."""
        points = self.zero_points
        if points is None or not self.has_whole_points:
            return None
        return points.astype(np.uint8)

    @property
    def has_whole_points(self) -> bool:
        """Whether each zero point is a code."""
        points = self.zero_points
        return points is None or bool(
            ((points >= 0) & (points < 2**self.bits) & (points == np.rint(points))).all()
        )

    def reals(self, order: Array) -> Array:
        """float32 [K, N]; ``order`` [K]: the block whose parameters a weight has."""
        codes = unpack_codes(self.codes, self.bits).reshape(len(self.codes), -1)
        points: Array = np.full((), 2 ** (self.bits - 1), np.float32)
        if self.zero_points is not None:
            points = self.zero_points.astype(np.float32)[:, order]
        centered = codes[:, : self.depth].astype(np.float32) - points
        return np.ascontiguousarray((centered * self.scales[:, order]).T)


@importer(f"{MICROSOFT}.MatMulNBits")
def mat_mul_n_bits(call: Call) -> Node:
    """x [..., K] times weights [N, K]; int8 activations where ``accuracy_level`` allows them."""
    depth, columns = call.integer("K", 0), call.integer("N", 0)
    *batch, k = call.shape(0)
    if decide(k != depth):
        raise ValueError(f"A has {k} columns, but K is {depth}")
    if call.integer("weight_prepacked", 0):
        raise Unsupported("its weights are packed for another processor")
    shape = (*batch, columns)
    if decide_in(0, call.shape(1)):
        return _omit(call, shape)
    blocks = _parse_blocks(call, depth, columns)
    x = _gather_rows(call, (prod(batch), k))
    output = product(call, x, blocks, call.derive("product") if len(batch) != 1 else call.result)
    return output if len(batch) == 1 else Reshape(name=call.result, x=output, shape=shape)


def _omit(call: Call, shape: Shape) -> Node:
    """Zeros or the bias, where there are no weights."""
    bias = as_float32(call.array(5, "bias")) if call.has(5) else np.zeros(shape[-1])
    return Expand(name=call.result, x=call.constant("bias", bias.reshape(-1)), shape=shape)


def _gather_rows(call: Call, shape: tuple[Dim, Dim]) -> Node:
    """The activations as a matrix."""
    x = call.node(0)
    if x.type.rank == 2:
        return x
    return call.scope.share(x, "rows", lambda: Reshape(name=call.derive("rows"), x=x, shape=shape))


def _parse_blocks(call: Call, depth: int, columns: int) -> PackedOperands:
    """The weights, with parameters [N, G] whether they were flattened or not.

    Raises ``Unsupported`` where they are computed, ``ValueError`` where their sizes do not fit.
    """
    bits, block = call.integer("bits", 4), call.integer("block_size", 0)
    if bits not in BITS or block < 16 or block & (block - 1):
        raise Unsupported(f"blocks of {block} weights of {bits} bits")
    groups = -(-depth // block)
    codes = call.array(1, "weight").reshape(columns, groups, block * bits // 8)
    scales = as_float32(call.array(2, "scale")).reshape(columns, groups)
    points = None
    if call.has(3):
        points = call.array(3, "zero point")
        if points.dtype == np.uint8:
            points = unpack_codes(points.reshape(columns, -1), bits)[:, :groups]
        points = points.reshape(columns, groups)
    return PackedOperands(codes, scales, points, bits, depth)


def product(call: Call, x: Node, blocks: PackedOperands, name: str) -> Node:
    """The product with packed weights; with float weights, if none is their equal."""
    order = np.arange(blocks.depth) // blocks.block
    group_indices = call.array(4, "g_idx").reshape(-1)[: blocks.depth] if call.has(4) else order
    bias = call.constant("bias", call.array(5, "bias").reshape(-1)) if call.has(5) else None
    if not blocks.has_whole_points or (group_indices != order).any():
        call.reserve((blocks.depth, len(blocks.codes)), 4)
        return Gemm(name=name, x=x, w=call.constant("kn", blocks.reals(group_indices)), b=bias)
    if call.integer("accuracy_level", 0) == INT8_LEVEL:
        x = _quantized_rows(call, x, blocks.block)
    packed = PackedWeights(blocks.codes, blocks.scales, blocks.whole_points, blocks.bits)
    return group(call, x, packed, bias, name)


def _quantized_rows(call: Call, x: Node, group: int) -> Node:
    """int8 rows of x, the same for all products that read them."""

    def quantize() -> Node:
        return QuantizeRows(name=call.derive("quantized"), x=x, group=group)

    return call.scope.share(x, f"rows of int8, {group}", quantize)


def group(call: Call, x: Node, packed: PackedWeights, bias: Node | None, name: str) -> Node:
    """The product of rows with packed weights."""
    points = packed.zero_points
    return GroupedMatMul(
        name=name,
        x=x,
        w=Constant(name=call.derive("codes"), value=np.ascontiguousarray(packed.codes)),
        scales=call.constant("scales", packed.scales),
        zero_points=None
        if points is None
        else Constant(name=call.derive("zero_points"), value=points),
        b=bias,
        bits=packed.bits,
    )


@importer(f"{MICROSOFT}.GatherBlockQuantized")
def gather_block_quantized(call: Call) -> Node:
    """Rows of a table [V, K] in blocks along K."""
    return looked_up_rows(call, _parse_table(call), call.tensor(1))


def packed_table(call: Call) -> PackedOperands | None:
    """The known table of a Gather of rows that are in blocks, as it is packed; None for others."""
    value = call.value(0)
    is_rows = call.integer("axis", 0) in (0, -2) and not call.is_known(1)
    if not isinstance(value, Blocked) or value.depth_axis != 1 or not is_rows:
        return None
    packed = value.packed
    return PackedOperands(
        packed.codes, packed.scales, packed.zero_points, packed.bits, value.shape[1]
    )


def looked_up_rows(call: Call, blocks: PackedOperands, indices: Node) -> Node:
    """Rows [..., K] of a table, as reals: codes, scales and zero points are looked up, then bytes
    become codes by powers of two, exactly, in float, which every runtime has."""
    count, groups = indices.type.size, blocks.scales.shape[1]

    def look_up(tag: str, array: Array, shape: tuple[int, ...]) -> Node:
        table = Constant(name=call.derive(tag), value=np.ascontiguousarray(array))
        rows = Gather(name=call.derive(f"{tag}-rows"), x=table, indices=indices, axis=0)
        return Reshape(name=call.derive(f"{tag}-blocks"), x=rows, shape=(count, groups, *shape))

    flat = blocks.codes.reshape(len(blocks.codes), -1)
    args: list[Node] = [
        look_up("codes", flat, (blocks.codes.shape[2], 1)),
        look_up("scales", blocks.scales, (1, 1)),
        call.constant("places", 0.5 ** np.arange(0, 8, blocks.bits)),
    ]
    point = const(2 ** (blocks.bits - 1))
    if blocks.whole_points is not None:
        point = fn("float", arg(len(args)))
        args.append(look_up("zero_points", blocks.whole_points, (1, 1)))
    shifted = fn("floor", fn("mul", fn("float", arg(0)), arg(2)))
    higher = fn("floor", fn("mul", shifted, const(0.5**blocks.bits)))
    code = fn("sub", shifted, fn("mul", higher, const(2**blocks.bits)))
    reals = Elementwise(
        name=call.derive("reals"),
        args=tuple(args),
        expression=fn("mul", fn("sub", code, point), arg(1)),
        out=ElementType(DType.F32),
    )
    whole = (count, groups * blocks.block)
    rows: Node = Reshape(name=call.derive("rows"), x=reals, shape=whole)
    if blocks.depth < whole[1]:
        sizes = (count, blocks.depth)
        rows = Slice(name=call.derive("cut"), x=rows, starts=(0, 0), sizes=sizes, steps=(1, 1))
    return Reshape(name=call.result, x=rows, shape=(*indices.type.shape, blocks.depth))


def _parse_table(call: Call) -> PackedOperands:
    """The table of a GatherBlockQuantized.  Raises ``Unsupported`` for other axes and types."""
    data, block = call.array(0, "data"), call.integer("block_size", 128)
    axes = (call.integer("gather_axis", 0), call.integer("quantize_axis", 1) % max(data.ndim, 1))
    if data.ndim != 2 or axes != (0, 1) or block < 16 or block & (block - 1):
        raise Unsupported(f"blocks of {block} along axis {axes[1]} of a table of rank {data.ndim}")
    bits, name = call.integer("bits", 4), data.dtype.name
    stored_points = call.array(3, "zero point") if call.has(3) else None
    scales = as_float32(call.array(2, "scale"))
    groups = scales.shape[1]
    if name == "uint8":
        if bits not in BITS:
            raise Unsupported(f"codes of {bits} bits")
        codes, points = unpack_codes(data, bits), stored_points
        if points is not None:
            points = unpack_codes(points, bits)[:, :groups]
    elif name in ("int4", "uint4"):
        least, bits = (-8 if name == "int4" else 0), 4
        codes = (data.astype(np.int8) - least).astype(np.uint8)
        points = np.zeros(scales.shape) if stored_points is None else stored_points.astype(np.int8)
        points = (points - least).astype(np.uint8)
    else:
        raise Unsupported(f"a table of {name}")
    depth = codes.shape[1]
    filled = np.pad(codes, ((0, 0), (0, groups * block - depth)))
    packed = pack_codes(filled.reshape(len(codes), groups, block), bits)
    return PackedOperands(packed, scales, points, bits, depth)
