"""What integer operators cost, and what int16 adds, estimated from shapes alone.

Seconds on one core with AVX-512 VNNI, at the rates this package's kernels reach there: the choice
they lead to depends on the network only, not on the machine that quantizes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quantglow.graph.node import Constant, Node
from quantglow.ops import Conv, MatMul
from quantglow.ops.convolution import Contraction
from quantglow.quantization.functions import function_of
from quantglow.quantization.plan import Plan

DENSE_MACS = 500e9
DEPTHWISE_MACS = 170e9
RESULTS = 60e9
"""Sums finished: bias, multiplier, rounding, bounds, store."""
MOVED_BYTES = 100e9
INT16_FUNCTIONS = 4e9
"""Results of a function of one value that reads or gives int16; in int8 it costs next to nothing,
being a table in registers.  All rates are per second."""

FLOAT_TIMES = 4.0
"""Products in float32 take so much longer: an instruction has a quarter of the multiplications."""
FLOAT_NBYTES = 8
"""Moved for each element of a value more than in int8: 3 that it is wider, 5 for a conversion."""

DEPTHWISE_SHARE = 0.7
"""Of a depthwise convolution's time that int16 adds; other products take twice their time."""


def total_seconds(plan: Plan) -> float:
    """The whole plan with every stored integer in 8 bits."""
    total = 0.0
    for node in plan.graph.compute_nodes():
        itemsize = 1 if plan.is_int8(node) else 4
        values = [node, *(o for o in node.operands if not isinstance(o, Constant))]
        total += products_seconds(node) + itemsize * sum(v.type.size for v in values) / MOVED_BYTES
        total += node.type.size / RESULTS if isinstance(node, Contraction | MatMul) else 0.0
    return total


def products_seconds(node: Node) -> float:
    """The multiply-accumulates of an int8 operator."""
    if isinstance(node, MatMul):
        return node.type.size * node.x.type.shape[-1] / DENSE_MACS
    if not isinstance(node, Contraction):
        return 0.0
    macs = node.type.size * (node.w.type.size // max(node.w.type.shape[-1], 1))
    return macs / (DEPTHWISE_MACS if is_depthwise(node) else DENSE_MACS)


def is_depthwise(node: Node) -> bool:
    return isinstance(node, Conv) and node.depthwise


def int16_seconds(plan: Plan, stored: Iterable[Node]) -> float:
    """What it adds to store the values in 16 bits: a byte of every element written and read,
    more dot products in their readers, functions that have no small table."""
    added = 0.0
    for value in stored:
        readers = [r for r in plan.graph.users[value] if plan.is_int8(r)]
        functions = sum(function_of(node) is not None for node in (value, *readers))
        added += functions * value.type.size / INT16_FUNCTIONS
        added += value.type.size * (1 + len(readers)) / MOVED_BYTES
        for reader in readers:
            if value is reader.operands[0]:
                share = DEPTHWISE_SHARE if is_depthwise(reader) else 1.0
                added += share * products_seconds(reader)
    return added


def float_seconds(plan: Plan, node: Node) -> float:
    """What it adds to compute an int8 operator in float, between operators that stay int8."""
    values = [node, *(o for o in node.operands if not isinstance(o, Constant))]
    moved = FLOAT_NBYTES * sum(v.type.size for v in values if v in plan.elements)
    added = moved / MOVED_BYTES + (FLOAT_TIMES - 1) * products_seconds(node)
    return added + (node.type.size / INT16_FUNCTIONS if function_of(node) is not None else 0.0)
