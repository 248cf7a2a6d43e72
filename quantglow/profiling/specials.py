"""Infinities and NaN of the model itself, and the values that may include them.

A mask hides attention scores by -inf, and a maximum pads with it: a Constant or a Pad holds the
number, sums and selections pass it on, and a Softmax or a maximum turns it into finite numbers.
NaN marks results that do not exist: a selection between it and a number leads to an output.

Infinities that no operand contains come from the data (an overflow, a logarithm of 0, a quotient),
and so does NaN that is more than moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np

from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Elementwise, Pad
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.unary import Unary
from quantglow.support.arrays import Array

Specials = frozenset[float]
"""The special numbers that a value includes: -inf, inf, and the object ``math.nan``."""

NONE: Specials = frozenset()
BOTH: Specials = frozenset((-math.inf, math.inf))
ABSENT: Specials = frozenset((math.nan,))

FINITE = (-1.0, 1.0)
"""Representatives of all finite values."""


def shows_specials(node: Node) -> bool:
    """Whether each result depends on few values, so that one special value shows."""
    return node.has(Trait.ELEMENTWISE) or node.has(Trait.PASSES_SPECIALS)


def describe_specials(specials: Specials) -> str:
    """The special values as a text for messages: ``-inf``, or ``-inf and inf``."""
    return " and ".join(sorted("NaN" if math.isnan(s) else str(s) for s in specials))


def brought(node: Node) -> Specials:
    """The special values that a node contains without its operands."""
    if isinstance(node, Constant):
        is_finite = not node.type.dtype.is_float or all(map(math.isfinite, node.extremes))
        return NONE if is_finite else _specials_in(node.value)
    if isinstance(node, Pad):
        return _specials_in(np.float64(node.value))
    if isinstance(node, Elementwise):
        numbers = [part.value for part in node.expression.parts() if part.op == "f"]
        return _specials_in(np.array(numbers, np.float64))
    return NONE


def _specials_in(values: Array | np.floating) -> Specials:
    """The special values among numbers."""
    masks = {-math.inf: values == -math.inf, math.inf: values == math.inf}
    masks[math.nan] = np.isnan(values)
    return frozenset(special for special, places in masks.items() if places.any())


def node_specials(node: Node, of: Callable[[Node], Specials]) -> Specials:
    """The special values that the value of a node may include.

    ``of`` gives those of its operands; finite numbers are assumed not to overflow, and infinities
    not to make NaN.
    """
    if not node.type.dtype.is_float:
        return NONE
    operands = [of(o) for o in node.operands if o.type.dtype.is_float]
    carried = NONE.union(*operands)
    if node.has(Trait.PASSES_SPECIALS) or not carried:
        return carried | brought(node)
    if isinstance(node, (Unary, Binary)):
        return _images(node, operands) | carried & ABSENT
    return (BOTH if carried & BOTH else brought(node)) | carried & ABSENT


def _images(node: Unary | Binary, operands: list[Specials]) -> Specials:
    """The infinite results of a function of infinite and finite values."""
    pairs = zip(node.operands, operands, strict=True)
    values = [(*_finite(operand), *sorted(some & BOTH)) for operand, some in pairs]
    rows = [row for row in product(*values) if not all(map(math.isfinite, row))]
    if not rows:
        return NONE
    with np.errstate(all="ignore"):
        results = node.function(*np.array(rows, np.float32).T)
    if isinstance(node, Binary):
        results = np.clip(results, node.low, node.high)
    return _specials_in(np.asarray(results)) & BOTH


def _finite(operand: Node) -> tuple[float, ...]:
    """Representatives of the finite numbers of an operand."""
    if not isinstance(operand, Constant):
        return FINITE
    if all(map(math.isfinite, operand.extremes)):
        return operand.extremes
    value = operand.value[np.isfinite(operand.value)]
    return (float(value.min()), float(value.max())) if value.size else ()
