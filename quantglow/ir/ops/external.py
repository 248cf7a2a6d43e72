"""An ONNX operator that quantglow does not compile, as a node of the graph."""

from __future__ import annotations

from collections.abc import Callable

from quantglow.ir.graph.node import Node, op
from quantglow.ir.types import TensorType
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError

Evaluator = Callable[["External", tuple[Array, ...]], Array]
"""Computes the result of an External node from its operands."""

_evaluators: list[Evaluator] = []


def evaluate_externals_by(evaluator: Evaluator) -> None:
    """Give External nodes their meaning: the layers above this one know the runtimes."""
    _evaluators[:] = [evaluator]


@op
class External(Node):
    """Output number ``output`` of an ONNX node that another runtime computes.

    ``model`` is a serialized ModelProto of that one node: its inputs are ``args`` in their order,
    its outputs those of the node that anything reads.  Outputs of one node are as many External
    nodes with the same ``args`` and ``model``.  ``result`` is what ONNX infers for the output,
    ``op_type`` what the node is called, ``reason`` why it is not compiled.
    """

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
        if not _evaluators:
            raise BackendError(f"nothing computes {self!r}. Remedy: import quantglow.ort.fallback.")
        return _evaluators[0](self, args)
