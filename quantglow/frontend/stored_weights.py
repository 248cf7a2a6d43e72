"""A model in a file, beside the graph compiled from it: weights that the graph has are stored once.

==========  =========================================  ==================================
place       what the model's file has of a tensor      the tensor
==========  =========================================  ==================================
``graph``   nothing                                    a constant of the graph, transposed
``axis``    int8 codes, then float32 scales of an      codes times scales
            axis
(none)      the tensor                                 itself
==========  =========================================  ==================================

A constant of int8 differs from the tensor it was rounded from, as codes do.  They may stand for it
where the graphs that were decided on do not show the difference, because the quantizer's own
integers take its place: the caller's ``is_same`` tells.  Graphs for further shapes may show it, so
a model that was just quantized imports them from what ``restored`` gives, too (``driver.origins``).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from quantglow.frontend.loading import decoded
from quantglow.frontend.proto import all_nodes
from quantglow.frontend.source import Source, open_model
from quantglow.frontend.values import array_of
from quantglow.graph.node import Constant
from quantglow.types import Array

LEAST_NBYTES = 4096
"""Smaller tensors stay as they are."""

MOST_TRIALS = 24
"""Imports that are made to find out which tensors may be rounded."""

MOST_STEPS = 3
"""Further apart, a constant of int8 was not rounded from a tensor."""

MOST_AXES = 4
"""Maximum number of axes of tensors that are looked for in all their layouts."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
MOVES = frozenset(
    {"Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)

FLOATS: dict[int, str] = {onnx.TensorProto.FLOAT: "<f4", onnx.TensorProto.FLOAT16: "<f2"}
"""Element types of the tensors that are looked for."""

Place = dict[str, Any]
Places = dict[str, Place]
"""Tensor name -> where it is; as ``json`` writes it."""


def stored(
    model: bytes, constants: Sequence[Constant], is_same: Callable[[Source], bool] | None
) -> tuple[bytes, Places]:
    """A model as a file has it beside these constants.

    ``is_same`` says whether another model gives the same graphs; None: nothing may be rounded.
    """
    proto = onnx.ModelProto.FromString(model)
    tensors = {name: widened(tensor) for name, tensor in large_tensors(proto).items()}
    places = {n: p for n, array in tensors.items() if (p := exact_place(array, constants))}
    if is_same is not None:
        rest = [name for name in weights_of(proto) if name in tensors and name not in places]
        rounded = {name: rounded_place(tensors[name], constants) for name in rest}
        places |= roundable(proto, rounded, tensors, constants, is_same)
    for name, tensor in large_tensors(proto).items():
        if name in places:
            is_known = "graph" in places[name]
            replace_data(tensor, b"" if is_known else codes(tensors[name], places[name]))
    return bytes(proto.SerializeToString(deterministic=True)), places


def restored(data: bytes, places: Mapping[str, Place], constants: Sequence[Constant]) -> Source:
    """The model that ``stored`` wrote.  Raises ``ModelError``, ``KeyError``, ``TypeError`` or
    ``ValueError``.
    """
    proto = decoded(data, "the source of the saved model")
    tensors, known = all_float_tensors(proto), {c.name: c for c in constants}
    for name, place in places.items():
        replace_data(tensors[name], elements(tensors[name], place, known))
    return open_model(proto)


def widened(tensor: onnx.TensorProto) -> Array:
    """The tensor as float32, which holds every float16."""
    return np.asarray(array_of(tensor), np.float32)


def replace_data(tensor: onnx.TensorProto, data: bytes) -> None:
    """Give a tensor other data, wherever it had its own: files of version 2 may have both."""
    tensor.ClearField("float_data")
    tensor.ClearField("int32_data")  # of float16
    tensor.raw_data = data


def elements(tensor: onnx.TensorProto, place: Place, constants: Mapping[str, Constant]) -> bytes:
    """``content`` in the type of the tensor.  Raises as that does."""
    return content(tensor, place, constants).astype(FLOATS[tensor.data_type]).tobytes()


def content(tensor: onnx.TensorProto, place: Place, constants: Mapping[str, Constant]) -> Array:
    """The elements of a tensor.  Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    dims = tuple(tensor.dims)
    if "graph" in place:
        found = reals(constants[place["graph"]])
        perm = [int(axis) for axis in place["perm"]]
        if sorted(perm) != list(range(len(dims))) or found.size != math.prod(dims):
            raise ValueError(f"tensor {tensor.name!r} is not the constant it is said to be")
        moved = found.reshape([dims[axis] for axis in perm])
        return np.ascontiguousarray(moved.transpose(np.argsort(perm)))
    axis, size = int(place["axis"]), math.prod(dims)
    if not 0 <= axis < len(dims) or len(tensor.raw_data) != size + 4 * dims[axis]:
        raise ValueError(f"the codes of tensor {tensor.name!r} are not whole")
    integers = np.frombuffer(tensor.raw_data[:size], np.int8).reshape(dims)
    scales = np.frombuffer(tensor.raw_data[size:], "<f4")
    return np.asarray(integers * along(scales, axis, len(dims)), np.float32)


def all_float_tensors(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Initializers and Constants of ``FLOATS``, by the names of values; none that occur twice."""
    found = [(tensor.name, tensor) for tensor in proto.graph.initializer]
    for node in all_nodes(proto.graph.node):
        if node.op_type == "Constant" and not node.domain:
            found += [(node.output[0], a.t) for a in node.attribute if a.name == "value"]
    counts = Counter(name for name, _ in found)
    return {n: t for n, t in found if counts[n] == 1 and t.data_type in FLOATS}


def large_tensors(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Float tensors that are large enough to be worth a look."""
    found = all_float_tensors(proto).items()
    return {n: t for n, t in found if 4 * math.prod(t.dims) >= LEAST_NBYTES and len(t.dims) > 1}


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


def exact_place(array: Array, constants: Sequence[Constant]) -> Place | None:
    """The place of the tensor in the graph, None if it does not."""
    for constant in constants:
        if constant.value.dtype == array.dtype and constant.value.size == array.size:
            flat = constant.value.reshape(-1)
            for perm in orders(array):
                if agree(array.transpose(perm), flat, None):
                    return {"graph": constant.name, "perm": list(perm)}
    return None


def rounded_place(array: Array, constants: Sequence[Constant]) -> Place:
    """The constant of int8 that was rounded from a tensor, else the axis for codes of its own."""
    for constant in constants:
        if constant.value.dtype == np.int8 and constant.value.size == array.size:
            values, steps = reals(constant).reshape(-1), steps_of(constant).reshape(-1)
            for perm in orders(array):
                if agree(array.transpose(perm), values, MOST_STEPS * steps):
                    return {"graph": constant.name, "perm": list(perm)}
    errors = [np.square(array - with_codes(array, axis)).sum() for axis in range(array.ndim)]
    return {"axis": int(np.argmin(errors))}


def orders(array: Array) -> Iterable[tuple[int, ...]]:
    """Orders of the axes in a layout of weights."""
    axes = tuple(range(array.ndim))
    return itertools.permutations(axes) if array.ndim <= MOST_AXES else [axes]


def agree(moved: Array, flat: Array, allowed: Array | None) -> bool:
    """Whether a tensor equals other elements, each up to what is allowed (None: its bits)."""
    few = min(64, flat.size)
    for count in (few, flat.size):
        mine, other = moved.reshape(-1)[:count], flat[:count]
        if allowed is None and mine.tobytes() != other.tobytes():
            return False
        if allowed is not None and not (np.abs(mine - other) <= allowed[:count]).all():
            return False
    return True


def reals(constant: Constant) -> Array:
    """The real values of a constant, as float32.  Raises ``ValueError`` for other types."""
    if constant.type.quant is None and constant.value.dtype == np.float32:
        return constant.value
    if constant.value.dtype != np.int8:
        raise ValueError(f"constant {constant.name!r} is {constant.type}")
    return np.asarray(constant.value * steps_of(constant), np.float32)


def steps_of(constant: Constant) -> Array:
    """The scale of each element."""
    quant, shape = constant.type.quant, constant.value.shape
    if quant is None:
        return np.ones(shape, np.float32)
    scales = np.asarray(quant.scales, np.float32)
    axis = quant.axis
    return np.broadcast_to(scales if axis is None else along(scales, axis, len(shape)), shape)


def along(vector: Array, axis: int, rank: int) -> Array:
    """The vector along one axis of a tensor."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


def scales_of(array: Array, axis: int) -> Array:
    """float32 [n]: the largest magnitude is 127 steps."""
    others = tuple(i for i in range(array.ndim) if i != axis)
    reach = np.abs(array).max(axis=others).astype(np.float32)
    return np.asarray(np.where(reach > 0, reach / np.float32(127), 1), np.float32)


def integers_of(array: Array, axis: int) -> Array:
    scales = along(scales_of(array, axis), axis, array.ndim)
    return np.clip(np.rint(array / scales), -127, 127).astype(np.int8)


def with_codes(array: Array, axis: int) -> Array:
    """The tensor as its codes have it."""
    scales = along(scales_of(array, axis), axis, array.ndim)
    return np.asarray(integers_of(array, axis) * scales, np.float32)


def codes(array: Array, place: Place) -> bytes:
    """The codes along an axis, then their scales."""
    axis = place["axis"]
    return integers_of(array, axis).tobytes() + scales_of(array, axis).astype("<f4").tobytes()


def roundable(
    proto: onnx.ModelProto,
    places: Places,
    tensors: Mapping[str, Array],
    constants: Sequence[Constant],
    is_same: Callable[[Source], bool],
) -> Places:
    """The tensors that may all be rounded."""
    search = Search(proto, places, tensors, {c.name: c for c in constants}, is_same)
    search.visit(list(places))
    return {name: places[name] for name in search.kept}


@dataclass
class Search:
    """The tensors that may all be rounded: ``kept``, found by halves in ``MOST_TRIALS`` imports."""

    proto: onnx.ModelProto
    places: Places
    tensors: Mapping[str, Array]
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
        return self.is_same(changed(self.proto, names, self.places, self.tensors, self.constants))


def changed(
    proto: onnx.ModelProto,
    names: Sequence[str],
    places: Places,
    tensors: Mapping[str, Array],
    constants: Mapping[str, Constant],
) -> Source:
    """The model with some tensors rounded, as ``restored`` would give it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    found = large_tensors(copy)
    for name in names:
        place, tensor = places[name], found[name]
        replace_data(tensor, b"" if "graph" in place else codes(tensors[name], place))
        replace_data(tensor, elements(tensor, place, constants))
    return Source(copy)
