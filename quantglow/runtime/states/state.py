"""States: caches of a decoder that stay in memory and grow in place from call to call.

Memory of a state: one array for each cache, with room for more rows than there are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quantglow.interpreter import check_names, check_types
from quantglow.ir.graph.family import Case, elements, may_decide
from quantglow.ir.graph.signature import Port, PortDim, Signature, declared_only, entering, leaving
from quantglow.runtime.native.buffers import aligned_bytes
from quantglow.runtime.programs.feeds import TensorInfo, check_feeds, choose_outputs, feeds_by_name
from quantglow.runtime.states.state_programs import CachePair, StatePrograms
from quantglow.support.arguments import brief, file_path, integer
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, OfOneProcess, cached_property
from quantglow.support.errors import FileFormatError, OptionError, StateFullError
from quantglow.support.files import read_arrays, writing
from quantglow.support.processes.threads import ForkSafeLock


class RunnableModel(Protocol):
    """A model as far as a state needs it."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """All outputs."""


@dataclass(eq=False, repr=False)
class State(OfOneProcess, Concise):
    """The caches of one or several sequences, between calls of a model.

    A call that fails or is interrupted leaves the state as it was.  One call at a time uses a
    state; others wait.
    """

    model: RunnableModel
    programs: StatePrograms
    caches: Caches
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    @property
    def length(self) -> int:
        """Rows in use."""
        return self.caches.length

    @property
    def capacity(self) -> int:
        """Rows that have memory."""
        return self.caches.capacity

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.caches.batch

    @property
    def arrays(self) -> dict[str, Array]:
        """The rows in use by input: views, to which calls add rows."""
        return self.caches.first(self.length)

    # -- calls

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """The named outputs (None or no name: all but the caches) for ``feeds`` without the caches.

        Outputs and feeds are given as for ``CompiledModel.run``.  Raises ``InputError`` for feeds
        that do not fit, ``StateFullError`` where no more rows may be added.
        """
        ends = self._ends
        names = [port.name for port in ends.outputs]
        chosen = choose_outputs(output_names, names)
        arrays = entering(ends.inputs, check_feeds(feeds, lambda: map(TensorInfo.of, ends.inputs)))
        check_names([port.name for port in ends.inputs], arrays)
        check_types(ends, arrays)
        with self._lock:
            results = self._called(arrays)
        outputs = leaving(ends.outputs, [results[name] for name in names])
        by_name = dict(zip(names, outputs, strict=True))
        return [by_name[name] for name in chosen]

    def __call__(self, *arrays: Any, **named: Any) -> Array | list[Array]:
        """Outputs for arrays in the order of the inputs that are no caches, or by name; a single
        output is not in a list.
        """
        names = [port.name for port in self._ends.inputs]
        outputs = self.run(None, feeds_by_name(names, arrays, named))
        return outputs[0] if len(outputs) == 1 else outputs

    def _called(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """All outputs by name, those computed in place included."""
        programs, caches, case = self.programs, self.caches, self._case(arrays)
        rows = programs.rows(case)
        if rows is None:
            return self._copy(arrays)
        caches.reserve(rows)
        executable = programs.at(case, caches.capacity)
        if executable is None:
            return self._copy(arrays)
        states = {pair.output: caches.arrays[pair.input] for pair in programs.pairs}
        outputs = executable.new_outputs_but(states)
        executable.run({**arrays, **caches.arrays}, outputs, caches.addresses)
        caches.length = rows
        return dict(zip(executable.output_names, outputs, strict=True))

    def _case(self, arrays: dict[str, Array]) -> Case:
        caches, deciding = self.caches, self.programs.free.deciding
        shapes = caches.shapes(caches.length)
        few = {n: arrays[n] for n in deciding if n in arrays and may_decide(arrays[n])}
        values = {name: elements(array) for name, array in few.items()}
        return Case.of({**shapes, **{name: array.shape for name, array in arrays.items()}}, values)

    def _copy(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """The outputs of a call of the model itself, whose caches are copied to the state."""
        signature, pairs = self.programs.free.signature, self.programs.pairs
        feeds = declared_only(signature.inputs, {**arrays, **self.arrays})
        outputs = self.model.run(None, feeds)
        results = {p.name: a for p, a in zip(signature.outputs, outputs, strict=True)}
        rows = results[pairs[0].output].shape[pairs[0].axis]
        self.caches.reserve(rows)
        self.caches.fill({pair.input: results[pair.output] for pair in pairs}, rows)
        return results

    @property
    def _ends(self) -> Signature:
        """Inputs and outputs that are no caches."""
        signature, pairs = self.programs.free.signature, self.programs.pairs
        return Signature(
            _without(signature.inputs, {pair.input for pair in pairs}),
            _without(signature.outputs, {pair.output for pair in pairs}),
        )

    # -- contents

    def reset(self) -> None:
        """Forget all rows; their memory stays."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all rows but the first ones: calls go on behind these.  Raises ``OptionError``."""
        with self._lock:
            self.caches.length = integer("length", length, 0, self.length)

    def copy(self) -> State:
        """A state with the same rows, which goes its own way."""
        with self._lock:
            caches = replace(self.caches)
            caches.fill(self.arrays, self.length)
            return State(self.model, self.programs, caches)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rows in use to an ``.npz`` file."""
        with self._lock, writing(file_path("path", path)) as temporary:
            self.caches.write(Path(temporary))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the rows that ``save`` wrote, in place of those there are.

        Raises ``FileFormatError`` for what is no such file, or of another model or batch, and
        ``StateFullError``.
        """
        with self._lock:
            self.caches.read(file_path("path", path))


