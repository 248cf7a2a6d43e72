"""The error of a network's outputs, and the values by which outputs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.ops import LogSoftmax, Reshape, Sigmoid, Softmax
from quantglow.ops.contraction import Contraction
from quantglow.quantization.plan.choices import behind_views, scores_of

TINY = 1e-30
MIN_VALUES = 64
"""Minimum number of values of an output that is compared itself, not by its operands."""


class Comparison(NamedTuple):
    """A node by which an output is compared, and whether a constant added to all values of a row
    makes no difference there, as before a Softmax.
    """

    node: Node
    any_shift: bool


def logit_outputs(graph: Graph) -> tuple[Node, ...]:
    """The outputs, a probability replaced by its logit: 0 and 1 hide the errors before them; a
    choice by the scores that it is made among.
    """
    return tuple(_logits(node) for _, node in graph.outputs)


def _logits(node: Node) -> Node:
    source = behind_views(node)
    if (scores := scores_of(source)) is not None:
        return _logits(scores)
    return _logits(source.x) if isinstance(source, Softmax | LogSoftmax | Sigmoid) else node


def compared_nodes(graph: Graph) -> tuple[Node, ...]:
    """The node by which each output is compared, see ``comparisons``."""
    return tuple(comparison.node for comparison in comparisons(graph))


def comparisons(graph: Graph) -> tuple[Comparison, ...]:
    """How each output is compared.

    A probability is compared by its logit: where it is 0 or 1 it hides noise, and the one sample
    that is least sure would decide.  A choice (TopK) is compared by its scores.  A few numbers are
    compared by the features they are computed from, since their noise is mostly chance.
    """
    return tuple(_comparison(node) for _, node in graph.outputs)


def _comparison(node: Node) -> Comparison:
    any_shift = False
    while node.operands:
        source = behind_views(node)
        if (scores := scores_of(source)) is not None:
            node, any_shift = scores, False
        elif isinstance(source, Softmax | LogSoftmax | Sigmoid):
            node, any_shift = source.x, not isinstance(source, Sigmoid)
        elif node.type.size < MIN_VALUES and isinstance(node, Contraction | Reshape):
            node, any_shift = node.operands[0], False
        else:
            break
    return Comparison(node, any_shift)


def noise_to_signal(
    graph: Graph, found: Sequence[Sequence[Array]], wanted: Sequence[Sequence[Array]]
) -> float:
    """Noise over signal of the worst output, over all samples.

    ``found`` and ``wanted`` [samples][outputs] are values of the ``compared_nodes``.
    """
    noise, signal = np.zeros(len(graph.outputs)), np.full(len(graph.outputs), TINY)
    any_shift = [comparison.any_shift for comparison in comparisons(graph)]
    for results, right in zip(found, wanted, strict=True):
        for index, (got, exact) in enumerate(zip(results, right, strict=True)):
            noise[index] += energy(error_of(got, exact), any_shift[index])
            signal[index] += power(exact, any_shift[index])
    return float((noise / signal).max(initial=0.0))


def error_of(found: Array, exact: Array) -> Array:
    """``found - exact`` in float64; NaN where both have the same infinity, or none is a number, and
    inf where one has.
    """
    with np.errstate(invalid="ignore"):
        error = np.asarray(np.subtract(found, exact, dtype=np.float64))
    odd = ~np.isfinite(error)
    if not odd.any():
        return error
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.where(odd, np.where(same, np.nan, np.inf), error)


def power(exact: Array, any_shift: bool) -> float:
    """The ``energy`` of finite values."""
    values = exact.astype(np.float64)
    return energy(np.where(np.isfinite(values), values, np.nan), any_shift)


def energy(values: Array, any_shift: bool) -> float:
    """Sum of squares, with ``any_shift`` of the distances from the mean of each row.  NaN are left
    out.
    """
    known = ~np.isnan(values)
    if not known.all():
        values = np.where(known, values, 0.0)
    apart = values
    if any_shift and values.size and not np.isinf(values).any():
        counts = np.maximum(known.sum(axis=-1, keepdims=True), 1)
        apart = np.where(known, values - values.sum(axis=-1, keepdims=True) / counts, 0.0)
    return float(np.square(apart).sum())
