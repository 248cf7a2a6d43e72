"""Steps from an output of the model to the results that the caller gets, as standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import numpy as np
import onnx

from quantglow import steps
from quantglow.frontend.steps.chain import FLOATS, Chain, fresh, kind_of

AXIS_OPSET = 13
"""Opset since which Softmax is along one axis; before, along it and all that come after it."""

K_OPSET = 10
"""Opset since which ``k`` of TopK is an operand."""

INDICES = "indices"
INT64 = onnx.TensorProto.INT64


LAST = (steps.TopK, steps.ArgMax)
"""Steps that no other comes behind."""

OF_FLOATS = (steps.Softmax, steps.Sigmoid)


def following(
    chain: Chain, value: onnx.ValueInfoProto, own: Sequence[steps.After]
) -> list[onnx.ValueInfoProto]:
    """The nodes behind an output, whose declaration becomes that of the result; the outputs that
    come with it.
    """
    kind, results = kind_of(value), [value.name]
    for index, step in enumerate(own):
        check(step, own[:index], kind, chain)
        write_after(step, chain)
        if isinstance(step, steps.TopK):
            results.append(fresh(f"{value.name}_{INDICES}", chain.taken))
        kind = INT64 if isinstance(step, steps.ArgMax) else kind
    chain.end_as(*results)
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, chain.dims))
    return [onnx.helper.make_tensor_value_info(name, INT64, chain.dims) for name in results[1:]]


def check(step: steps.After, earlier: Sequence[steps.After], kind: int, chain: Chain) -> None:
    """Raise ``OptionError`` for a step that cannot come here."""
    name = type(step).__name__
    if any(isinstance(other, LAST) for other in earlier):
        raise chain.refuse(name, "no step comes behind TopK and ArgMax")
    if isinstance(step, OF_FLOATS) and kind not in FLOATS:
        raise chain.refuse(name, "the model gives integers there")


@singledispatch
def write_after(step: steps.After, chain: Chain) -> None:
    """Add the nodes of a step."""
    raise TypeError(f"no rule for {type(step).__name__}")


@write_after.register
def _(step: steps.Softmax, chain: Chain) -> None:
    axis = chain.positive_axis("Softmax", step.axis)
    if axis != len(chain.known_dims("Softmax")) - 1:
        chain.need_opset("Softmax", AXIS_OPSET)
    chain.add("Softmax", axis=axis)


@write_after.register
def _(step: steps.Sigmoid, chain: Chain) -> None:
    chain.add("Sigmoid")


@write_after.register
def _(step: steps.Layout, chain: Chain) -> None:
    chain.permute("Layout", step.inside, step.outside)


@write_after.register
def _(step: steps.ArgMax, chain: Chain) -> None:
    axis = chain.positive_axis("ArgMax", step.axis)
    chain.add("ArgMax", axis=axis, keepdims=int(step.keepdims))
    kept = chain.with_dim(axis, 1)
    chain.dims = kept if step.keepdims else (*kept[:axis], *kept[axis + 1 :])


@write_after.register
def _(step: steps.TopK, chain: Chain) -> None:
    chain.need_opset("TopK", K_OPSET)
    axis = chain.positive_axis("TopK", step.axis)
    size = chain.known_dims("TopK")[axis]
    if isinstance(size, int) and step.k > size:
        raise chain.refuse("TopK", f"axis {axis} has {size} values, k is {step.k}")
    k = chain.constant("k", np.array([step.k], np.int64))
    values, indices = chain.fresh("TopK"), chain.fresh(INDICES)
    node = onnx.helper.make_node("TopK", [chain.value, k], [values, indices], values, axis=axis)
    chain.nodes.append(node)
    chain.value, chain.dims = values, chain.with_dim(axis, step.k)
