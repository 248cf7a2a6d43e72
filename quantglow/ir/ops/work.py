"""Work of operators, estimated from types, and the rates of the reference processor.

The rates stand behind every decision about an int8 graph: seconds on one core of an Ice Lake Xeon
(AVX-512 VNNI), fitted to the times of every kernel call of MobileNetV2, EfficientNet-Lite0,
ResNet-50, PP-OCR and MNIST, all in int8 and all in int16.  They are constants, never measured and
never a target's: a graph that is quantized on another machine, or for one, is the same graph with
the same integers.  A target's own costs choose tiles, forms and order only
(``codegen.llvm.isa.costs``).  All rates are per second.
"""

from __future__ import annotations

import math

from quantglow.ir.graph.node import Node
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import ConvTranspose, MatMul
from quantglow.ir.ops.groupwise import GroupedMatMul
from quantglow.ir.symbolic.size import Dim, decide_max, likely

ELEMENT_WORK = 20
"""Multiply-accumulates of a matrix product in the time in which NumPy moves one element."""

DENSE_MACS = 230e9
DEPTHWISE_MACS = 100e9
"""int8 multiply-accumulates."""

RESULTS = 12.5e9
"""Sums finished: bias, multiplier, rounding, bounds, store."""

MOVED_BYTES = 40e9
WEIGHT_BYTES = 15e9
"""All weights of a network seldom stay in the second-level cache between two runs."""

FLOAT_FUNCTIONS = 1e9
"""Results of functions that are computed in float."""

INT16_DENSE_MACS = 230e9
INT16_DEPTHWISE_MACS = 85e9
"""Multiply-accumulates over these rates are the time that an int16 input adds: an instruction has
half the multiplications of one for bytes."""

INT16_FUNCTIONS = 4e9
INT16_TABLES = 1.6e9
"""Results of a function of one value that reads int16, computed in float or looked up in a table of
65,536; or that gives int16.  In int8 it costs next to nothing, being a table in registers."""

FUSED_FUNCTIONS = 30e9
"""Results of a cheap function computed on float32 sums, beyond the cost of its table in int8."""

FEWEST_PRODUCTS = 600
"""Products of a result, below which an operator that may become int8 keeps its function apart.

In int8 the alternative is a table of 256 bytes.  An instruction takes four products of 16 results,
two a cycle: K products take K / 8 cycles.  HardSwish in float takes 1.5 cycles longer for 16
results than the table (1x1 of 480 to 480 channels): with 600 products 2 % of all.
"""

FLOAT_TIMES = 4.0
"""Ratio of the time of products in float32 to int8: an instruction has a quarter of the
multiplications."""

FLOAT_NBYTES = 8
"""Bytes moved for each element of a value in float more than in int8: 3 that it is wider, 5 for a
conversion."""


def count_macs(node: Node) -> Dim:
    """Multiply-accumulates of products; 0 for other operators."""
    if isinstance(node, MatMul):
        return node.type.size * node.x.type.shape[-1]
    if isinstance(node, GroupedMatMul):
        return node.type.size * node.depth
    if not isinstance(node, Contraction):
        return 0
    if isinstance(node, ConvTranspose):
        return node.x.type.size * (node.w.type.size // decide_max(node.x.type.shape[-1], 1))
    return node.type.size * (node.w.type.size // max(node.w.type.fixed_shape[-1], 1))


def reference_seconds(node: Node) -> float:
    """Modelled time of an operator on the reference processor: products and moved bytes."""
    operands = sum(operand.type.nbytes for operand in node.operands)
    is_float = bool(node.operands) and node.operands[0].type.dtype.is_float
    macs = likely(count_macs(node)) * (FLOAT_TIMES if is_float else 1.0)
    return macs / DENSE_MACS + likely(node.type.nbytes + operands) / MOVED_BYTES


def count_evaluated_macs(node: Node) -> Dim:
    """``count_macs``, and those with the zeros that ``ConvTranspose.evaluate`` spreads x with."""
    return count_macs(node) * math.prod(node.strides if isinstance(node, ConvTranspose) else ())


def count_work(node: Node) -> Dim:
    """Time of ``Node.evaluate``, in multiply-accumulates of a matrix product."""
    taps = math.prod(getattr(node, "kernel", ()))
    moved = node.type.size * taps + sum(operand.type.size for operand in node.operands)
    return count_evaluated_macs(node) + ELEMENT_WORK * moved
