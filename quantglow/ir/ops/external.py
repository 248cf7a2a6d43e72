"""An ONNX operator that quantglow does not compile, as a node of the graph."""

from __future__ import annotations

from pkgutil import resolve_name

import numpy as np

from quantglow.ir.graph.node import Node, op
from quantglow.ir.symbolic.size import is_free
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.errors import FallbackError, WrongResultError

RUNTIME = "quantglow.ort.session:run_model"
"""Name of the function that computes the outputs of a model from its inputs.

It is a name because the layers above this one know the runtimes, and it is looked up when a node
is computed: a process without such nodes loads no runtime.  Nothing is registered before, so a node
computes the same in every thread and forked child, and in graphs that were copied or loaded.
"""


NO_MODEL = b""
"""The model of a node in a file that has it elsewhere: a graph with such a node is not run."""


def in_rank_of(kind: TensorType, array: Array) -> Array:
    """A result in the rank of its type, whose free sizes are 0 if it has no elements: onnxruntime
    does not know the rank of what a Loop without a trip stacks."""
    if array.ndim == kind.rank or array.size or not any(map(is_free, kind.shape)):
        return array
    return np.zeros([0 if is_free(size) else size for size in kind.shape], kind.dtype.numpy)


@op
class External(Node):
    """Output number ``output`` of an ONNX node that another runtime computes.

    ``model`` is a serialized ModelProto of that one node: its inputs are ``args`` in their order,
    its outputs those of the node that anything reads.  Outputs of one node are as many External
    nodes with the same ``args`` and ``model``.  ``result`` is what ONNX infers for the output,
    ``op_type`` what the node is called, ``reason`` why it is not compiled.

    Its operands and its result may be strings and opaque values: the model has their ONNX types.
    """

    takes_objects = True

    args: tuple[Node, ...]
    model: bytes
    output: int
    result: TensorType
    op_type: str
    reason: str

    def infer(self) -> TensorType:
        if self.output < 0:
            raise self.refuse(f"there is no output {self.output}")
        if self.result.quant is not None:
            raise self.refuse("a result of the fallback has no quantization")
        return self.result

    def reference(self, args: tuple[Array, ...]) -> Array:
        try:
            outputs: list[Array] = resolve_name(RUNTIME)(self.model, args)
        except FallbackError as error:
            raise FallbackError(f"node {self.name!r} ({self.op_type}): {error}") from error
        return self.checked(outputs[self.output])

    def checked(self, result: Array) -> Array:
        """A result in its rank.  Raises ``WrongResultError`` where the model states another
        type."""
        kind = self.type
        array = in_rank_of(kind, result)
        is_alike = array.dtype == kind.dtype.numpy and array.ndim == kind.rank
        sizes = zip(array.shape, kind.shape, strict=is_alike)
        is_alike = is_alike and all(is_free(stated) or size == stated for size, stated in sizes)
        if is_alike or kind.dtype is DType.OPAQUE:
            return array
        raise WrongResultError(
            f"node {self.name!r} ({self.op_type}) gave {array.dtype} of shape {array.shape}, and "
            f"the model states or ONNX infers {kind}. Remedy: correct the shapes that the model "
            "states."
        )
