"""``import_model``: a model becomes a graph."""

from __future__ import annotations

from typing import Any

from quantglow.api.models.families import (
    InputValues,
    float_graph,
    is_quantized,
    with_steps,
)
from quantglow.api.options import InputShapes
from quantglow.importer import model_as_onnx
from quantglow.importer import onnx as importer
from quantglow.ir.graph.graph import Graph
from quantglow.quantization.qdq import fuse_quantized
from quantglow.support.arguments import (
    elements,
    flag,
    options_named,
    shapes,
)


@options_named()
def import_model(
    model: Any,
    input_shapes: InputShapes | None = None,
    *,
    fallback: bool = True,
    input_values: InputValues | None = None,
    samples: Any = None,
    before: Any = None,
    after: Any = None,
) -> Graph:
    """The graph of an ONNX model (path, bytes or ModelProto), see ``importer.onnx``.

    Float; of a model that comes quantized, the int8 graph, see ``quantization.qdq``.
    ``fallback``: operators that quantglow does not compile become ``External`` nodes, which
    onnxruntime computes; without it they are an ``UnsupportedOpError``.
    ``input_values``: elements of small integer inputs that decide shapes or branches; a graph is
    for one choice of them.  Where they are missed, that is an ``UndecidedError``.
    ``samples``: those on whose first one a ``torch.nn.Module`` is exported.
    ``before``, ``after``: steps that become part of the graph, see ``compile``.
    """
    graph = importer.import_model(
        with_steps(model_as_onnx(model, samples), before, after),
        shapes("input_shapes", input_shapes),
        fallback=flag("fallback", fallback),
        input_values=elements("input_values", input_values),
    )
    return fuse_quantized(graph) if is_quantized(graph) else graph


def open_float_graph(model: Any) -> Graph:
    """The optimized float graph of a model, or of a graph; a model's stored weights stay."""
    is_graph = isinstance(model, Graph)
    graph = model if is_graph else importer.import_model(model_as_onnx(model, None), fallback=True)
    return float_graph(graph)
