"""Signatures: declared inputs and outputs, and conversion of arrays to declared types.

Declarations hold before free dimensions are known.  Inputs and outputs of other float types are
computed as float32: arrays are converted where they enter and leave a compiled model; graphs,
profiles and programs know float32 only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np

from quantglow.ir.symbolic.size import FixedShape, fixed
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array, unbox
from quantglow.support.errors import InputError

PortDim = int | str | None
"""A fixed size, a symbol that dimensions may share, or None for a free dimension without a name."""

DECLARED = ("float16", "float64", "bfloat16")
"""Float types that inputs and outputs may have besides float32, by NumPy's names."""

_ONNX_TYPES = {
    DType.F32: "tensor(float)",
    DType.I8: "tensor(int8)",
    DType.U8: "tensor(uint8)",
    DType.I16: "tensor(int16)",
    DType.I32: "tensor(int32)",
    DType.I64: "tensor(int64)",
    DType.BOOL: "tensor(bool)",
    DType.STRING: "tensor(string)",
}
_DECLARED_TYPES = {kind: f"tensor({kind})" for kind in DECLARED} | {"float64": "tensor(double)"}

_OPAQUE = re.compile(r"(?:tensor|seq|optional|map)\([\w(),]{1,200}\)")

Shapes = Mapping[str, FixedShape]
"""Input name -> shape."""

BFLOAT16 = "bfloat16"


def may_declare(dtype: DType, declared: str) -> bool:
    """Whether an input or output of an element type may be declared so: as another float type, or
    as the type of an opaque value in onnxruntime's words, ``seq(tensor(float))``."""
    if dtype is DType.OPAQUE:
        return _OPAQUE.fullmatch(declared) is not None
    return not declared or (declared in DECLARED and dtype.is_float)


def is_late(declared: str) -> bool:
    """Whether an opaque value of a declared type is a tensor, whose shape is known late."""
    return declared.startswith("tensor(")


def is_symbol(dim: PortDim) -> bool:
    """Whether equal dimensions share a size; some exporters name every unknown one ``?``."""
    return isinstance(dim, str) and bool(dim.strip("?"))


