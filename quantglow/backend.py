"""quantglow as an ``onnx.backend``: what ONNX's own tools and tests call.

::

    import quantglow.backend as backend

    prepared = backend.prepare(model)
    outputs = prepared.run([x])

Values have the types that the model declares: float16 is computed as float32 and rounded at the
end.  Models of float64 inputs or outputs are onnxruntime's, because callers expect its precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from quantglow.api.compile import compile as compile_model
from quantglow.api.models.fallback import fallback_model
from quantglow.importer.onnx import open_model
from quantglow.importer.onnx.reading.proto import infer
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.programs.build import thread_count
from quantglow.support.errors import UnsupportedOpError


@dataclass(frozen=True, eq=False)
class PreparedModel(BackendRep):
    """A compiled model that takes its inputs in order, in the types the model declares."""

    compiled: CompiledModel | FallbackModel

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for arrays in the order of the inputs, for one array, or by name."""
        return tuple(self.compiled.run(None, self._feeds(inputs)))

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        arrays = list(inputs) if isinstance(inputs, Sequence) else [inputs]
        names = [info.name for info in self.compiled.get_inputs()]
        return dict(zip(names, arrays, strict=False))


class QuantglowBackend(Backend):
    """The interface of ``onnx.backend``; keywords are those of ``quantglow.compile``."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Compile a model; what cannot be compiled runs in onnxruntime."""
        if not _is_wide(model):
            return PreparedModel(compile_model(model, **kwargs))
        source, threads = open_model(model), thread_count(kwargs.get("num_threads"))
        reason = UnsupportedOpError(["its inputs or outputs are float64"])
        return PreparedModel(fallback_model(source, reason, threads))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """``prepare`` and ``run``."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node; ``opset_version`` says of which opset it is (default: the newest)."""
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        results = cls.run_model(_wrap_node(node, inputs, opset), inputs, device, **kwargs)
        return namedtupledict("Outputs", list(node.output))(*results)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Processors only."""
        return device.split(":")[0] == "CPU"


def _is_wide(model: onnx.ModelProto) -> bool:
    ends = (*model.graph.input, *model.graph.output)
    return any(e.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for e in ends)


def _wrap_node(node: onnx.NodeProto, inputs: Sequence[Any], opset: int) -> onnx.ModelProto:
    """A model of one node for inputs like these."""
    arrays = dict(zip(filter(None, node.input), map(np.asarray, inputs), strict=True))
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", infos, results)
    opsets = [onnx.helper.make_opsetid(node.domain, opset)]
    version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=version)
    return infer(model, data_prop=True)


is_compatible = QuantglowBackend.is_compatible
prepare = QuantglowBackend.prepare
run_model = QuantglowBackend.run_model
run_node = QuantglowBackend.run_node
supports_device = QuantglowBackend.supports_device
