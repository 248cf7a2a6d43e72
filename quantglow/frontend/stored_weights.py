"""A model in a file, beside the graph compiled from it: weights that the graph has are stored once.

``weight_places`` has the ways in which a file can have a tensor.

A constant of int8 differs from the tensor it was rounded from, as codes do.  They may stand for it
where the graphs that were decided on do not show the difference, because the quantizer's own
integers take its place: the caller's ``is_same`` tells.  Graphs for further shapes may show it, so
a model that was just quantized imports them from what ``restored`` gives, too (``driver.origins``).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from quantglow.frontend.loading import decoded
from quantglow.frontend.proto import all_nodes
from quantglow.frontend.source import Source, open_model
from quantglow.frontend.values import array_of
from quantglow.frontend.weight_places import (
    Kept,
    Known,
    Place,
    Places,
    codes_of_graph,
    codes_place,
    content,
    exact_place,
    rounded_place,
)
from quantglow.graph.node import Constant
from quantglow.pages import Data
from quantglow.types import Array

LEAST_NBYTES = 1024
"""Smaller tensors stay as they are."""

MOST_TRIALS = 24
"""Imports that are made to find out which tensors may be rounded."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
MOVES = frozenset(
    {"Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)

FLOATS: dict[int, str] = {onnx.TensorProto.FLOAT: "<f4", onnx.TensorProto.FLOAT16: "<f2"}
"""Element types of the tensors that are looked for."""

CODES = frozenset({onnx.TensorProto.UINT8})
"""The same for packed codes of weights in groups."""


def stored(
    model: bytes, constants: Sequence[Constant], is_same: Callable[[Source], bool] | None
) -> tuple[bytes, Places]:
    """A model as a file has it beside these constants.

    ``is_same`` says whether another model gives the same graphs; None: nothing may be rounded.
    """
    proto, known = onnx.ModelProto.FromString(model), Known.of(constants)
    tensors = {name: widened(tensor) for name, tensor in large_tensors(proto).items()}
    kept = {n: found for n, array in tensors.items() if (found := exact_place(array, known))}
    if is_same is not None:
        rest = [name for name in weights_of(proto) if name in tensors and name not in kept]
        rounded = {name: rounded_place(tensors[name], known) for name in rest}
        kept |= roundable(proto, rounded, known.by_name, is_same)
    kept |= {n: found for n, t in large_codes(proto).items() if (found := codes_place(t, known))}
    for name, tensor in {**large_tensors(proto), **large_codes(proto)}.items():
        if name in kept:
            replace_data(tensor, kept[name].data)
    data = bytes(proto.SerializeToString(deterministic=True))
    return data, {name: found.place for name, found in kept.items()}


def restored(data: Data, places: Mapping[str, Place], constants: Sequence[Constant]) -> Source:
    """The model that ``stored`` wrote.  Raises ``ModelError``, ``KeyError``, ``TypeError`` or
    ``ValueError``.
    """
    proto = decoded(bytes(data), "the source of the saved model")
    tensors, known = tensors_of(proto, FLOATS), {c.name: c for c in constants}
    codes = tensors_of(proto, CODES)
    for name, place in places.items():
        if "codes" in place:
            replace_data(codes[name], codes_of_graph(tuple(codes[name].dims), place, known))
            continue
        kept = Kept(place, tensors[name].raw_data)
        replace_data(tensors[name], elements(tensors[name], kept, known))
    return open_model(proto)


def widened(tensor: onnx.TensorProto) -> Array:
    """The tensor as float32, which holds every float16."""
    return np.asarray(array_of(tensor), np.float32)


def replace_data(tensor: onnx.TensorProto, data: bytes) -> None:
    """Give a tensor other data, wherever it had its own: files of version 2 may have both."""
    tensor.ClearField("float_data")
    tensor.ClearField("int32_data")  # float16 elements
    tensor.raw_data = data


def elements(tensor: onnx.TensorProto, kept: Kept, known: Mapping[str, Constant]) -> bytes:
    """``content`` in the type of the tensor.  Raises as that does."""
    try:
        found = content(tuple(tensor.dims), kept, known)
    except ValueError as error:
        raise ValueError(f"tensor {tensor.name!r}: {error}") from None
    return found.astype(FLOATS[tensor.data_type]).tobytes()


def tensors_of(proto: onnx.ModelProto, kinds: Container[int]) -> dict[str, onnx.TensorProto]:
    """Initializers and Constants of some element types, by the names of values; none that occur
    twice."""
    found = [(tensor.name, tensor) for tensor in proto.graph.initializer]
    for node in all_nodes(proto.graph.node):
        if node.op_type == "Constant" and not node.domain:
            found += [(node.output[0], a.t) for a in node.attribute if a.name == "value"]
    counts = Counter(name for name, _ in found)
    return {n: t for n, t in found if counts[n] == 1 and t.data_type in kinds}


def large_tensors(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Float tensors that are large enough to be worth a look."""
    found = tensors_of(proto, FLOATS).items()
    return {n: t for n, t in found if 4 * math.prod(t.dims) >= LEAST_NBYTES and len(t.dims) > 1}


def large_codes(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Packed codes of weights that are large enough to be worth a look."""
    found = tensors_of(proto, CODES).items()
    return {n: t for n, t in found if math.prod(t.dims) >= LEAST_NBYTES}


def weights_of(proto: onnx.ModelProto) -> Iterator[str]:
    """Names of values that only products read as weights, where they are only moved before."""
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
    for node in all_nodes(proto.graph.node):
        for position, name in enumerate(node.input):
            readers[name].append((node, position))
    ends = {output.name for output in proto.graph.output}

    def is_weight(name: str, depth: int = 0) -> bool:
        found = readers[name]
        return (
            bool(found)
            and name not in ends
            and depth < 8
            and all(
                (node.op_type in PRODUCTS and position > 0)
                or (node.op_type in MOVES and all(is_weight(n, depth + 1) for n in node.output))
                for node, position in found
            )
        )

    yield from filter(is_weight, large_tensors(proto))


def roundable(
    proto: onnx.ModelProto,
    rounded: Mapping[str, Kept],
    constants: Mapping[str, Constant],
    is_same: Callable[[Source], bool],
) -> dict[str, Kept]:
    """The tensors that may all be rounded."""
    search = Search(proto, rounded, constants, is_same)
    search.visit(list(rounded))
    return {name: rounded[name] for name in search.kept}


@dataclass
class Search:
    """The tensors that may all be rounded: ``kept``, found by halves in ``MOST_TRIALS`` imports."""

    proto: onnx.ModelProto
    rounded: Mapping[str, Kept]
    constants: Mapping[str, Constant]
    is_same: Callable[[Source], bool]
    kept: list[str] = field(default_factory=list)
    trials: int = 0

    def visit(self, names: list[str], fails: bool = False) -> bool:
        """Keep what may be rounded of these tensors; whether that is all of them.

        ``fails``: not all can be, which is known without a trial.
        """
        if not names or (not fails and self._may_all_be_rounded(names)):
            self.kept += names
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
        names = [*self.kept, *names]
        kept = {name: self.rounded[name] for name in names}
        return self.is_same(changed(self.proto, kept, self.constants))


def changed(
    proto: onnx.ModelProto, kept: Mapping[str, Kept], constants: Mapping[str, Constant]
) -> Source:
    """The model with some tensors rounded, as ``restored`` would give it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    found = large_tensors(copy)
    for name, place in kept.items():
        replace_data(found[name], elements(found[name], place, constants))
    return Source(copy)
