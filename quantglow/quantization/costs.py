"""Estimated time of integer operators, and of int16 and float in their place, from shapes alone.

The rates are those of the reference processor, so that the choices they lead to depend on the
network only, not on the machine that quantizes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quantglow.graph.node import Constant, Node
from quantglow.graph.traits import Trait
from quantglow.ops import Conv, MatMul
from quantglow.ops.contraction import Contraction
from quantglow.ops.reference_costs import (
    DENSE_MACS,
    DEPTHWISE_MACS,
    FLOAT_FUNCTIONS,
    FLOAT_NBYTES,
    FLOAT_TIMES,
    FUSED_FUNCTIONS,
    INT16_DENSE_MACS,
    INT16_DEPTHWISE_MACS,
    INT16_FUNCTIONS,
    INT16_TABLES,
    MOVED_BYTES,
    RESULTS,
    WEIGHT_BYTES,
)
from quantglow.ops.work import macs_of
from quantglow.quantization.plan.functions import function_of
from quantglow.quantization.plan.plan import Plan


def total_seconds(plan: Plan) -> float:
    """Time of the whole plan with every stored integer in 8 bits."""
    return sum(_seconds(plan, node) for node in plan.graph.compute_nodes())


def _seconds(plan: Plan, node: Node) -> float:
    itemsize = 1 if plan.is_int8(node) else 4
    moved = sum(o.type.size for o in node.operands if not isinstance(o, Constant))
    if isinstance(node, Contraction | MatMul):
        finished = node.type.size / RESULTS
        return products_seconds(node) + finished + itemsize * moved / MOVED_BYTES
    seconds = itemsize * (moved + node.type.size) / MOVED_BYTES
    if not plan.is_int8(node) and node.has(Trait.FUNCTION):
        seconds += node.type.size / FLOAT_FUNCTIONS
    return seconds


def products_seconds(node: Node) -> float:
    """Time of the multiply-accumulates of an int8 operator, and of reading its weights."""
    weights = node.w.type.size if isinstance(node, Contraction) else 0
    rate = DEPTHWISE_MACS if is_depthwise(node) else DENSE_MACS
    return macs_of(node) / rate + weights / WEIGHT_BYTES


def is_depthwise(node: Node) -> bool:
    return isinstance(node, Conv) and node.depthwise


def int16_seconds(plan: Plan, stored: Iterable[Node]) -> float:
    """Extra time for storing the values in 16 bits: a byte of every element written and read, more
    dot products and wider weights in their readers, functions without a small table.
    """
    added = 0.0
    for value in stored:
        readers = [r for r in plan.graph.users[value] if plan.is_int8(r)]
        added += value.type.size * (1 + len(readers)) / MOVED_BYTES
        if function_of(value) is not None:
            added += value.type.size / INT16_FUNCTIONS
        added += sum(_reading_seconds(value, reader) for reader in readers)
    return added


def _reading_seconds(value: Node, reader: Node) -> float:
    """Extra time of an operator that reads int16, beside the bytes of the value."""
    if function_of(reader) is not None:
        exact = reader.has(Trait.EXACT_STEPS)
        return value.type.size / (INT16_FUNCTIONS if exact else INT16_TABLES)
    if value is not reader.operands[0]:
        return 0.0
    weights = reader.w.type.size if isinstance(reader, Contraction) else 0
    rate = INT16_DEPTHWISE_MACS if is_depthwise(reader) else INT16_DENSE_MACS
    return macs_of(reader) / rate + weights / WEIGHT_BYTES


def fused_function_seconds(layer: Node) -> float:
    """Extra time of an int8 layer that applies a cheap function to its sums."""
    return layer.type.size / FUSED_FUNCTIONS


def float_seconds(plan: Plan, node: Node) -> float:
    """Extra time for computing an int8 operator in float, between operators that stay int8."""
    values = [node, *(o for o in node.operands if not isinstance(o, Constant))]
    moved = FLOAT_NBYTES * sum(v.type.size for v in values if v in plan.elements)
    added = moved / MOVED_BYTES + (FLOAT_TIMES - 1) * products_seconds(node)
    return added + (node.type.size / INT16_FUNCTIONS if function_of(node) is not None else 0.0)