@dataclass(frozen=True)
class Port:
    """One input or output.

    ``dims`` is None if not even their number is known.  ``declared`` is the float type that the
    model declares (one of ``DECLARED``) if it is not ``dtype``, and the type of an opaque value;
    see ``entering`` and ``leaving``.
    """

    name: str
    dtype: DType
    dims: tuple[PortDim, ...] | None
    declared: str = ""

    @staticmethod
    def of(name: str, kind: TensorType, declared: Mapping[str, str]) -> Port:
        """The port of a tensor of known shape; ``declared`` has types by name."""
        has_other = kind.dtype is DType.OPAQUE or (kind.dtype.is_float and kind.quant is None)
        text = declared.get(name, "") * has_other
        return Port(name, kind.dtype, None if is_late(text) else fixed(kind.shape), text)

    @property
    def onnx_type(self) -> str:
        """The type in onnxruntime's words, ``tensor(float)``."""
        kind = _ONNX_TYPES.get(self.dtype, self.declared)
        return _DECLARED_TYPES.get(self.declared, kind)

    @property
    def is_free(self) -> bool:
        """Whether the shape may change from call to call."""
        return self.dims is None or not all(isinstance(dim, int) for dim in self.dims)

    @property
    def default(self) -> FixedShape | None:
        """The shape, with 1 for a free first dimension; None if other dimensions are free."""
        return self.with_batch(1)

    def with_batch(self, batch: int) -> FixedShape | None:
        """The shape with this size of a free first dimension; None if other ones are free."""
        if self.dims is None:
            return None
        is_batch_free = bool(self.dims) and not isinstance(self.dims[0], int)
        dims = (batch, *self.dims[1:]) if is_batch_free else self.dims
        sizes = tuple(dim for dim in dims if isinstance(dim, int))
        return sizes if len(sizes) == len(dims) else None

    def __str__(self) -> str:
        return dims_text(self.dims)


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def is_free(self) -> bool:
        """Whether any input has a free dimension."""
        return any(port.is_free for port in self.inputs)

    @property
    def default(self) -> Shapes | None:
        """The shapes with batches of 1 if only batches are free; else None."""
        return self.with_batch(1)

    def with_batch(self, batch: int) -> Shapes | None:
        """The shapes with batches of this size if only batches are free; else None."""
        shapes = {port.name: port.with_batch(batch) for port in self.inputs}
        complete = {name: shape for name, shape in shapes.items() if shape is not None}
        return complete if len(complete) == len(shapes) else None

    @property
    def has_free_batch(self) -> bool:
        """Whether the first dimension of every input is free, under one name at most, and counts
        samples: it does not where it is another axis, too, as that of a matrix of distances, or
        where an output has other symbols of the inputs only, as the last state of a recurrent
        network, whose first dimension is time.
        """
        firsts = [port.dims[0] if port.dims else 0 for port in self.inputs]
        free = all(not isinstance(dim, int) for dim in firsts)
        names = {dim for dim in firsts if is_symbol(dim)}
        if not firsts or not free or len(names) > 1:
            return False
        return not names or not (self._is_elsewhere(names) or self._outlives(names))

    def _is_elsewhere(self, names: Set[PortDim]) -> bool:
        """Whether one of these symbols is another axis than the first one."""
        return any(not names.isdisjoint((port.dims or ())[1:]) for port in self.ports)

    def _outlives(self, names: Set[PortDim]) -> bool:
        """Whether an output has symbols of the inputs, but none of these."""
        symbols = {dim for port in self.inputs for dim in port.dims or () if is_symbol(dim)}
        inherited = [symbols.intersection(port.dims or ()) for port in self.outputs]
        return any(dims and not dims & names for dims in inherited)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The inputs and the outputs."""
        return self.inputs + self.outputs

    def to_json(self) -> dict[str, Any]:
        """The signature in types that ``json`` writes."""
        return {
            "inputs": [asdict(p) for p in self.inputs],
            "outputs": [asdict(p) for p in self.outputs],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Signature:
        """The signature from the result of ``to_json``.  Raises ``KeyError``, ``TypeError`` or
        ``ValueError``.
        """
        return Signature(
            tuple(map(_port_from_json, data["inputs"])),
            tuple(map(_port_from_json, data["outputs"])),
        )

    def kinds_at(self, shapes: Shapes) -> dict[str, tuple[FixedShape, np.dtype[Any]]]:
        """Shapes and element types of the inputs, by name, at these shapes."""
        return {port.name: (shapes[port.name], port.dtype.numpy) for port in self.inputs}

    def check(self, shapes: Shapes, least: int = 0) -> None:
        """Raise ``InputError`` unless the inputs may have these shapes together; free dimensions
        are at least ``least``."""
        symbols: dict[str, tuple[int, str]] = {}
        for port in self.inputs:
            shape = shapes[port.name]
            if min(shape, default=least) < least or not _fits(port, shape):
                limit = f"; free dimensions are at least {least}" if least else ""
                raise InputError(
                    f"input {port.name!r} has shape {shape}, but the model takes {port}. "
                    f"Remedy: feed an array that fits{limit}."
                )
            for size, dim in zip(shape, port.dims or (), strict=False):
                if not is_symbol(dim):
                    continue
                first, where = symbols.setdefault(str(dim), (size, port.name))
                if first != size:
                    raise InputError(
                        f"dimension {dim!r} is {first} in input {where!r} but {size} in input "
                        f"{port.name!r}. Remedy: feed arrays that agree in it."
                    )


def are_outputs(
    ports: Sequence[Port], kinds: Iterable[TensorType], declared: Mapping[str, str]
) -> bool:
    """Whether outputs of a graph, which has ``declared`` types by name, have the element types of
    ports.  Models may declare other ranks and sizes of outputs than they compute, which onnxruntime
    takes, too."""

    def fits(port: Port, kind: TensorType) -> bool:
        text = declared.get(port.name, "")
        has_late_shape = kind.dtype is DType.OPAQUE and is_late(text)
        return text == port.onnx_type if has_late_shape else port.dtype is kind.dtype

    return all(map(fits, ports, kinds))


def dims_text(dims: tuple[PortDim, ...] | None) -> str:
    """``(N, 3, ?, ?)``, for messages."""
    if dims is None:
        return "(unknown rank)"
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in dims) + ")"


def _port_from_json(data: Mapping[str, Any]) -> Port:
    dims = data["dims"]
    if dims is not None and not all(
        dim is None or isinstance(dim, str) or (type(dim) is int and dim > 0) for dim in dims
    ):
        raise ValueError(f"{dims} are no dimensions")
    dtype, declared = DType(data["dtype"]), data.get("declared", "")
    if not isinstance(declared, str) or not may_declare(dtype, declared):
        raise ValueError(f"{declared!r:.60} is no type of {dtype}")
    if dtype is DType.OPAQUE and dims != [] and not is_late(declared):
        raise ValueError("an opaque value has no dimensions")
    sizes = None if dims is None else tuple(dims)
    return Port(str(data["name"]), dtype, sizes, declared)


def _fits(port: Port, shape: FixedShape) -> bool:
    if port.dims is None:
        return True
    sizes = zip(shape, port.dims, strict=False)
    return len(shape) == len(port.dims) and all(
        dim == size for size, dim in sizes if isinstance(dim, int)
    )


def numpy_type(declared: str) -> np.dtype[Any]:
    """The NumPy type of a declared float type, by its name.  Raises ``InputError``."""
    if declared != BFLOAT16:
        return np.dtype(declared)
    try:
        kind: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
        return kind
    except ImportError:
        raise InputError(
            "the model declares bfloat16, which NumPy does not have. Remedy: pip install ml_dtypes"
        ) from None


def entering(ports: Sequence[Port], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Feeds in the declared types: floats as float32, texts as objects.

    Raises ``InputError`` for other types, and for float64 values that float32 cannot hold.
    """
    arrays = dict(feeds)
    for port in ports:
        if port.name not in arrays:
            continue
        if port.dtype is DType.STRING:
            arrays[port.name] = as_strings(arrays[port.name])
        elif port.declared:
            arrays[port.name] = _entering(port, arrays[port.name])
    return arrays


