"""Models and graphs as families of graphs, and the origins of graphs for further shapes.

A family gives the float or int8 graph of a model for any shapes.  An origin is the ONNX model that
such graphs are imported from, with the decisions of the quantizer and the parts that a file needs.

An int8 model computes the same before it is saved and after it is loaded, whatever a new shape asks
for: steps of a recurrence that calibration did not reach, weights in another layout, a shape that
onnxruntime runs.  A file has integers for the weights that layers read as integers, float for the
others.  Where the graph of a shape may show the difference, it is imported from what the file has;
most graphs have the constants of those that were decided on.  The exact weights beside the integers
would make the file larger than the ONNX model, and the outputs no better: integers with a scale for
each channel lose less than the rounding of activations does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from quantglow import steps
from quantglow.api.models.late_families import LateFamily, bind_results
from quantglow.api.options import InputShapes
from quantglow.importer import onnx as importer
from quantglow.importer.onnx import Source
from quantglow.ir.graph.family import (
    Case,
    Family,
    FreeCase,
    LateResults,
    ResultShapes,
    values_from_json,
)
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.graph.text import print_graph, text_constants
from quantglow.ir.ops.external import NO_MODEL, External
from quantglow.quantization.decisions import Decisions, from_json, to_json
from quantglow.quantization.qdq import fuse_quantized
from quantglow.quantization.qdq.stored_weights import (
    has_quantized_weights_only,
    with_stored_weights,
)
from quantglow.runtime.hybrid.loop import model_bytes
from quantglow.runtime.hybrid.loop_driver import LoopBodies
from quantglow.runtime.saved.saving import Freedom, SavedModel, contents_in, late_entry
from quantglow.runtime.shapes.free_shapes import NOTHING_OPENED, Opened
from quantglow.support import debug
from quantglow.support.classes import cached_property
from quantglow.support.errors import (
    FallbackError,
    FileFormatError,
    ModelError,
    OptionError,
    QuantglowError,
    TypeRuleError,
    UnsupportedOpError,
)
from quantglow.support.pages import Content
from quantglow.transforms.float import optimize

InputValues = Mapping[str, int | Sequence[int]]
"""Input name -> its elements, for inputs that decide what a model computes."""

LOOPS = "loops"
"""Entry of files whose recurrences are loops; older ones have decisions for each step."""

LOOP = "Loop"
"""The operator whose trips have a driver of their own (``runtime.hybrid.loop_driver``)."""

CaseValues = tuple[tuple[str, tuple[int, ...]], ...] | None


def with_steps(model: Any, before: Any, after: Any) -> Any:
    """A model with the steps of ``quantglow.steps``; the same object if there are none.

    Raises ``OptionError`` for steps that do not fit, and for a graph with steps.
    """
    at_inputs = steps.check("before", before, steps.Before)
    at_outputs = steps.check("after", after, steps.After)
    if not at_inputs and not at_outputs:
        return model
    if isinstance(model, Graph):
        raise OptionError(
            "before and after are for ONNX models, and a graph has its steps already. "
            "Remedy: pass them to import_model."
        )
    return importer.with_steps(model, at_inputs, at_outputs)


def open_source(model: Any) -> Source:
    """The source of a path, bytes or ModelProto, which may be changed afterwards."""
    return settle(importer.open_model(model), model)


def settle(source: Source, model: Any) -> Source:
    """The source of ``model``, a copy where the caller could change it while it is in use."""
    is_shared = not isinstance(model, str | os.PathLike | bytes)
    return source.snapshot() if is_shared else source


Found = TypeVar("Found")


def first_of(attempt: Callable[[LateResults], Found]) -> Found:
    """The result of the first attempt that succeeds: late results are refused where that will do,
    and opaque where nothing else does.

    Raises the first ``UnsupportedOpError`` where none succeeds, and other errors of the first
    attempt.
    """
    refusal: UnsupportedOpError | None = None
    for late_results in LateResults:
        try:
            return attempt(late_results)
        except UnsupportedOpError as error:
            refusal = refusal or error
        except (ModelError, FallbackError, TypeRuleError):
            if refusal is None:
                raise
    assert refusal is not None, "some attempt was refused"
    raise refusal


def import_at(source: Source, family: Family, case: Case) -> Graph:
    """The graph of a case as ``family`` imports it, before it is optimized."""
    graph = source.at(case, family.late_results)
    return bind_results(graph, dict(case.late)) if isinstance(family, LateFamily) else graph


def open_family(
    model: Source | Graph,
    input_shapes: InputShapes | None = None,
    late_results: LateResults = LateResults.REFUSED,
) -> Family:
    """The graphs to compile of a model or of a graph.

    With ``input_shapes``, or for a model that leaves nothing free, that is one graph, but where
    values of inputs or sizes of results decide what is computed.
    """
    if isinstance(model, Graph):
        _check_sizes(model)
        return Family.of(model if is_quantized(model) else optimize(model))
    return _family(model, input_shapes, _ready, late_results)


def _check_sizes(graph: Graph) -> None:
    """Raise ``OptionError`` for a graph of which nodes decide sizes: its program continues in those
    of others, which are made of the model."""
    if graph.has_free_sizes:
        raise OptionError(
            f"nodes of the graph decide sizes ({', '.join(sorted(graph.symbols))}), and no graph "
            "serves all of them. Remedy: pass the model that it was made of."
        )


def open_float_family(
    model: Any,
    input_shapes: InputShapes | None = None,
    late_results: LateResults = LateResults.REFUSED,
) -> Family:
    """The optimized float graphs of a path, bytes or ModelProto, or of a graph.

    Raises ``OptionError`` for what is quantized already.
    """
    if isinstance(model, Graph):
        _check_sizes(model)
        return Family.of(float_graph(model))
    return _family(open_source(model), input_shapes, float_graph, late_results)


def _family(
    source: Source,
    input_shapes: InputShapes | None,
    finish: Callable[[Graph], Graph],
    late_results: LateResults,
) -> Family:
    def make(case: FreeCase) -> Graph:
        graph = source.at(case, late_results)
        if not case.late:
            _check_compiled(graph, late_results)
        return finish(graph)

    is_fixed = input_shapes or not source.signature.is_free
    signature = source.fixed_signature(input_shapes) if is_fixed else source.signature
    kind = LateFamily if late_results is LateResults.SYMBOLIC else Family
    family = kind(signature, source.source_hash, make, source, (), source.conversions, late_results)
    if is_fixed and late_results is LateResults.REFUSED and (graph := family.default) is not None:
        return replace(Family.of(graph), notes=family.notes)
    return family


def _check_compiled(graph: Graph, late_results: LateResults) -> None:
    """Raise ``UnsupportedOpError`` where other runtimes compute with strings, opaque values and
    late results, and nothing else is computed."""
    nodes = graph.compute_nodes()
    externals = [node for node in nodes if isinstance(node, External)]
    # The driver of a Loop compiles its body.
    has_bodies = late_results is LateResults.SYMBOLIC and any(n.op_type == LOOP for n in externals)
    if len(externals) < len(nodes) or has_bodies:
        return
    has_objects = any(node.type.dtype.is_object for node in graph.nodes)
    if has_objects or late_results is not LateResults.REFUSED:
        reasons = [f"node {n.name!r} ({n.op_type}): {n.reason}" for n in externals]
        raise UnsupportedOpError(reasons or ["nothing is computed"])


def _ready(graph: Graph) -> Graph:
    """An imported graph as it is compiled: optimized, int8 where the model comes quantized."""
    return fuse_quantized(graph) if is_quantized(graph) else optimize(graph)


def float_graph(graph: Graph) -> Graph:
    """The optimized graph; weights that the model has as integers are stored.  Raises
    ``OptionError`` for one whose activations are quantized."""
    if not is_quantized(graph):
        return optimize(graph)
    if has_quantized_weights_only(graph):
        return with_stored_weights(graph)
    raise OptionError(
        "the model is quantized already. Remedy: compile it as it is, or pass the float model."
    )


def is_quantized(graph: Graph) -> bool:
    """Whether any value is an integer standing for a real number."""
    return any(node.type.quant is not None for node in graph.nodes)


@dataclass(frozen=True)
class Decided:
    """Decisions of the quantizer, and the int8 graph that has the weights of them; ``late``: the
    shapes of results for which that was made."""

    decisions: Decisions
    graph: Graph
    late: ResultShapes = ()


DecidedByValues = Mapping[CaseValues, Decided]
"""Decisions for each combination of deciding input values; the main one first."""


@dataclass(frozen=True)
class FamilyOrigin:
    """An ONNX model, and the decisions of the quantizer if it is quantized by us."""

    family: Family
    decided: DecidedByValues | None = None

    @staticmethod
    def restored(saved: SavedModel) -> FamilyOrigin:
        """The origin of a saved model.  Raises ``FileFormatError`` and ``ModelError``."""
        free = saved.free or {}
        source = restore_source(saved)
        if free.get("decisions") is None:
            return FamilyOrigin(_family(source, None, _ready, saved.late_results))
        try:
            entries = [free, *free.get("cases", [])]
            graphs = (saved.graph, *saved.cases)
            decided = dict(_read_decided(*pair) for pair in zip(entries, graphs, strict=True))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise FileFormatError(
                f"the decisions of the quantizer are damaged: {error!r}. "
                "Remedy: save the model again."
            ) from error
        return FamilyOrigin(_family(source, None, float_graph, saved.late_results), decided)

    def graph_at(self, case: FreeCase) -> Graph:
        """The graph to compile for a case."""
        graph = self.family.make(case)
        if not self.decided:
            return graph
        main = next(iter(self.decided.values()))
        return self.decided.get(case.values, main).decisions.apply(graph)


@dataclass(frozen=True)
class Built:
    """A model of this process: ``origin`` is where other shapes come from, ``freedom`` its file.

    ``bodies``: those of its loops that are int8, or why they are not.
    """

    family: Family
    decided: DecidedByValues | None = None
    bodies: LoopBodies = field(default_factory=dict)

    def graph_at(self, case: FreeCase) -> Graph:
        """The graph to compile for a case."""
        if not self.decided or self.is_late or self.bodies:
            return self.origin.graph_at(case)
        graph = self.exact_graph_at(case)
        decided = (each.graph for each in self.decided.values())
        if importer.may_show_rounding(self._made_from, graph, decided):
            return self.origin.graph_at(case)
        return graph

    def exact_graph_at(self, case: FreeCase) -> Graph:
        """The graph of a case by the weights of the model, not by those of its file."""
        return FamilyOrigin(self._reopen(self._made_from), self.decided).graph_at(case)

    @cached_property
    def origin(self) -> FamilyOrigin:
        """The family itself; of an int8 model, that of its file, which takes long to make."""
        if not self.decided:
            return FamilyOrigin(self.family)
        return FamilyOrigin(self._reopen(self.source), self.decided)

    @property
    def opened(self) -> Opened:
        """The graph of its file where that is no program: one of late sizes is for one sample."""
        if self.decided and self.is_late:
            return Opened(self._graphs[0])
        return NOTHING_OPENED

    @property
    def is_late(self) -> bool:
        """Whether nodes decide sizes."""
        return self.family.late_results is LateResults.SYMBOLIC

    def _reopen(self, source: Source) -> Family:
        """The float graphs of a model that a file has."""
        return _family(source, None, float_graph, self.family.late_results)

    @cached_property
    def source(self) -> Source:
        """The model that its file restores."""
        with debug.time_stage("weights of a file"):
            model, places = self._stored
            return importer.restore(model, places, self._constants)

    @cached_property
    def _stored(self) -> tuple[Content, importer.Places]:
        """The model of an int8 file, and where its weights are."""
        return importer.store(self._made_from, self._constants, self.is_same, self._graphs)

    @property
    def _made_from(self) -> Source:
        """The model that the graphs are made of."""
        source = self.family.source
        assert isinstance(source, Source), "families with free dimensions come from a model"
        return source

    @cached_property
    def _graphs(self) -> list[Graph]:
        """The int8 graphs of a file, without what its loops run."""
        return [self._stripped(decided.graph) for decided in (self.decided or {}).values()]

    def _stripped(self, graph: Graph) -> Graph:
        return _without_bodies(graph, self._body_files)

    @cached_property
    def _constants(self) -> list[Constant]:
        """Constants of the int8 graph that a file has first, and of the bodies of loops."""
        bodies = {name: contents_in(data, name) for name, data in self._body_files.items()}
        return [*_constant_nodes(self._graphs[0]), *_body_constants(bodies)]

    @cached_property
    def _body_files(self) -> dict[str, bytes]:
        """The files of int8 bodies by the names of their loops."""
        return {n: model_bytes(b) for n, b in self.bodies.items() if not isinstance(b, str)}

    def freedom(self, case: Case, graph: Graph) -> Freedom:
        """The data a file needs to do the same, besides the graph of a case."""
        free: dict[str, Any] = {"signature": self.family.signature.to_json()}
        free |= {"values": case.value_map, LOOPS: True}
        free |= late_entry(self.family.late_results)
        if not self.decided:
            source, places = importer.store(self._made_from, _constant_nodes(graph), None)
            free |= {"weights": places, "decisions": None}
            return Freedom(free, source, check=FamilyOrigin.restored, bodies=self._body_files)
        source, free["weights"] = self._stored
        main, *others = self.decided.items()
        # The file has this graph, also where a model of late sizes ran other values first.
        free["values"] = dict(main[0] or ())
        free["decisions"] = to_json(main[1].decisions)
        free["cases"] = [
            {"values": dict(values or ()), "decisions": to_json(decided.decisions)}
            for values, decided in others
        ]
        _, *graphs = self._graphs
        restored = FamilyOrigin.restored
        return Freedom(free, source, tuple(graphs), restored, bodies=self._body_files)

    def is_same(self, source: Source) -> bool:
        """Whether another model gives the main one of the int8 graphs that were decided on."""
        family = self._reopen(source)
        (values, main), *_ = (self.decided or {}).items()
        try:
            graph = family.graph_at(replace(graph_case(main.graph, values), late=main.late))
            return is_alike(self._stripped(main.decisions.apply(graph)), self._graphs[0])
        except QuantglowError:
            return False


def graph_case(graph: Graph, values: CaseValues) -> Case:
    """The case of a graph that was made for these values."""
    shapes = {node.name: node.type.fixed_shape for node in graph.inputs}
    return replace(Case.of(shapes), values=values)


def is_alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs compute the same with the same constants, whatever they come from."""
    texts = [print_graph(replace(graph, source_hash="")) for graph in (one, other)]
    arrays = [text_constants(graph) for graph in (one, other)]
    return texts[0] == texts[1] and all(
        array.tobytes() == arrays[1][name].tobytes() for name, array in arrays[0].items()
    )


