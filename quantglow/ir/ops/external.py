"""An ONNX operator that quantglow does not compile, as a node of the graph."""

from __future__ import annotations

from pkgutil import resolve_name

from quantglow.ir.graph.node import Node, op
from quantglow.ir.types import TensorType
from quantglow.support.arrays import Array

RUNTIME = "quantglow.ort.session:run_model"
"""Name of the function that computes the outputs of a model from its inputs.

It is a name because the layers above this one know the runtimes, and it is looked up when a node
is computed: a process without such nodes loads no runtime.  Nothing is registered before, so a node
computes the same in every thread and forked child, and in graphs that were copied or loaded.
"""


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
        outputs: list[Array] = resolve_name(RUNTIME)(self.model, args)
        return outputs[self.output]