def as_strings(array: Array) -> Array:
    """Texts in the form of graphs, an array of objects; other arrays as they are."""
    return array.astype(np.object_) if array.dtype.kind == "U" else array


def _entering(port: Port, array: Array) -> Array:
    declared = numpy_type(port.declared)
    if declared.kind == "V" and array.dtype == np.dtype("V2"):
        array = array.view(declared)  # .npy files keep bfloat16 as this type
    if array.dtype != declared:
        raise InputError(
            f"input {port.name!r} must be {declared}, got {array.dtype}. "
            f"Remedy: cast it with .astype({declared.type.__module__}.{declared})"
        )
    converted = as_float32(array)
    if (at := _first_lost(array, converted)) is not None:
        raise InputError(
            f"input {port.name!r} holds {array[at]} at {list(at)}, which float32 cannot hold, and "
            "quantglow computes in float32. Remedy: scale the model's values."
        )
    return converted


def leaving(ports: Sequence[Port], arrays: Sequence[Array]) -> list[Array]:
    """Outputs in the declared types: rounded, and infinite if they are too large for the type; of
    opaque ones what they hold."""
    return [_leaving(port, array) for port, array in zip(ports, arrays, strict=True)]


def _leaving(port: Port, array: Array) -> Any:
    if port.dtype is not DType.OPAQUE:
        return as_declared(port, array)
    return array if is_late(port.declared) else unbox(array)


def declared_only(ports: Sequence[Port], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Feeds of any float type, converted to the types that the model declares."""
    return {port.name: as_declared(port, feeds[port.name]) for port in ports}


def as_declared(port: Port, array: Array) -> Array:
    """An array of any float type, converted to the type that the model declares."""
    if not port.declared:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(numpy_type(port.declared), copy=False)


def as_float32(array: Array) -> Array:
    """Floats as float32; infinite if they are too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32, copy=False)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether values of the type are computed as float32: it is float32 or one of ``DECLARED``."""
    return dtype == np.float32 or dtype.name in DECLARED


def _first_lost(before: Array, after: Array) -> tuple[int, ...] | None:
    """Position of the first finite value that a conversion made infinite."""
    if np.isfinite(after).all():
        return None
    lost = np.argwhere(np.isfinite(before) & ~np.isfinite(after))
    return tuple(int(i) for i in lost[0]) if len(lost) else None
