"""Models and graphs as families of graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantglow import frontend, passes, steps
from quantglow.errors import OptionError
from quantglow.frontend import Source
from quantglow.graph.case import Case
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.quantization.qdq import fuse_quantized
from quantglow.quantization.qdq.stored_weights import (
    has_quantized_weights_only,
    with_stored_weights,
)

InputShapes = Mapping[str, Sequence[int]]
"""Input name -> shape, for models that leave dimensions free."""

InputValues = Mapping[str, int | Sequence[int]]
"""Input name -> its elements, for inputs that decide what a model computes."""


def with_steps(model: Any, before: Any, after: Any) -> Any:
    """A model with the steps of ``quantglow.steps``; the same object if there are none.

    Raises ``OptionError`` for steps that do not fit, and for a graph with steps.
    """
    at_inputs = steps.checked("before", before, steps.Before)
    at_outputs = steps.checked("after", after, steps.After)
    if not at_inputs and not at_outputs:
        return model
    if isinstance(model, Graph):
        raise OptionError(
            "before and after are for ONNX models, and a graph has its steps already. "
            "Remedy: pass them to import_model."
        )
    return frontend.with_steps(model, at_inputs, at_outputs)


def opened(model: Any) -> Source:
    """The source of a path, bytes or ModelProto, which may be changed afterwards."""
    return settled(frontend.open_model(model), model)


def settled(source: Source, model: Any) -> Source:
    """The source of ``model``, a copy where the caller could change it while it is in use."""
    is_shared = not isinstance(model, str | os.PathLike | bytes)
    return source.snapshot() if is_shared else source


def family_of(model: Source | Graph, input_shapes: InputShapes | None = None) -> Family:
    """The graphs to compile of a model or of a graph.

    With ``input_shapes``, or for a model that leaves nothing free, that is one graph, but where
    values of inputs decide what is computed.
    """
    if isinstance(model, Graph):
        return Family.of(model if is_quantized(model) else passes.optimize(model))
    return _family(model, input_shapes, ready)


def float_family_of(model: Any, input_shapes: InputShapes | None = None) -> Family:
    """The optimized float graphs of a path, bytes or ModelProto, or of a graph.

    Raises ``OptionError`` for what is quantized already.
    """
    if isinstance(model, Graph):
        return Family.of(float_graph(model))
    return float_family(opened(model), input_shapes)


def float_family(source: Source, input_shapes: InputShapes | None = None) -> Family:
    """The optimized float graphs of a model."""
    return _family(source, input_shapes, float_graph)


def _family(
    source: Source, input_shapes: InputShapes | None, finish: Callable[[Graph], Graph]
) -> Family:
    def make(case: Case) -> Graph:
        return finish(source.at(case))

    notes = source.conversions
    family = Family(source.signature, source.source_hash, make, source, notes=notes)
    if input_shapes or not source.signature.is_free:
        family.signature = source.fixed_signature(input_shapes)
        graph = family.default
        return family if graph is None else replace(Family.of(graph), notes=notes)
    return family


def ready(graph: Graph) -> Graph:
    """An imported graph as it is compiled: optimized, int8 where the model comes quantized."""
    return fuse_quantized(graph) if is_quantized(graph) else passes.optimize(graph)


def float_graph(graph: Graph) -> Graph:
    """The optimized graph; weights that the model has as integers are stored.  Raises
    ``OptionError`` for one whose activations are quantized."""
    if not is_quantized(graph):
        return passes.optimize(graph)
    if has_quantized_weights_only(graph):
        return with_stored_weights(graph)
    raise OptionError(
        "the model is quantized already. Remedy: compile it as it is, or pass the float model."
    )


def is_quantized(graph: Graph) -> bool:
    """Whether any value is an integer standing for a real number."""
    return any(node.type.quant is not None for node in graph.nodes)
