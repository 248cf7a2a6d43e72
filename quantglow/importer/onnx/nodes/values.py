"""Meanings of ONNX value names while a model is imported, and origins of nodes.

A name stands for a node of the graph, for a value that is known at import, or for integers that are
codes of reals.  The origin of an ONNX node is the name by which the user knows it, and the calls of
local functions that it was inlined from.  These are in its metadata; a file may have such metadata
of its own, which gives its nodes other names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from quantglow.ir.graph.node import Node
from quantglow.ir.graph.origins import Origin
from quantglow.ir.ops.groupwise import PackedWeights, unpack_codes
from quantglow.ir.symbolic.size import Dim, Shape
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array
from quantglow.support.errors import ModelError, UnsupportedOpError

KEY = "quantglow.calls"
"""Key of the metadata with the calls around a node: name, operator, domain and results of each."""

Layout = Callable[[Array], Array]
"""Moves the elements of an array, whatever they are."""

OTHER_FLOATS: dict[int, str] = {
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
"""Float types that are computed as float32, by NumPy's names."""

_FLOATS = frozenset({onnx.TensorProto.FLOAT, *OTHER_FLOATS})


@dataclass(frozen=True, eq=False)
class KnownValue:
    """A value of any ONNX type that is known at import; enters the graph when an op reads it."""

    name: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def onnx_type(self) -> int:
        """The ``TensorProto`` element type."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype))


@dataclass(frozen=True, eq=False)
class KnownSizes(KnownValue):
    """Known integers, some of which are free sizes; ``array`` is one of objects."""

    @property
    def onnx_type(self) -> int:
        return int(onnx.TensorProto.INT64)

    def fixed(self) -> KnownValue:
        """The integers of the shape at hand, which become the only ones."""
        return KnownValue(self.name, self.array.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Coded(KnownValue):
    """Known integers behind DequantizeLinear: ``array = (codes - zero_points) * scales``.

    ``scales`` and ``_zero_points`` have the shape of the codes, so that they move with them.
    """

    codes: Array
    scales: Array
    zero_points: Array

    def laid_out(self, layout: Layout) -> Coded:
        """The same elements in another order."""
        parts = (self.array, self.codes, self.scales, self.zero_points)
        return Coded(self.name, *(np.asarray(layout(part)) for part in parts))

    def times(self, factor: float) -> Coded | None:
        """The same integers with other scales; None where scales cannot be so."""
        with np.errstate(over="ignore"):
            scales, reals = (a * np.float32(factor) for a in (self.scales, self.array))
        is_scale = np.isfinite(scales) & (scales > 0)
        return replace(self, array=reals, scales=scales) if is_scale.all() else None

    def runs(self) -> tuple[int, int]:
        """The axis along which the longest runs of elements share their parameters, and their
        length.
        """
        lengths = [_run_length(self.scales, self.zero_points, a) for a in range(self.codes.ndim)]
        return int(np.argmax(lengths)), max(lengths)

    def element(self) -> ElementType | None:
        """The element type of the codes; None if no axis has all the parameters."""
        for axis in (None, *range(self.codes.ndim)):
            scales, zero_points = (_along(a, axis) for a in (self.scales, self.zero_points))
            if scales is not None and zero_points is not None:
                params = QuantParams(flat(scales), flat(zero_points), axis)
                return ElementType(DType.of(self.codes), params)
        return None


@dataclass(frozen=True, eq=False)
class Blocked(KnownValue):
    """A known matrix behind a DequantizeLinear of blocks along ``depth_axis``, as weights that a
    product with packed codes takes."""

    packed: PackedWeights
    depth_axis: int

    def transposed(self, name: str) -> Blocked:
        """The matrix with its axes exchanged."""
        return Blocked(name, self.array.T, self.packed, 1 - self.depth_axis)

    def coded(self) -> Coded:
        """The matrix with parameters for each element, for readers without packed codes."""
        packed, shape = self.packed, self.shape if self.depth_axis else self.shape[::-1]
        middle = 2 ** (packed.bits - 1)
        points = np.full(packed.scales.shape, 0)
        if packed.zero_points is not None:
            points = packed.zero_points.astype(np.int32) - middle
        codes = unpack_codes(packed.codes, packed.bits).astype(np.int32) - middle
        spread = (np.broadcast_to(a[..., None], codes.shape) for a in (packed.scales, points))
        parts = (a.reshape(len(a), -1)[:, : shape[1]] for a in (codes.astype(np.int8), *spread))
        return Coded(self.name, self.array, *(a if self.depth_axis else a.T for a in parts))


def _run_length(scales: Array, zero_points: Array, axis: int) -> int:
    """The longest length that divides the axis into runs of equal parameters."""
    size = scales.shape[axis]
    others = tuple(i for i in range(scales.ndim) if i != axis)
    differs = [(np.diff(array, axis=axis) != 0).any(axis=others) for array in (scales, zero_points)]
    return math.gcd(size, *(np.flatnonzero(differs[0] | differs[1]) + 1).tolist())


def flat(array: Array) -> tuple[Any, ...]:
    """The elements as Python numbers."""
    return tuple(array.reshape(-1).tolist())


def _along(array: Array, axis: int | None) -> Array | None:
    """The values along the axis (None: the one value), if they vary along no other."""
    first = tuple(slice(None) if i == axis else slice(0, 1) for i in range(array.ndim))
    vector = array[first]
    # Broadcasting repeats values: one of these is enough.
    distinct = array[tuple(slice(None) if stride else slice(0, 1) for stride in array.strides)]
    return vector if (vector == distinct).all() else None


@dataclass(frozen=True, eq=False)
class IntegerValue:
    """Run-time integers: the codes of a quantized node plus ``offset``, as ``onnx_type``.

    The graph speaks int8: uint8 activations are kept 128 lower, which loses nothing.
    """

    node: Node
    offset: int
    onnx_type: int

    @property
    def shape(self) -> Shape:
        return self.node.type.shape

    @property
    def is_stored(self) -> bool:
        """Whether the node stores the integers as they are."""
        return self.offset == 0 and graph_dtype(self.onnx_type) is self.node.type.dtype


@dataclass(frozen=True, eq=False)
class Foreign:
    """A run-time value the graph cannot hold (of another type, or of a node that was refused).

    ``reported`` tells that the cause is already among the problems of the model.
    """

    onnx_type: int
    shape: Shape | None
    reported: bool

    @property
    def kind(self) -> str:
        """The element type in words."""
        return type_in_words(self.onnx_type)


@dataclass(frozen=True, eq=False)
class ObjectValue:
    """A run-time value that only other runtimes compute with: strings, a sequence, an optional, a
    map, or a tensor whose rank or element type no graph holds.

    ``declared`` is its ONNX type, without the sizes that are free; ``inner``: those of the tensors
    in a sequence or optional, free ones too, None for open ones.
    """

    node: Node
    declared: onnx.TypeProto
    inner: tuple[Dim | None, ...] = ()

    @property
    def is_late(self) -> bool:
        """Whether it is a tensor whose shape is known when it is there."""
        return self.shape is None and not is_container(self.declared)

    @property
    def sizes(self) -> Iterator[Dim]:
        """The sizes on which its type depends."""
        yield from (size for size in self.shape or self.inner if size is not None)

    @property
    def onnx_type(self) -> int:
        """The ``TensorProto`` element type, undefined where it is no tensor."""
        return int(self.declared.tensor_type.elem_type)

    @property
    def shape(self) -> Shape | None:
        """The shape of strings; other values have none."""
        return self.node.type.shape if self.node.type.dtype is DType.STRING else None

    @property
    def kind(self) -> str:
        """The type in words."""
        return type_text(self.declared)


@dataclass(frozen=True, eq=False)
class ItemsValue:
    """A sequence or optional of which each item is a value of the model: ``items`` are their names,
    none for an optional without an element.

    ``maker`` makes it of them, for a reader that takes it as it is.
    """

    maker: onnx.NodeProto
    items: tuple[str, ...]
    onnx_type: int = int(onnx.TensorProto.UNDEFINED)
    shape: None = None

    @property
    def kind(self) -> str:
        """The type in words."""
        return "an optional" if self.maker.op_type == "Optional" else "a sequence"


Value = Node | KnownValue | Foreign | IntegerValue | ObjectValue | ItemsValue


def is_container(declared: onnx.TypeProto) -> bool:
    """Whether an ONNX type is one of sequences, optionals or maps."""
    return declared.WhichOneof("value") not in (None, "tensor_type")


def inner_tensor(declared: onnx.TypeProto) -> onnx.TypeProto.Tensor | None:
    """The type of the tensors in a sequence or an optional; None where it has a map."""
    while not declared.HasField("tensor_type"):
        match declared.WhichOneof("value"):
            case "sequence_type":
                declared = declared.sequence_type.elem_type
            case "optional_type":
                declared = declared.optional_type.elem_type
            case _:
                return None
    return declared.tensor_type


def with_inner_sizes(declared: onnx.TypeProto, sizes: Sequence[Dim | None]) -> onnx.TypeProto:
    """The type of a sequence or optional with these sizes of the tensors in it; those that are not
    plain integers stay open."""
    copy = onnx.TypeProto()
    copy.CopyFrom(declared)
    tensor = inner_tensor(copy)
    for dim, size in zip(tensor.shape.dim if tensor else (), sizes, strict=True):
        dim.Clear()
        if isinstance(size, int):
            dim.dim_value = size
    return copy


def type_text(declared: onnx.TypeProto) -> str:
    """An ONNX type as onnxruntime writes it: ``seq(map(string,tensor(float)))``."""
    match declared.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({type_in_words(declared.tensor_type.elem_type)})"
        case "sequence_type":
            return f"seq({type_text(declared.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(declared.optional_type.elem_type)})"
        case "map_type":
            key = type_in_words(declared.map_type.key_type)
            return f"map({key},{type_text(declared.map_type.value_type)})"
    return "no type that quantglow knows"


_TYPE_TEXT = re.compile(r"(tensor|seq|optional)\((.+)\)")


def type_of_text(text: str) -> onnx.TypeProto | None:
    """The type without shapes that onnxruntime writes so; None for maps, and for unknown types."""
    match = _TYPE_TEXT.fullmatch(text)
    if match is None:
        return None
    kind, inner = match.groups()
    if kind == "tensor":
        element = getattr(onnx.TensorProto, inner.upper(), None)
        if element is None:
            return None
        return onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=element))
    item = type_of_text(inner)
    if item is None:
        return None
    if kind == "seq":
        return onnx.TypeProto(sequence_type=onnx.TypeProto.Sequence(elem_type=item))
    return onnx.TypeProto(optional_type=onnx.TypeProto.Optional(elem_type=item))


def element_in_words(value: Value) -> str:
    """The element type of a value, or its type where it is no tensor, for messages."""
    if isinstance(value, ObjectValue | ItemsValue) and value.shape is None:
        return value.kind
    return type_in_words(value_onnx_type(value))


def type_in_words(onnx_type: int) -> str:
    """``float``, ``int64``, …"""
    if onnx_type not in onnx.helper.get_all_tensor_dtypes():
        return f"of type {onnx_type}, which ONNX does not have"
    return str(onnx.helper.tensor_dtype_to_string(onnx_type)).split(".")[-1].lower()


def tensor_array(tensor: onnx.TensorProto) -> Array:
    """The array that a tensor of a model holds.  Raises ``ModelError``."""
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as e:
        raise ModelError(
            f"tensor {tensor.name!r} is malformed: {e}. Remedy: export or copy the model again."
        ) from None


def value_shape(value: Value) -> Shape | None:
    """The shape of a value, None if unknown."""
    return value.type.shape if isinstance(value, Node) else value.shape


def value_onnx_type(value: Value) -> int:
    """The ``TensorProto`` element type; every float, as reals in codes, is float32 in the graph."""
    if not isinstance(value, Node):
        return value.onnx_type
    return _ONNX_TYPES[DType.F32 if value.type.quant else value.type.dtype]


def graph_dtype(onnx_type: int) -> DType | None:
    """The element type with which the graph computes values of an ONNX type, None if with none."""
    return DType.F32 if is_float_type(onnx_type) else _DTYPES.get(onnx_type)


def is_float_type(onnx_type: int) -> bool:
    """Whether values of the ONNX element type are computed as float32."""
    return onnx_type in _FLOATS


_ONNX_TYPES: dict[DType, int] = {
    dtype: int(onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy))
    for dtype in DType
    if not dtype.is_object
}
_DTYPES = {onnx_type: dtype for dtype, onnx_type in _ONNX_TYPES.items()}


def as_element(array: Array) -> Array:
    """The array as a graph Constant holds it: floats as float32."""
    is_float = is_float_type(int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype)))
    return as_float32(array) if is_float else np.ascontiguousarray(array).reshape(array.shape)


def held_dtype(onnx_type: int) -> DType | None:
    """The element type of tensors in the graph, also where it does not compute with them."""
    return DType.STRING if onnx_type == onnx.TensorProto.STRING else graph_dtype(onnx_type)


def supported_dtype(name: str, onnx_type: int) -> DType:
    """Element type in which values of an ONNX type are fed.  Raises ``UnsupportedOpError``."""
    dtype = held_dtype(onnx_type)
    if dtype is None:
        kind = type_in_words(onnx_type)
        raise UnsupportedOpError([f"{name!r} holds elements of type {kind}; quantglow has none"])
    return dtype


def as_float32(array: Array) -> Array:
    """A contiguous float32 copy (or the array itself); what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32).reshape(array.shape)


