"""``import_model``: a model becomes a graph."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from quantglow.api.models.families import InputValues, float_graph, is_quantized, with_steps
from quantglow.api.options import InputShapes, ModelOptions, OneModel
from quantglow.importer import model_as_onnx
from quantglow.importer import onnx as importer
from quantglow.ir.graph.graph import Graph
from quantglow.quantization.qdq import fuse_quantized
from quantglow.support.arguments import elements
from quantglow.support.options import SWITCH, OptionKind, option, same_option, takes_options

VALUES = OptionKind(elements, None)


@dataclass(frozen=True, repr=False)
class ImportArguments(ModelOptions, OneModel):
    """The arguments of ``import_model``."""

    input_shapes: InputShapes | None = same_option(ModelOptions, "input_shapes")
    _: KW_ONLY
    fallback: bool = option(
        True,
        SWITCH,
        "operators that quantglow does not compile become ``External`` nodes, which onnxruntime "
        "computes; without it they are an ``UnsupportedOpError``",
    )
    input_values: InputValues | None = option(
        None,
        VALUES,
        "elements of small integer inputs that decide shapes or branches, by name; a graph is for "
        "one choice of them.  Where they are missing, that is an ``UndecidedError``",
    )


@takes_options(ImportArguments)
def import_model(options: ImportArguments) -> Graph:
    """The graph of an ONNX model, see ``importer.onnx``.

    Float; of a model that comes quantized, the int8 graph, see ``quantization.qdq``.
    """
    model = model_as_onnx(options.model, options.samples)
    graph = importer.import_model(
        with_steps(model, options.before, options.after),
        options.input_shapes,
        fallback=options.fallback,
        input_values=options.input_values,
    )
    return fuse_quantized(graph) if is_quantized(graph) else graph


def open_float_graph(model: Any) -> Graph:
    """The optimized float graph of a model, or of a graph; a model's stored weights stay."""
    is_graph = isinstance(model, Graph)
    graph = model if is_graph else importer.import_model(model_as_onnx(model, None), fallback=True)
    return float_graph(graph)
