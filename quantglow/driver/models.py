"""Models and graphs as families of graphs, and what is compiled of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow import frontend, passes, quantization
from quantglow.errors import FileFormatError, OptionError, QuantglowError
from quantglow.frontend import Source
from quantglow.graph.case import Case, values_from_json
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant
from quantglow.graph.text import constants_of, print_graph
from quantglow.quantization import Decisions, decision_text
from quantglow.runtime.build import Machine
from quantglow.runtime.saving import Freedom, SavedModel
from quantglow.runtime.specialisations import (
    Delegate,
    FreeShapes,
    OneShape,
    Specialisation,
    Specialisations,
)


@dataclass(frozen=True)
class Decided:
    """Decisions of the quantizer, and the int8 graph that has the weights of them."""

    decisions: Decisions
    graph: Graph


CaseValues = tuple[tuple[str, tuple[int, ...]], ...] | None
DecidedByValues = Mapping[CaseValues, Decided]
"""What was decided for values of the inputs that decide; the main ones first."""

InputShapes = Mapping[str, Sequence[int]]
"""Input name -> shape, for models that leave dimensions free."""

InputValues = Mapping[str, int | Sequence[int]]
"""Input name -> its elements, for inputs that decide what a model computes."""


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
        return Family.of(passes.optimize(float_only(model)))
    return _float_family(opened(model), input_shapes)


def _float_family(source: Source, input_shapes: InputShapes | None) -> Family:
    return _family(source, input_shapes, lambda graph: passes.optimize(float_only(graph)))


def _family(
    source: Source, input_shapes: InputShapes | None, finish: Callable[[Graph], Graph]
) -> Family:
    def make(case: Case) -> Graph:
        return finish(source.at(case))

    family = Family(source.signature, source.source_hash, make, source.to_bytes)
    if input_shapes or not source.signature.is_free:
        family.signature = source.fixed_signature(input_shapes)
        graph = family.default
        return family if graph is None else Family.of(graph)
    return family


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
    decided: DecidedByValues | None = None,
    delegate: Delegate | None = None,
) -> Specialisations:
    """What a model runs: ``first``, and programs for other shapes where the family has them.

    They are quantized as ``decided``; ``delegate`` runs what cannot be compiled.
    """
    if family.is_single and first is not None:
        return OneShape(first)
    origin = Origin(family, decided)
    programs = FreeShapes(
        family.signature, origin.graph_at, machine, delegate, origin.freedom, family.deciding
    )
    if first is not None:
        programs.add(first)
    return programs


@dataclass(frozen=True)
class Origin:
    """Where the graphs of a model with free dimensions come from: its ONNX model, and the decisions
    of the quantizer if it is quantized by us.
    """

    family: Family
    decided: DecidedByValues | None = None

    @staticmethod
    def restored(saved: SavedModel) -> Origin:
        """The origin of a saved model.  Raises ``FileFormatError`` and ``ModelError``."""
        free = saved.free or {}
        source = source_of(saved)
        if free.get("decisions") is None:
            return Origin(family_of(source))
        try:
            entries = [free, *free.get("cases", [])]
            graphs = (saved.graph, *saved.cases)
            decided = dict(_decided_from(*pair) for pair in zip(entries, graphs, strict=True))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(
                f"the decisions of the quantizer are damaged: {error!r}. "
                "Remedy: save the model again."
            ) from error
        return Origin(_float_family(source, None), decided)

    def graph_at(self, case: Case) -> Graph:
        """The graph to compile for a case."""
        graph = self.family.make(case)
        if not self.decided:
            return graph
        main = next(iter(self.decided.values()))
        return self.decided.get(case.values, main).decisions.apply(graph)

    def freedom(self, case: Case, graph: Graph) -> Freedom:
        """What a file needs to do the same, besides the graph of a case."""
        assert self.family.source is not None, "families with free dimensions come from a model"
        constants = [node for node in graph.nodes if isinstance(node, Constant)]
        same = None if self.decided is None else self.is_same
        source, places = frontend.stored(self.family.source(), constants, same)
        signature = self.family.signature.to_json()
        free: dict[str, Any] = {"signature": signature, "values": case.value_map}
        free["weights"] = places
        if self.decided is None:
            return Freedom({**free, "decisions": None}, source)
        main, *others = self.decided.items()
        free["decisions"] = decision_text.to_json(main[1].decisions)
        free["cases"] = [
            {"values": dict(values or ()), "decisions": decision_text.to_json(found.decisions)}
            for values, found in others
        ]
        graphs = tuple(found.graph for _, found in others)
        return Freedom(free, source, graphs)

    def is_same(self, source: Source) -> bool:
        """Whether another model gives the int8 graphs that were decided on."""
        other = Origin(_float_family(source, None), self.decided)
        try:
            return all(
                is_alike(other.graph_at(case_of(found.graph, values)), found.graph)
                for values, found in (self.decided or {}).items()
            )
        except QuantglowError:
            return False


def case_of(graph: Graph, values: CaseValues) -> Case:
    """The case of a graph that was made for these values."""
    return replace(Case.of({node.name: node.type.shape for node in graph.inputs}), values=values)


def is_alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs compute the same with the same constants, whatever they come from."""
    texts = [print_graph(replace(graph, source_hash="")) for graph in (one, other)]
    arrays = [constants_of(graph) for graph in (one, other)]
    return texts[0] == texts[1] and all(
        np.array_equal(array, arrays[1][name]) for name, array in arrays[0].items()
    )


def source_of(saved: SavedModel) -> Source:
    """The model in a file.  Raises ``FileFormatError`` and ``ModelError``."""
    constants = [node for node in saved.graph.nodes if isinstance(node, Constant)]
    try:
        return frontend.restored(saved.source, (saved.free or {}).get("weights", {}), constants)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"the weights of the model are damaged: {error!r}. Remedy: save the model again."
        ) from error


def _decided_from(entry: Mapping[str, Any], graph: Graph) -> tuple[Any, Decided]:
    """Values and what was decided for them, from a file."""
    case = Case.of({}, values_from_json(entry.get("values") or {}))
    return case.values, Decided(decision_text.from_json(entry["decisions"], graph), graph)