def node_origin(proto: onnx.NodeProto, outer: Origin | None) -> Origin:
    """The node, in the calls that it was inlined from, and in ``outer``, the node whose subgraph it
    is in."""
    # Without what they are in themselves: hashes of nested ones double with each level.
    outside = (replace(outer, inside=()), *outer.inside) if outer else ()
    around = (*_calls_around(proto), *outside)
    results = tuple(filter(None, proto.output))
    return Origin(proto.name, proto.op_type, proto.domain, results, around)


def note_calls(node: onnx.NodeProto, calls: Iterable[onnx.NodeProto]) -> None:
    """Write down which calls a node is from, the innermost first."""
    *inner, outermost = calls
    # Values inside of functions have names of their own, which the model may use for others.
    texts = [[call.name, call.op_type, call.domain] for call in inner]
    texts.append([outermost.name, outermost.op_type, outermost.domain, *outermost.output])
    node.metadata_props.add(key=KEY, value=json.dumps(texts))


def _calls_around(node: onnx.NodeProto) -> tuple[Origin, ...]:
    """The calls that were noted, the innermost first."""
    notes = [entry.value for entry in node.metadata_props if entry.key == KEY]
    try:
        entries = json.loads(notes[-1]) if notes else []
        texts = [[str(text) for text in entry] for entry in entries]
        return tuple(
            Origin(name, kind, domain, tuple(results)) for name, kind, domain, *results in texts
        )
    except (ValueError, TypeError, RecursionError):
        return ()  # metadata of the file itself