def _constant_nodes(graph: Graph) -> list[Constant]:
    """The Constants of a graph, in order."""
    return [node for node in graph.nodes if isinstance(node, Constant)]


def _body_constants(bodies: Mapping[str, SavedModel]) -> Iterator[Constant]:
    """The Constants of the bodies of loops; their names begin with those of the loops."""
    for loop, body in bodies.items():
        for node in _constant_nodes(body.graph):
            yield replace(node, name=f"{loop}/{node.name}")


def _without_bodies(graph: Graph, loops: Collection[str]) -> Graph:
    """The graph without the models and weights of loops of these names."""
    results = {node.name for node in results_of_loops(graph, loops)}

    def strip(node: Node) -> Node:
        if not isinstance(node, External) or node.name not in results:
            return node
        args = (arg for arg in node.args if not isinstance(arg, Constant))
        return replace(node, model=NO_MODEL, args=tuple(args))

    return graph.rebuild(strip) if results else graph


def results_of_loops(graph: Graph, loops: Collection[str]) -> list[External]:
    """The nodes of a graph that are results of loops of these names."""
    nodes = (n for n in graph.nodes if isinstance(n, External) and n.op_type == LOOP)
    return [node for node in nodes if importer.loop_name(node) in loops] if loops else []


def restore_source(saved: SavedModel) -> Source:
    """The model in a file.  Raises ``FileFormatError`` and ``ModelError``."""
    free = saved.free or {}
    places = free.get("weights", {})
    try:
        constants = [*_constant_nodes(saved.graph), *_body_constants(saved.loops)]
        restored = importer.restore(saved.source, places, constants)
        return replace(restored, unrolls=not free.get(LOOPS))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise FileFormatError(
            f"the weights of the model are damaged: {error!r}. Remedy: save the model again."
        ) from error


def _read_decided(entry: Mapping[str, Any], graph: Graph) -> tuple[Any, Decided]:
    """Values and what was decided for them, from a file."""
    case = Case.of({}, values_from_json(entry.get("values") or {}))
    return case.values, Decided(from_json(entry["decisions"], graph), graph)
