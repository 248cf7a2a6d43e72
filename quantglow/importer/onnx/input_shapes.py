"""The concrete shape of every model input: what the model fixes, plus what the caller says; and
the values that the caller gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from quantglow.ir.graph.signature import PortDim, dims_text, is_symbol
from quantglow.ir.symbolic.size import Dim, Shape, decide, is_free
from quantglow.support.errors import ModelError


def resolve_shapes(
    inputs: Sequence[onnx.ValueInfoProto], requested: Mapping[str, Sequence[Dim]]
) -> dict[str, Shape]:
    """A shape for each input.  A free batch dimension alone becomes 1.  Raises ``ModelError``."""
    declared = {i.name: declared_dims(i) for i in inputs}
    if unknown := sorted(requested.keys() - declared.keys()):
        raise ModelError(
            f"input_shapes names {unknown}; the model's inputs are {sorted(declared)}. "
            "Remedy: name one of these."
        )
    symbols: dict[str, Dim] = {}
    shapes = {}
    for name, shape in requested.items():
        shapes[name] = _accept(name, shape, declared[name], symbols)
    for name, dims in declared.items():
        if name not in shapes:
            shapes[name] = _complete(name, dims, symbols)
    return {name: shapes[name] for name in declared}


def resolve_values(
    inputs: Sequence[onnx.ValueInfoProto], values: Mapping[str, int | Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """The elements of the inputs that have values.  Raises ``ModelError``."""
    if unknown := sorted(values.keys() - {i.name for i in inputs}):
        raise ModelError(f"input_values names {unknown}, which are no inputs of the model")
    return {name: tuple(np.asarray(value).reshape(-1).tolist()) for name, value in values.items()}


def declared_dims(value: onnx.ValueInfoProto) -> tuple[PortDim, ...] | None:
    """The dimensions the model declares, None if it does not even know the rank."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        int(d.dim_value) if d.dim_value > 0 else (d.dim_param or None) for d in tensor.shape.dim
    )


def _accept(
    name: str, requested: Sequence[Dim], dims: tuple[PortDim, ...] | None, symbols: dict[str, Dim]
) -> Shape:
    """The caller's shape, if it fits the declared one and the other inputs."""
    shape = tuple(requested)
    if not all((isinstance(d, int) and d >= 0) or is_free(d) for d in shape):
        raise ModelError(f"input_shapes[{name!r}] must hold integers of at least 0, got {shape}")
    if dims is None:
        return shape
    fits = len(shape) == len(dims)
    for size, dim in zip(shape, dims, strict=False):
        expected = symbols.setdefault(str(dim), size) if is_symbol(dim) else dim
        fits = fits and (isinstance(expected, str | None) or decide(expected == size))
    if not fits:
        raise ModelError(
            f"input_shapes[{name!r}] is {shape}, but the model declares {dims_text(dims)}"
            + (f" with {symbols}" if symbols else "")
            + ". Remedy: give sizes that agree with it and with each other."
        )
    return shape


def _complete(name: str, dims: tuple[PortDim, ...] | None, symbols: Mapping[str, Dim]) -> Shape:
    """The declared shape with symbols that other inputs fixed, and batch 1."""
    if dims is not None:
        sizes = [symbols.get(str(d), d) if is_symbol(d) else d for d in dims]
        if sizes and not isinstance(sizes[0], Dim):
            sizes[0] = 1
        shape = tuple(d for d in sizes if isinstance(d, Dim))
        if len(shape) == len(sizes):
            return shape
    raise ModelError(
        f"input {name!r} has free dimensions {dims_text(dims)}. "
        f"Remedy: give its shape: input_shapes={{{name!r}: (…)}}"
    )
