"""Memory of a state: one array for each cache, with room for more rows than there are."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from quantglow.ir.graph.signature import Dim, Port
from quantglow.runtime.native.buffers import aligned_bytes
from quantglow.runtime.states.state_programs import CachePair
from quantglow.support.arguments import brief
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import FileFormatError, OptionError, StateFullError
from quantglow.support.files import read_arrays

SLACK_NBYTES = 64
"""Bytes behind an array that kernels may read."""

PREFIXES = (
    ("past_key_values", "present"),
    ("past_key_values", "present_key_values"),
    ("past", "present"),
)
"""Beginnings of the names of an input and of the output that it becomes."""

Kind = tuple[tuple[Dim, ...] | None, int]
"""Dimensions, and the axis that grows."""


@dataclass(eq=False, repr=False)
class Caches(Concise):
    """Arrays of ``capacity`` rows along the axis of each pair, for ``batch`` sequences.

    ``length`` rows are in use.  More rows double the capacity, up to ``most``.
    """

    pairs: tuple[CachePair, ...]
    ports: Mapping[str, Port]
    batch: int
    capacity: int
    most: int | None
    length: int = 0
    arrays: dict[str, Array] = field(default_factory=dict)
    addresses: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._renew()

    def shape(self, pair: CachePair, rows: int) -> tuple[int, ...]:
        """The shape of a cache of so many rows."""
        dims = self.ports[pair.input].dims or ()
        sizes = [rows if axis == pair.axis else dim for axis, dim in enumerate(dims)]
        return tuple([size if isinstance(size, int) else self.batch for size in sizes])

    def shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """The shapes of all caches of so many rows, by input; those of most are equal."""
        kinds = {kind: self.shape(pair, rows) for kind, pair in self._kinds.items()}
        return {pair.input: kinds[self._kind(pair)] for pair in self.pairs}

    def _kind(self, pair: CachePair) -> Kind:
        return self.ports[pair.input].dims, pair.axis

    @cached_property
    def _kinds(self) -> dict[Kind, CachePair]:
        """A cache of each shape."""
        return {self._kind(pair): pair for pair in self.pairs}

    def first(self, rows: int) -> dict[str, Array]:
        """The first rows of each cache, by input: views."""
        return {
            pair.input: self.arrays[pair.input][(*(slice(None),) * pair.axis, slice(rows))]
            for pair in self.pairs
        }

    def reserve(self, rows: int) -> None:
        """Have memory for rows.  Raises ``StateFullError``."""
        if self.most is not None and rows > self.most:
            raise StateFullError(rows, self.most)
        if rows <= self.capacity:
            return
        room = max(rows, 2 * self.capacity)
        grown = replace(self, capacity=room if self.most is None else min(room, self.most))
        grown.fill(self.first(self.length), self.length)
        vars(self).update(vars(grown))  # at once, so that nobody sees a half

    def fill(self, contents: Mapping[str, Array], rows: int) -> None:
        """Copy rows to the begin of each cache; they are in use."""
        for name, view in self.first(rows).items():
            view[...] = contents[name]
        self.length = rows

    def _renew(self) -> None:
        """Have new memory; ``addresses`` has that of each array by its ``id``."""
        self.arrays = {p.input: self._array(p, self.shape(p, self.capacity)) for p in self.pairs}
        self.addresses = {id(array): array.ctypes.data for array in self.arrays.values()}

    def _array(self, pair: CachePair, shape: tuple[int, ...]) -> Array:
        dtype = self.ports[pair.input].dtype.numpy
        nbytes = math.prod(shape) * dtype.itemsize
        memory = aligned_bytes(nbytes + SLACK_NBYTES)
        memory[:] = 0
        return memory[:nbytes].view(dtype).reshape(shape)

    def write(self, path: Path) -> None:
        """Write the rows in use as ``.npz``."""
        rows = {name: np.asarray(a, order="C") for name, a in self.first(self.length).items()}
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **rows)

    def read(self, path: str) -> None:
        """Take the rows that ``write`` wrote.

        Raises ``FileFormatError`` for what is no such file, or of another model or batch, and
        ``StateFullError``.
        """
        arrays = arrays_in(path)
        first = self.pairs[0]
        shape = arrays[first.input].shape if first.input in arrays else ()
        rows = shape[first.axis] if len(shape) > first.axis else 0
        for pair in self.pairs:
            self._check(path, pair, rows, arrays.get(pair.input))
        self.reserve(rows)
        self.fill(arrays, rows)

    def _check(self, path: str, pair: CachePair, rows: int, array: Array | None) -> None:
        shape, dtype = self.shape(pair, rows), self.ports[pair.input].dtype.numpy
        if array is None or array.shape != shape or array.dtype != dtype:
            shown = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise FileFormatError(
                f"{path}: has {shown} for {pair.input!r}, the state has {dtype} of shape {shape}. "
                "Remedy: restore what a state of this model and batch has saved."
            )


def arrays_in(path: str) -> dict[str, Array]:
    """The arrays of an ``.npz`` file.  Raises ``FileFormatError``."""
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path}: is no saved state: {error}. Remedy: give a file that State.save wrote."
        ) from None


def match_caches(
    inputs: Sequence[Port], outputs: Sequence[Port], chosen: Mapping[str, str] | None
) -> tuple[CachePair, ...]:
    """The caches of a model: those ``chosen`` as input and output, or by their names.

    Raises ``OptionError`` where there are none, or no axis that grows.
    """
    ports = {port.name: port for port in inputs}
    results = {port.name: port for port in outputs}
    named = by_names(ports, results) if chosen is None else chosen
    if not names_ports(named, ports, results):
        raise OptionError(
            f"pairs must map inputs {sorted(ports)} to outputs {sorted(results)}, got "
            f"{brief(named)}. Remedy: name the caches of the model, input by output."
        )
    for name, output in named.items():
        check_alike(ports[name], results[output])
    return tuple(CachePair(i, o, growing_axis(i, ports[i].dims)) for i, o in named.items())


def names_ports(pairs: object, inputs: Container[str], outputs: Container[str]) -> bool:
    """Whether pairs map names of inputs to names of outputs."""
    return (
        isinstance(pairs, Mapping)
        and bool(pairs)
        and all(isinstance(name, str) for pair in pairs.items() for name in pair)
        and all(i in inputs and o in outputs for i, o in pairs.items())
    )


def check_alike(cache: Port, output: Port) -> None:
    """Raise ``OptionError`` for an output that cannot be the input with more rows."""
    ranks = [len(port.dims) for port in (cache, output) if port.dims is not None]
    if cache.dtype is not output.dtype or len(set(ranks)) > 1:
        raise OptionError(
            f"pairs: output {output.name!r} of {port_kind(output)} is not input {cache.name!r} of "
            f"{port_kind(cache)} with more rows. Remedy: name the output that has the cache."
        )


def port_kind(port: Port) -> str:
    """Type and dimensions of a port, as a message shows them."""
    return f"{port.dtype.value}{list(port.dims or ())}"


def by_names(inputs: Mapping[str, Port], outputs: Container[str]) -> dict[str, str]:
    """Inputs ``past…`` and outputs ``present…`` whose names go on alike."""
    pairs: dict[str, str] = {}
    for name in inputs:
        for past, present in PREFIXES:
            candidate = present + name.removeprefix(past)
            if name.startswith(past) and candidate in outputs:
                pairs.setdefault(name, candidate)
    return pairs


def growing_axis(name: str, dims: tuple[Dim, ...] | None) -> int:
    """The free axis of a cache behind the batch.  Raises ``OptionError`` unless there is one."""
    free = [axis for axis, dim in enumerate(dims or ()) if axis and not isinstance(dim, int)]
    if len(free) != 1:
        raise OptionError(
            f"input {name!r} has {len(free)} free dimensions behind the batch, a cache has one. "
            "Remedy: export the model with fixed sizes of heads."
        )
    return free[0]
