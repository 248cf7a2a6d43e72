"""Models and graphs as families of graphs, and what is compiled of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantglow import frontend, passes, quantization
from quantglow.errors import FileFormatError, OptionError
from quantglow.frontend import Source
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Shapes
from quantglow.quantization import Decisions, decision_text
from quantglow.runtime.build import Machine
from quantglow.runtime.saving import Freedom, SavedModel
from quantglow.runtime.specialisations import (
    FreeShapes,
    OneShape,
    Specialisation,
    Specialisations,
)

InputShapes = Mapping[str, Sequence[int]]
"""Input name -> shape, for models that leave dimensions free."""


def opened(model: Any) -> Source:
    """The source of a path, bytes or ModelProto, which may be changed afterwards."""
    return settled(frontend.open_model(model), model)


def settled(source: Source, model: Any) -> Source:
    """The source of ``model``, a copy where the caller could change it while it is in use."""
    is_shared = not isinstance(model, str | os.PathLike | bytes)
    return source.snapshot() if is_shared and source.signature.is_free else source


def family_of(model: Source | Graph, input_shapes: InputShapes | None = None) -> Family:
    """The graphs to compile of a model or of a graph.

    With ``input_shapes``, or for a model that leaves nothing free, that is one graph.
    """
    if isinstance(model, Graph):
        return Family.of(model if is_quantized(model) else passes.optimize(model))
    return _family(model, input_shapes, ready)


def float_family_of(model: Any, input_shapes: InputShapes | None = None) -> Family:
    """The optimized float graphs of a path, bytes or ModelProto, or of a graph.

    Raises ``OptionError`` for what is quantized already.
    """
    if isinstance(model, Graph):
        return Family.of(passes.optimize(float_only(model)))
    return _float_family(opened(model), input_shapes)


def _float_family(source: Source, input_shapes: InputShapes | None) -> Family:
    return _family(source, input_shapes, lambda graph: passes.optimize(float_only(graph)))


def _family(
    source: Source, input_shapes: InputShapes | None, finish: Callable[[Graph], Graph]
) -> Family:
    if input_shapes or not source.signature.is_free:
        return Family.of(finish(source.graph(input_shapes, delegate=True)))

    def make(shapes: Shapes) -> Graph:
        return finish(source.graph(shapes, delegate=True))

    return Family(source.signature, source.source_hash, make, source.to_bytes)


def ready(graph: Graph) -> Graph:
    """An imported graph as it is compiled: optimized, int8 where the model comes quantized."""
    return quantization.fuse_quantized(graph) if is_quantized(graph) else passes.optimize(graph)


def float_only(graph: Graph) -> Graph:
    """The graph.  Raises ``OptionError`` for one that is quantized."""
    if is_quantized(graph):
        raise OptionError(
            "the model is quantized already. Remedy: compile it as it is, or pass the float model."
        )
    return graph


def is_quantized(graph: Graph) -> bool:
    """Whether any value is an integer standing for a real number."""
    return any(node.type.quant is not None for node in graph.nodes)


def programs_of(
    family: Family,
    first: Specialisation | None,
    machine: Machine,
    *,
    decisions: Decisions | None = None,
    delegate: Callable[[Shapes], Specialisation] | None = None,
) -> Specialisations:
    """What a model runs: ``first``, and programs for other shapes where the family has them.

    They are quantized by ``decisions``; ``delegate`` runs what cannot be compiled.
    """
    if not family.signature.is_free and first is not None:
        return OneShape(first)
    origin = Origin(family, decisions)
    programs = FreeShapes(family.signature, origin.graph_at, machine, delegate, origin.freedom)
    if first is not None:
        programs.add(first)
    return programs


@dataclass(frozen=True)
class Origin:
    """Where the graphs of a model with free dimensions come from: its ONNX model, and the decisions
    of the quantizer if it is quantized by us.
    """

    family: Family
    decisions: Decisions | None = None

    @staticmethod
    def restored(saved: SavedModel) -> Origin:
        """The origin of a saved model.  Raises ``FileFormatError`` and ``ModelError``."""
        data = (saved.free or {}).get("decisions")
        source = frontend.open_model(saved.source)
        if data is None:
            return Origin(family_of(source))
        try:
            decisions = decision_text.from_json(data, saved.graph)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(
                f"the decisions of the quantizer are damaged: {error!r}. "
                "Remedy: save the model again."
            ) from error
        return Origin(_float_family(source, None), decisions)

    def graph_at(self, shapes: Shapes) -> Graph:
        """The graph to compile for input shapes."""
        graph = self.family.make(shapes)
        return graph if self.decisions is None else self.decisions.apply(graph)

    def freedom(self) -> Freedom:
        """What a file needs to do the same."""
        assert self.family.source is not None, "families with free dimensions come from a model"
        decisions = None if self.decisions is None else decision_text.to_json(self.decisions)
        free = {"signature": self.family.signature.to_json(), "decisions": decisions}
        return Freedom(free, self.family.source())
