"""What integer operators cost, and what int16 adds, estimated from shapes alone.

Seconds on one core of an Ice Lake Xeon (AVX-512 VNNI), fitted to the times of every kernel call of
MobileNetV2, EfficientNet-Lite0, ResNet-50, PP-OCR and MNIST, all in int8 and all in int16.  They
are constants, not measured where they are used: the choice that they lead to depends on the network
only, not on the machine that quantizes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quantglow.graph.node import Constant, Node
from quantglow.ops import Conv, LogSoftmax, MatMul, Softmax
from quantglow.ops.contraction import Contraction
from quantglow.ops.unary import Unary
from quantglow.ops.work import macs_of
from quantglow.quantization.convert.rules import EXACT_IN_FLOAT
from quantglow.quantization.plan.functions import function_of
from quantglow.quantization.plan.plan import Plan

DENSE_MACS = 230e9
DEPTHWISE_MACS = 100e9
RESULTS = 12.5e9
"""Sums finished: bias, multiplier, rounding, bounds, store."""
MOVED_BYTES = 40e9
WEIGHT_BYTES = 15e9
"""All weights of a network seldom stay in the second-level cache between two runs."""
FUNCTIONS = (LogSoftmax, Softmax, Unary)
FLOAT_FUNCTIONS = 1e9
"""Results of those that float computes.  All rates are per second."""

INT16_DENSE_MACS = 230e9
INT16_DEPTHWISE_MACS = 85e9
"""What a product takes longer with an int16 input is its multiply-accumulates over this: an
instruction has half the multiplications of one for bytes."""
INT16_FUNCTIONS = 4e9
INT16_TABLES = 1.6e9
"""Results of a function of one value that reads int16, computed in float or looked up in a table of
65,536; or that gives int16.  In int8 it costs next to nothing, being a table in registers."""

FUSED_FUNCTIONS = 30e9
"""Results of a cheap function computed on float32 sums, beyond what its table takes in int8."""

FLOAT_TIMES = 4.0
"""Products in float32 take so much longer: an instruction has a quarter of the multiplications."""
FLOAT_NBYTES = 8
"""Moved for each element of a value more than in int8: 3 that it is wider, 5 for a conversion."""


def total_seconds(plan: Plan) -> float:
    """The whole plan with every stored integer in 8 bits."""
    return sum(_seconds(plan, node) for node in plan.graph.compute_nodes())


def _seconds(plan: Plan, node: Node) -> float:
    itemsize = 1 if plan.is_int8(node) else 4
    moved = sum(o.type.size for o in node.operands if not isinstance(o, Constant))
    if isinstance(node, Contraction | MatMul):
        finished = node.type.size / RESULTS
        return products_seconds(node) + finished + itemsize * moved / MOVED_BYTES
    seconds = itemsize * (moved + node.type.size) / MOVED_BYTES
    if not plan.is_int8(node) and isinstance(node, FUNCTIONS):
        seconds += node.type.size / FLOAT_FUNCTIONS
    return seconds


def products_seconds(node: Node) -> float:
    """The multiply-accumulates of an int8 operator, and its weights."""
    weights = node.w.type.size if isinstance(node, Contraction) else 0
    rate = DEPTHWISE_MACS if is_depthwise(node) else DENSE_MACS
    return macs_of(node) / rate + weights / WEIGHT_BYTES


def is_depthwise(node: Node) -> bool:
    return isinstance(node, Conv) and node.depthwise


def int16_seconds(plan: Plan, stored: Iterable[Node]) -> float:
    """What it adds to store the values in 16 bits: a byte of every element written and read, more
    dot products and wider weights in their readers, functions that have no small table."""
    added = 0.0
    for value in stored:
        readers = [r for r in plan.graph.users[value] if plan.is_int8(r)]
        added += value.type.size * (1 + len(readers)) / MOVED_BYTES
        if function_of(value) is not None:
            added += value.type.size / INT16_FUNCTIONS
        added += sum(_reading_seconds(value, reader) for reader in readers)
    return added


def _reading_seconds(value: Node, reader: Node) -> float:
    """What it adds to an operator that it reads int16, beside the bytes of the value."""
    if function_of(reader) is not None:
        exact = isinstance(reader, EXACT_IN_FLOAT)
        return value.type.size / (INT16_FUNCTIONS if exact else INT16_TABLES)
    if value is not reader.operands[0]:
        return 0.0
    weights = reader.w.type.size if isinstance(reader, Contraction) else 0
    rate = INT16_DEPTHWISE_MACS if is_depthwise(reader) else INT16_DENSE_MACS
    return macs_of(reader) / rate + weights / WEIGHT_BYTES


def fused_function_seconds(layer: Node) -> float:
    """What it adds that an int8 layer applies a cheap function to its sums."""
    return layer.type.size / FUSED_FUNCTIONS


def float_seconds(plan: Plan, node: Node) -> float:
    """What it adds to compute an int8 operator in float, between operators that stay int8."""
    values = [node, *(o for o in node.operands if not isinstance(o, Constant))]
    moved = FLOAT_NBYTES * sum(v.type.size for v in values if v in plan.elements)
    added = moved / MOVED_BYTES + (FLOAT_TIMES - 1) * products_seconds(node)
    return added + (node.type.size / INT16_FUNCTIONS if function_of(node) is not None else 0.0)