def _without(ports: Sequence[Port], names: set[str]) -> tuple[Port, ...]:
    return tuple(port for port in ports if port.name not in names)


SLACK_NBYTES = 64
"""Bytes behind an array that kernels may read."""

PREFIXES = (
    ("past_key_values", "present"),
    ("past_key_values", "present_key_values"),
    ("past", "present"),
)
"""Beginnings of the names of an input and of the output that it becomes."""

Kind = tuple[tuple[PortDim, ...] | None, int]
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
        arrays = _arrays_in(path)
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


def _arrays_in(path: str) -> dict[str, Array]:
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
    named = _by_names(ports, results) if chosen is None else chosen
    if not _names_ports(named, ports, results):
        raise OptionError(
            f"pairs must map inputs {sorted(ports)} to outputs {sorted(results)}, got "
            f"{brief(named)}. Remedy: name the caches of the model, input by output."
        )
    for name, output in named.items():
        _check_alike(ports[name], results[output])
    return tuple(CachePair(i, o, _growing_axis(i, ports[i].dims)) for i, o in named.items())


def _names_ports(pairs: object, inputs: Container[str], outputs: Container[str]) -> bool:
    """Whether pairs map names of inputs to names of outputs."""
    return (
        isinstance(pairs, Mapping)
        and bool(pairs)
        and all(isinstance(name, str) for pair in pairs.items() for name in pair)
        and all(i in inputs and o in outputs for i, o in pairs.items())
    )


def _check_alike(cache: Port, output: Port) -> None:
    """Raise ``OptionError`` for an output that cannot be the input with more rows."""
    ranks = [len(port.dims) for port in (cache, output) if port.dims is not None]
    if cache.dtype is not output.dtype or len(set(ranks)) > 1:
        raise OptionError(
            f"pairs: output {output.name!r} of {_port_kind(output)} is not input {cache.name!r} of "
            f"{_port_kind(cache)} with more rows. Remedy: name the output that has the cache."
        )


def _port_kind(port: Port) -> str:
    """Type and dimensions of a port, as a message shows them."""
    return f"{port.dtype.value}{list(port.dims or ())}"


def _by_names(inputs: Mapping[str, Port], outputs: Container[str]) -> dict[str, str]:
    """Inputs ``past…`` and outputs ``present…`` whose names go on alike."""
    pairs: dict[str, str] = {}
    for name in inputs:
        for past, present in PREFIXES:
            candidate = present + name.removeprefix(past)
            if name.startswith(past) and candidate in outputs:
                pairs.setdefault(name, candidate)
    return pairs


def _growing_axis(name: str, dims: tuple[PortDim, ...] | None) -> int:
    """The free axis of a cache behind the batch.  Raises ``OptionError`` unless there is one."""
    free = [axis for axis, dim in enumerate(dims or ()) if axis and not isinstance(dim, int)]
    if len(free) != 1:
        raise OptionError(
            f"input {name!r} has {len(free)} free dimensions behind the batch, a cache has one. "
            "Remedy: export the model with fixed sizes of heads."
        )
    return free[0]
