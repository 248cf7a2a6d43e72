"""Fake quantization: a float graph run with the roundings of its plan, before there is an int8
graph.

Activations are rounded as int8 would.  Weights are rounded to nearest, or left alone where
accuracy recovery will round them against the data, with far smaller errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node, StoredConstant
from quantglow.interpreter.executor import Execution, State
from quantglow.interpreter.stacks import Evaluator, Stacks
from quantglow.ops.arithmetic import quant_of, rounded_reals
from quantglow.ops.contraction import Contraction
from quantglow.processes.interrupts import check_interrupt
from quantglow.profiling.data import Feeds
from quantglow.quantization.plan.int16 import is_stored
from quantglow.quantization.plan.params import quantize_weights
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.output_noise import compared_nodes
from quantglow.quantization.shape_variants import VariantEvaluator


class Rounded(NamedTuple):
    """A value of a fake-quantized run.  A float operator whose result is stored in integers gives
    two: its float readers see the real one.  Elsewhere both are the same array.
    """

    real: Stacks
    stored: Stacks

    @property
    def nbytes(self) -> int:
        return self.real.nbytes + (0 if self.stored is self.real else self.stored.nbytes)


def execution(
    plan: Plan,
    samples: Sequence[Feeds],
    weights: Mapping[Node, Array],
    start: State[Rounded] | None = None,
) -> Execution[Rounded]:
    """A run for some samples up to the ``compared_nodes``; ``weights`` stand in for Constants.

    Running it raises ``Interrupted`` after Ctrl-C.
    """
    evaluator = VariantEvaluator(plan.graph, samples, weights)
    evaluate = partial(_evaluated, plan, evaluator)
    return Execution(plan.graph, compared_nodes(plan.graph), evaluate, start, only=())


def _evaluated(
    plan: Plan, evaluator: Evaluator, node: Node, operands: Sequence[Rounded]
) -> Rounded:
    check_interrupt()
    is_int8 = plan.is_int8(node)
    given = [operand.stored if is_int8 else operand.real for operand in operands]
    value = evaluator.compute(node, given)
    element = plan.elements.get(node) if is_stored(plan, node) else None
    if isinstance(node, Constant) or element is None:
        return Rounded(value, value)
    stored = value.mapped(lambda array: rounded_reals(array, element))
    return Rounded(stored if is_int8 else value, stored)


def rounded_weights(plan: Plan) -> dict[Node, Array]:
    """The weights of int8 layers, rounded to nearest."""
    found: dict[Node, Array] = {}
    for node in plan.graph.nodes:
        if isinstance(node, Contraction) and plan.is_int8(node):
            w: Any = node.w
            if isinstance(w, StoredConstant):
                continue
            made = quantize_weights(w.value, None, quant_of(plan.elements[node.x]))
            found[w] = made.weights.astype(np.float32) * made.scales
    return found
