"""Origins of the graphs of a model with free dimensions, and the parts of them that a file needs.

An int8 model is imported at a new shape from what a file has of it: integers for the weights that
layers read as integers, float for the others.  So a model computes the same before it is saved and
after it is loaded, whatever a new shape asks for: steps of a recurrence that calibration did not
reach, weights in another layout, a shape that onnxruntime runs.  The exact weights beside the
integers would make the file larger than the ONNX model, and the outputs no better: integers with a
scale for each channel lose less than the rounding of activations does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantglow import frontend
from quantglow.driver.models import family_of, float_family
from quantglow.errors import FileFormatError, QuantglowError
from quantglow.frontend import Source
from quantglow.graph.case import Case, values_from_json
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant
from quantglow.graph.text import constants_of, print_graph
from quantglow.lazy import cached_property
from quantglow.pages import Content
from quantglow.quantization.decisions.decisions import Decisions
from quantglow.quantization.decisions.serialization import from_json, to_json
from quantglow.runtime.build import Compiler
from quantglow.runtime.saved_models.saving import Freedom, SavedModel
from quantglow.runtime.shapes.fallbacks import Fallback
from quantglow.runtime.shapes.free_shapes import MOST_VALUES, FreeShapes
from quantglow.runtime.shapes.specialisations import ModelPrograms, OneShape, Specialisation

LOOPS = "loops"
"""Entry of files whose recurrences are loops; older ones have decisions for each step."""


@dataclass(frozen=True)
class Decided:
    """Decisions of the quantizer, and the int8 graph that has the weights of them."""

    decisions: Decisions
    graph: Graph


CaseValues = tuple[tuple[str, tuple[int, ...]], ...] | None
DecidedByValues = Mapping[CaseValues, Decided]
"""Decisions for each combination of deciding input values; the main one first."""


@dataclass(frozen=True)
class Origin:
    """An ONNX model, and the decisions of the quantizer if it is quantized by us."""

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
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise FileFormatError(
                f"the decisions of the quantizer are damaged: {error!r}. "
                "Remedy: save the model again."
            ) from error
        return Origin(float_family(source), decided)

    def graph_at(self, case: Case) -> Graph:
        """The graph to compile for a case."""
        graph = self.family.make(case)
        if not self.decided:
            return graph
        main = next(iter(self.decided.values()))
        return self.decided.get(case.values, main).decisions.apply(graph)


@dataclass(frozen=True)
class Built:
    """A model of this process: ``origin`` is where other shapes come from, ``freedom`` its file."""

    family: Family
    decided: DecidedByValues | None = None

    def graph_at(self, case: Case) -> Graph:
        """The graph to compile for a case."""
        return self.origin.graph_at(case)

    @cached_property
    def origin(self) -> Origin:
        """The family itself; of an int8 model, that of its file."""
        return Origin(float_family(self.source), self.decided) if self.decided else self._exact

    @property
    def _exact(self) -> Origin:
        return Origin(self.family, self.decided)

    @cached_property
    def source(self) -> Source:
        """The model that its file restores."""
        model, places = self._stored
        return frontend.restored(model, places, self._constants)

    @cached_property
    def _stored(self) -> tuple[Content, frontend.Places]:
        """The model of an int8 file, and where its weights are."""
        graphs = [found.graph for found in (self.decided or {}).values()]
        return frontend.stored(self._opened, self._constants, self.is_same, graphs)

    @property
    def _opened(self) -> Source:
        """The model that the graphs are made of."""
        found = self.family.source
        assert isinstance(found, Source), "families with free dimensions come from a model"
        return found

    @property
    def _constants(self) -> list[Constant]:
        """Constants of the int8 graph that a file has first."""
        return constant_nodes(next(iter((self.decided or {}).values())).graph)

    def freedom(self, case: Case, graph: Graph) -> Freedom:
        """The data a file needs to do the same, besides the graph of a case."""
        free: dict[str, Any] = {"signature": self.family.signature.to_json()}
        free |= {"values": case.value_map, LOOPS: True}
        if not self.decided:
            source, places = frontend.stored(self._opened, constant_nodes(graph), None)
            free |= {"weights": places, "decisions": None}
            return Freedom(free, source, check=Origin.restored)
        source, free["weights"] = self._stored
        main, *others = self.decided.items()
        free["decisions"] = to_json(main[1].decisions)
        free["cases"] = [
            {"values": dict(values or ()), "decisions": to_json(found.decisions)}
            for values, found in others
        ]
        graphs = tuple(found.graph for _, found in others)
        return Freedom(free, source, graphs, Origin.restored)

    def is_same(self, source: Source) -> bool:
        """Whether another model gives the main one of the int8 graphs that were decided on."""
        other = Origin(float_family(source), self.decided)
        (values, main), *_ = (self.decided or {}).items()
        try:
            return is_alike(other.graph_at(case_of(main.graph, values)), main.graph)
        except QuantglowError:
            return False


def programs_of(
    built: Built,
    first: Specialisation | None,
    compiler: Compiler,
    fallback: Fallback | None = None,
) -> ModelPrograms:
    """The programs of a model: ``first``, and programs for other shapes where the family has them.

    ``fallback`` runs what cannot be compiled.
    """
    if built.family.is_single and first is not None:
        return OneShape(first, compiler)
    programs = free_programs(built, compiler, fallback)
    if first is not None:
        programs.add(first)
    return programs


def free_programs(
    built: Built,
    compiler: Compiler,
    fallback: Fallback | None = None,
    most_values: int = MOST_VALUES,
) -> FreeShapes:
    """The programs of a model, compiled on first use; ``most_values``: those for values of inputs
    at the same shapes.
    """
    family = built.family
    return FreeShapes(
        family.signature,
        built.graph_at,
        compiler,
        fallback,
        built.freedom,
        family.deciding,
        most_values=most_values,
    )


def case_of(graph: Graph, values: CaseValues) -> Case:
    """The case of a graph that was made for these values."""
    return replace(Case.of({node.name: node.type.shape for node in graph.inputs}), values=values)


def is_alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs compute the same with the same constants, whatever they come from."""
    texts = [print_graph(replace(graph, source_hash="")) for graph in (one, other)]
    arrays = [constants_of(graph) for graph in (one, other)]
    return texts[0] == texts[1] and all(
        array.tobytes() == arrays[1][name].tobytes() for name, array in arrays[0].items()
    )


def constant_nodes(graph: Graph) -> list[Constant]:
    """The Constants of a graph, in order."""
    return [node for node in graph.nodes if isinstance(node, Constant)]


def source_of(saved: SavedModel) -> Source:
    """The model in a file.  Raises ``FileFormatError`` and ``ModelError``."""
    free = saved.free or {}
    places = free.get("weights", {})
    try:
        found = frontend.restored(saved.source, places, constant_nodes(saved.graph))
        return replace(found, unrolls=not free.get(LOOPS))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise FileFormatError(
            f"the weights of the model are damaged: {error!r}. Remedy: save the model again."
        ) from error


def _decided_from(entry: Mapping[str, Any], graph: Graph) -> tuple[Any, Decided]:
    """Values and what was decided for them, from a file."""
    case = Case.of({}, values_from_json(entry.get("values") or {}))
    return case.values, Decided(from_json(entry["decisions"], graph), graph)
