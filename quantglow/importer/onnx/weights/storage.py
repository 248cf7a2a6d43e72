"""Storage of a model beside the graph compiled from it, each weight once.

``locations`` has the ways in which a file can have a tensor.

A constant of int8 differs from the tensor it was rounded from, as codes do.  They may stand for it
where the graphs that were decided on do not show the difference, because the quantizer's own
integers take its place: the caller's ``is_same`` tells.  Weights that these graphs have as floats
are not rounded in the file (``show``).  Graphs for further shapes may show the difference
(``may_show_rounding``).  A model that was just quantized imports those that may from what
``restore`` gives, too (``api.models.families``).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from quantglow.importer.onnx.nodes.values import tensor_array
from quantglow.importer.onnx.reading.light_models import light_decoded, serialize, tensor_nbytes
from quantglow.importer.onnx.reading.proto import all_nodes, iterate_graphs
from quantglow.importer.onnx.source import Source, open_light
from quantglow.importer.onnx.weights.locations import (
    GraphConstants,
    Place,
    Places,
    StoredTensor,
    codes_in,
    codes_of_graph,
    codes_place,
    content,
    exact_place,
    rounded_place,
)
from quantglow.ir.graph.family import constant_arrays, content_key
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array
from quantglow.support.pages import LEAST_NBYTES as LEAST_PAGED_NBYTES
from quantglow.support.pages import Content, is_worth_paging, page, release_pages, together

SIZES = frozenset({"Shape", "Size"})
"""Operators whose results no element of a weight changes."""

LEAST_NBYTES = 1024
"""Minimum size of a tensor that is not stored as it is, in bytes."""

MOST_TRIALS = 24
"""Maximum number of imports that find out which tensors may be rounded."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
MOVES = frozenset(
    {"Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)

FLOATS: dict[int, str] = {onnx.TensorProto.FLOAT: "<f4", onnx.TensorProto.FLOAT16: "<f2"}
"""Element types of the tensors that are looked for."""

CODES = frozenset({onnx.TensorProto.UINT8})
"""Element types of packed codes of weights in groups."""


@dataclass(frozen=True)
class LightModel:
    """A light model that may be changed, and its weights."""

    proto: onnx.ModelProto
    weights: dict[str, Array]

    def array(self, tensor: onnx.TensorProto) -> Array:
        """The elements of one of its tensors."""
        data = self.weights.get(tensor.name)
        return tensor_array(tensor) if data is None else data

    def replace(self, name: str, tensor: onnx.TensorProto, array: Array) -> None:
        """Give a tensor, which has this name as a value, other elements of its type."""
        if name in self.weights:
            self.weights[name] = array
        else:
            _replace_data(tensor, array.tobytes())

    def forget(self, name: str, tensor: onnx.TensorProto, data: bytes) -> None:
        """Leave these bytes of a tensor."""
        self.weights.pop(name, None)
        _replace_data(tensor, data)


def store(
    source: Source,
    constants: Sequence[Constant],
    is_same: Callable[[Source], bool] | None,
    graphs: Iterable[Graph] = (),
) -> tuple[Content, Places]:
    """A model as a file has it beside these constants.

    ``is_same`` says whether another model gives the same graph; None: nothing may be rounded.
    ``graphs``: all that were decided on; weights whose floats one of them shows stay exact.
    """
    model = LightModel(source.without_notes(), dict(source.weights))
    return stored_model(model, constants, is_same, show(model.proto, graphs))


def stored_model(
    model: LightModel,
    constants: Sequence[Constant],
    is_same: Callable[[Source], bool] | None,
    exact: Collection[str] = (),
) -> tuple[Content, Places]:
    """``store`` for a model that may be changed; ``exact``: names of weights that stay exact."""
    graph_constants, tensors = GraphConstants.of(constants), _large_tensors(model.proto)
    stored_tensors = dict(
        _tensor_places(tensors, lambda t: exact_place(_widen(model.array(t)), graph_constants))
    )
    if is_same is not None:
        weights = [name for name in _weight_names(model.proto) if name in tensors]
        remaining = {n: tensors[n] for n in weights if n not in stored_tensors and n not in exact}
        rounded = dict(
            _tensor_places(
                remaining, lambda t: rounded_place(_widen(model.array(t)), graph_constants)
            )
        )
        stored_tensors |= _roundable(model, rounded, graph_constants.by_name, is_same)
    codes = _large_codes(model.proto)
    stored_tensors |= _tensor_places(codes, lambda t: codes_place(model.array(t), graph_constants))
    for name, tensor in {**tensors, **codes}.items():
        if name in stored_tensors:
            model.forget(name, tensor, stored_tensors[name].data)
    places = {name: entry.place for name, entry in stored_tensors.items()}
    return serialize(model.proto, model.weights), places


def own_constants(data: bytes, places: Mapping[str, Place]) -> Iterator[Constant]:
    """The large float tensors whose elements a model in a file has, all or as codes, under their
    names.  Raises as ``restore`` does.
    """
    proto, weights = light_decoded(data, "the tail", places)
    for name, tensor in _large_tensors(proto).items():
        place = places.get(name)
        if place is None:
            array = LightModel(proto, dict(weights)).array(tensor)
            yield Constant(name=name, value=_widen(array))
        elif "axis" in place:
            codes, scales = codes_in(tuple(tensor.dims), StoredTensor(place, tensor.raw_data))
            params = QuantParams.symmetric(scales, int(place["axis"]))
            yield Constant(name=name, value=codes, element=ElementType(DType.I8, params))


def _tensor_places(
    tensors: Mapping[str, onnx.TensorProto],
    place: Callable[[onnx.TensorProto], StoredTensor | None],
) -> Iterator[tuple[str, StoredTensor]]:
    """The places of the tensors that have one; pages are given back behind each."""
    for name, tensor in tensors.items():
        if (entry := place(tensor)) is not None:
            yield name, entry
        release_pages()


def restore(content: Content, places: Mapping[str, Place], constants: Sequence[Constant]) -> Source:
    """The model that ``store`` wrote, its weights in pages.  Raises ``ModelError``, ``KeyError``,
    ``TypeError`` or ``ValueError``.
    """
    proto, embedded = light_decoded(together(content), "the source of the saved model", places)
    tensors, by_name = _tensors_by_name(proto, {*FLOATS, *CODES}), {c.name: c for c in constants}
    listed = {tensor.name for tensor in proto.graph.initializer}
    large = [n for n in places if n in listed and tensor_nbytes(tensors[n]) >= LEAST_PAGED_NBYTES]
    arrays = (_elements(tensors[name], places[name], by_name) for name in large)
    worth = is_worth_paging(tensor_nbytes(tensors[name]) for name in large)
    loaded = page(arrays) if worth else None
    weights = {} if loaded is None else dict(zip(large, loaded, strict=True))
    for name, place in places.items():
        tensor = tensors[name]
        apart = name in weights
        _replace_data(tensor, b"" if apart else _elements(tensor, place, by_name).tobytes())
    return open_light(proto, {**weights, **embedded})


def _widen(array: Array) -> Array:
    """The elements as float32, which holds every float16."""
    return np.asarray(array, np.float32)


def _replace_data(tensor: onnx.TensorProto, data: bytes) -> None:
    """Give a tensor other data, wherever it had its own: files of version 2 may have both."""
    tensor.ClearField("float_data")
    tensor.ClearField("int32_data")  # float16 elements
    tensor.raw_data = data


def _elements(tensor: onnx.TensorProto, place: Place, constants: Mapping[str, Constant]) -> Array:
    """The elements of a tensor that the file has at this place.  Raises as ``content`` does."""
    if "codes" in place:
        return codes_of_graph(tuple(tensor.dims), place, constants)
    try:
        array = content(tuple(tensor.dims), StoredTensor(place, tensor.raw_data), constants)
    except ValueError as error:
        raise ValueError(f"tensor {tensor.name!r}: {error}") from None
    return array.astype(FLOATS[tensor.data_type], copy=False)


def _tensors_by_name(proto: onnx.ModelProto, kinds: Container[int]) -> dict[str, onnx.TensorProto]:
    """Initializers and Constants of some element types by the names of values, those of subgraphs
    included; none that occur twice."""
    graphs = iterate_graphs(proto)
    named = [(tensor.name, tensor) for graph in graphs for tensor in graph.initializer]
    for node in all_nodes(proto.graph.node):
        if node.op_type == "Constant" and not node.domain:
            named += [(node.output[0], a.t) for a in node.attribute if a.name == "value"]
    counts = Counter(name for name, _ in named)
    return {n: t for n, t in named if counts[n] == 1 and t.data_type in kinds}


def _large_tensors(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Float tensors that are large enough to be worth a look."""
    tensors = _tensors_by_name(proto, FLOATS).items()
    return {n: t for n, t in tensors if 4 * math.prod(t.dims) >= LEAST_NBYTES and len(t.dims) > 1}


def _large_codes(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Packed codes of weights that are large enough to be worth a look."""
    tensors = _tensors_by_name(proto, CODES).items()
    return {n: t for n, t in tensors if math.prod(t.dims) >= LEAST_NBYTES}


def _weight_names(proto: onnx.ModelProto) -> Iterator[str]:
    """Names of values that only products read as weights, where they are only moved before."""
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
    for node in all_nodes(proto.graph.node):
        for position, name in enumerate(node.input):
            readers[name].append((node, position))
    ends = {output.name for output in proto.graph.output}

    def is_weight(name: str, depth: int = 0) -> bool:
        uses = readers[name]
        return (
            bool(uses)
            and name not in ends
            and depth < 8
            and all(
                (node.op_type in PRODUCTS and position > 0)
                or (node.op_type in MOVES and all(is_weight(n, depth + 1) for n in node.output))
                for node, position in uses
            )
        )

    yield from filter(is_weight, _large_tensors(proto))


def _roundable(
    model: LightModel,
    rounded: Mapping[str, StoredTensor],
    constants: Mapping[str, Constant],
    is_same: Callable[[Source], bool],
) -> dict[str, StoredTensor]:
    """The tensors that may all be rounded."""
    search = RoundingSearch(model, rounded, constants, is_same)
    search.visit(list(rounded))
    return {name: rounded[name] for name in search.accepted}


@dataclass
class RoundingSearch:
    """A search, by halves in ``MOST_TRIALS`` imports, for tensors that may all be rounded:
    ``accepted``."""

    model: LightModel
    rounded: Mapping[str, StoredTensor]
    constants: Mapping[str, Constant]
    is_same: Callable[[Source], bool]
    accepted: list[str] = field(default_factory=list)
    trials: int = 0

    def visit(self, names: list[str], fails: bool = False) -> bool:
        """Keep what may be rounded of these tensors; whether that is all of them.

        ``fails``: not all can be, which is known without a trial.
        """
        if not names or (not fails and self._may_all_be_rounded(names)):
            self.accepted += names
            return True
        if len(names) > 1:
            half = len(names) // 2
            first = self.visit(names[:half])
            self.visit(names[half:], fails=first)
        return False

    def _may_all_be_rounded(self, names: list[str]) -> bool:
        """A trial; no while there are none left."""
        if self.trials == MOST_TRIALS:
            return False
        self.trials += 1
        names = [*self.accepted, *names]
        trial = {name: self.rounded[name] for name in names}
        return self.is_same(_change(self.model, trial, self.constants))


def _change(
    model: LightModel, rounded: Mapping[str, StoredTensor], constants: Mapping[str, Constant]
) -> Source:
    """The model with some tensors rounded, as ``restore`` would give it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model.proto)
    light_model = LightModel(copy, dict(model.weights))
    tensors = _large_tensors(copy)
    for name, entry in rounded.items():
        tensor, template = tensors[name], onnx.TensorProto()
        template.CopyFrom(tensor)
        template.raw_data = entry.data
        light_model.replace(name, tensor, _elements(template, entry.place, constants))
    return Source(copy, weights=light_model.weights)


def show(proto: onnx.ModelProto, graphs: Iterable[Graph]) -> set[str]:
    """Names of values that float Constants of the graphs were computed from at import: these have
    the names of the model's values.  Others, which passes make, may have any part of a weight.
    """
    reads, names = _tensor_readers(proto), set[str]()
    for graph in graphs:
        nodes = list(graph.every_node())
        constants = (n for n in nodes if isinstance(n, Constant) and n.type.dtype.is_float)
        names |= _ancestors((node.name for node in constants if node.name in reads), reads)
    return names


def may_show_rounding(source: Source, graph: Graph, decided: Iterable[Graph]) -> bool:
    """Whether a graph may differ from that of the model that a file has.

    Constants that graphs which were decided on have, too, are those of the file.  Others are
    computed from weights that may be rounded, unless the values that they are named by do not
    depend on such weights.  Names of values in bodies do not tell.
    """
    if any(each.HasField("g") for node in source.proto.graph.node for each in node.attribute):
        return True
    stored = {content_key(array) for each in decided for array in constant_arrays(each)}
    constants = (node for node in graph.every_node() if isinstance(node, Constant))
    new = [node.name for node in constants if content_key(node.value) not in stored]
    if not new:
        return False
    reads, rounded = _tensor_readers(source.proto), set(_weight_names(source.proto))
    names = [_value_name(name, reads) for name in new]
    return "" in names or not rounded.isdisjoint(_ancestors(names, reads))


def _value_name(name: str, values: Container[str]) -> str:
    """The value of a model by which a pass named a constant (``value:part``); empty if unknown."""
    while name and name not in values:
        name = name.rpartition(":")[0]
    return name


def _ancestors(values: Iterable[str], reads: Mapping[str, frozenset[str]]) -> set[str]:
    """Values and all that they are computed from."""
    names = set(values)
    waiting = list(names)
    while waiting:
        new = reads.get(waiting.pop(), frozenset()) - names
        names |= new
        waiting.extend(new)
    return names


def _tensor_readers(proto: onnx.ModelProto) -> dict[str, frozenset[str]]:
    """The values of a model, each with those that its node and the subgraphs of it read."""
    reads: dict[str, frozenset[str]] = {t.name: frozenset() for t in proto.graph.initializer}
    for node in all_nodes(proto.graph.node):
        inner = (
            () if node.op_type in SIZES else (n for each in all_nodes([node]) for n in each.input)
        )
        reads.update(dict.fromkeys(node.output, frozenset(inner)))
    return reads
