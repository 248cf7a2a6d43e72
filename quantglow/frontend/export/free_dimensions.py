"""Export with free dimensions: one ONNX model from graphs of the same model at several shapes.

A graph has fixed shapes, so its export holds sizes as integers: the target of a Reshape, the end of
a Slice.  Exports at several shapes have the same operators, and differ in those integers only.
``sizes.SizeWriter`` writes each integer that differs so that a runtime computes it: as ``0`` or
``-1`` of a Reshape, as an end counted from behind, or from the dimensions of another value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from quantglow.errors import ModelError, QuantglowError
from quantglow.files import writing
from quantglow.frontend.export.model import export_onnx
from quantglow.frontend.export.sizes import SizeWriter, Unsolved
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Dim, Port, Shape, Shapes, Signature, is_symbol
from quantglow.types import Array

Slot = tuple[str, int]
"""An input and one of its axes."""

Sizes = Mapping[str, int]
"""Sizes of the free dimensions by name."""

FACTORS = (2, 3, 4, 5, 7)
"""Factors of the known sizes, in the order they are tried: dimensions are told apart by sizes that
differ."""

KNOWN = (1,)
"""The factor that is tried last: a known size may be 1, which hides transposes and broadcasts."""

REMEDY = "Remedy: export one shape: export_onnx(path, input_shapes={name: shape})."


def export_free(
    signature: Signature,
    graph_at: Callable[[Shapes], Graph],
    known: Shapes,
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """The ONNX model of all shapes that ``signature`` allows, written to ``path`` if given.

    ``graph_at`` gives the graph at input shapes; ``known`` are shapes that the model takes.

    Raises ``ModelError`` where a dimension cannot stay free, naming the value that depends on it.
    """
    merged = Merge(_exports(signature, graph_at, known)).result()
    _name_dimensions(merged, signature)
    onnx.checker.check_model(merged)
    if path is not None:
        with writing(path) as temporary:
            temporary.write_bytes(merged.SerializeToString())
    return merged


def _exports(
    signature: Signature, graph_at: Callable[[Shapes], Graph], known: Shapes
) -> list[onnx.ModelProto]:
    """Exports at shapes that tell all free dimensions apart: all of them at one generic size, each
    of them at another one, and all at sizes that are no multiples of the known ones.  A dimension
    of which the model takes no other size stays as it is known.
    """
    groups = _symbols(signature)
    plain = {symbol: known[slots[0][0]][slots[0][1]] for symbol, slots in groups.items()}

    def taken(candidates: Iterable[Sizes]) -> list[tuple[Sizes, Graph]]:
        """The first sizes that the model takes, with its graph; none where it takes none."""
        for sizes in candidates:
            with suppress(QuantglowError):
                return [(sizes, graph_at(_shapes(known, groups, sizes)))]
        return []

    def moved(origin: Sizes, symbol: str) -> list[tuple[Sizes, Graph]]:
        """Another size of a dimension, alone or with those that may have to be equal to it."""
        alike = [other for other in groups if plain[other] == plain[symbol]]
        others = (
            {**origin, **{s: factor * plain[s] for s in changed}}
            for factors in (FACTORS, KNOWN)
            for changed in ([symbol], alike)
            for factor in factors
        )
        return taken(sizes for sizes in others if sizes[symbol] != origin[symbol])

    free = [symbol for symbol in groups if moved(plain, symbol)]
    found = taken(
        {**plain, **{s: factor * plain[s] for s in free}} for factor in (*FACTORS, *KNOWN)
    )
    generic = found[0][0] if found else plain
    for symbol in free:
        found += moved(generic, symbol)
    found += taken([{**plain, **{s: 2 * plain[s] + 2 * i + 1 for i, s in enumerate(free)}}])
    return [export_onnx(graph) for _, graph in found]


def _symbols(signature: Signature) -> dict[str, list[Slot]]:
    """The free dimensions by name, with the axes that have them."""
    groups: dict[str, list[Slot]] = {}
    for port in signature.inputs:
        for axis, dim in enumerate(_dims(port)):
            if not isinstance(dim, int):
                groups.setdefault(symbol_of(port.name, axis, dim), []).append((port.name, axis))
    return groups


def _dims(port: Port) -> tuple[Dim, ...]:
    """The dimensions.  Raises ``ModelError`` where not even their number is known."""
    if port.dims is None:
        raise ModelError(f"input {port.name!r} is of no fixed rank, which stays open. {REMEDY}")
    return port.dims


def symbol_of(name: str, axis: int, dim: Dim) -> str:
    """The name of a free dimension; those without one get that of their input and axis."""
    return str(dim) if is_symbol(dim) else f"{name}_{axis}"


def _shapes(known: Shapes, groups: Mapping[str, Sequence[Slot]], sizes: Sizes) -> dict[str, Shape]:
    """The known shapes with other sizes of the free dimensions."""
    shapes = {name: list(shape) for name, shape in known.items()}
    for symbol, slots in groups.items():
        for name, axis in slots:
            shapes[name][axis] = sizes[symbol]
    return {name: tuple(shape) for name, shape in shapes.items()}


def _name_dimensions(model: onnx.ModelProto, signature: Signature) -> None:
    """Name the dimensions of inputs and outputs that are open as the signature does."""
    for port, info in zip(signature.inputs, model.graph.input, strict=True):
        for axis, dim in enumerate(_dims(port)):
            _name(info, axis, symbol_of(port.name, axis, dim))
    for port, info in zip(signature.outputs, model.graph.output, strict=True):
        for axis, dim in enumerate(port.dims or ()):
            if is_symbol(dim):
                _name(info, axis, str(dim))


def _name(info: onnx.ValueInfoProto, axis: int, symbol: str) -> None:
    sizes = info.type.tensor_type.shape.dim
    if axis < len(sizes) and not sizes[axis].HasField("dim_value"):
        sizes[axis].dim_param = symbol


@dataclass
class Merge:
    """One model of several ``models`` that differ in sizes only."""

    models: Sequence[onnx.ModelProto]

    def result(self) -> onnx.ModelProto:
        """The model of all sizes.  Raises ``ModelError``."""
        self._check_operators()
        merged = onnx.ModelProto()
        merged.CopyFrom(self.models[0])
        differing = self._differing()
        self._open_ports(merged)
        if not differing:
            return merged
        sizes = SizeWriter(self.models, merged)
        del merged.graph.node[:]
        for node in self.models[0].graph.node:
            for position, name in enumerate(node.input):
                if name in differing:
                    self._write(sizes, node, position, differing[name])
            merged.graph.node.append(node)
        _remove_unread(merged, differing)
        return merged

    def _open_ports(self, merged: onnx.ModelProto) -> None:
        """Inputs and outputs declare no size that differs."""
        ports = zip(*((*m.graph.input, *m.graph.output) for m in self.models), strict=True)
        made = (*merged.graph.input, *merged.graph.output)
        for target, given in zip(made, ports, strict=True):
            columns = zip(*(info.type.tensor_type.shape.dim for info in given), strict=True)
            dims = target.type.tensor_type.shape.dim
            for dim, column in zip(dims, columns, strict=True):
                if len({size.dim_value for size in column}) > 1:
                    dim.Clear()

    def _write(
        self, sizes: SizeWriter, node: onnx.NodeProto, position: int, values: list[Array]
    ) -> None:
        """Nodes that compute an operand which differs, before its reader."""
        try:
            sizes.write(node, position, values)
        except Unsolved as reason:
            raise ModelError(
                f"node {node.name!r} ({node.op_type}): {reason}, so the dimension cannot stay "
                f"free. {REMEDY}"
            ) from None

    def _check_operators(self) -> None:
        """Raise ``ModelError`` unless all models have the same operators in the same order."""
        first = self.models[0].graph.node
        for other in self.models[1:]:
            for one, two in zip(first, other.graph.node, strict=False):
                if one != two:
                    raise ModelError(
                        f"node {one.name!r} ({one.op_type}) differs from shape to shape, so its "
                        f"dimensions cannot stay free. {REMEDY}"
                    )
            if len(first) != len(other.graph.node):
                raise ModelError(
                    f"the model has {len(first)} operators at one shape and "
                    f"{len(other.graph.node)} at another, so dimensions cannot stay free. {REMEDY}"
                )

    def _differing(self) -> dict[str, list[Array]]:
        """The initializers that are not equal in all models, by name."""
        stored = [{t.name: t for t in model.graph.initializer} for model in self.models]
        return {
            name: [numpy_helper.to_array(tensors[name]) for tensors in stored]
            for name, first in stored[0].items()
            if any(tensors[name] != first for tensors in stored[1:])
        }


def _remove_unread(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Remove the named initializers that no node reads."""
    unread = set(names).difference(*(node.input for node in model.graph.node))
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in unread]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
