"""What one compiled model runs: one program, or one for each shape that its inputs have had.

A program is specialised to its shapes.  A model that leaves dimensions free gets one for each
combination of input shapes, compiled on first use.  The last used ones are kept: ``MOST_PROGRAMS``
at most, and as many as fit ``MOST_NBYTES`` (the first one always stays).  Their kernels and
constants are shared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from quantglow.errors import DelegationError, InputError, QuantglowError, UnsupportedOpError
from quantglow.graph.graph import Graph
from quantglow.graph.sharing import SharedArrays
from quantglow.graph.signature import Shape, Shapes, Signature
from quantglow.interpreter import check_feeds, check_names
from quantglow.runtime.build import Build, Machine
from quantglow.runtime.saving import Freedom
from quantglow.types import Array

MOST_PROGRAMS = 32
MOST_NBYTES = 2**30
"""Of the arenas of all programs: what a program adds to the constants that all share."""


@dataclass(frozen=True, eq=False)
class Specialisation:
    """A graph and the machine code of it."""

    graph: Graph
    build: Build

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order.  Raises ``InputError`` for feeds that do not fit."""
        check_feeds(self.graph, feeds)
        return self.build.executable.run(feeds)


class Specialisations(Protocol):
    """The programs of a compiled model."""

    @property
    def signature(self) -> Signature:
        """What the model takes and gives."""

    @property
    def target(self) -> str:
        """What the code is for."""

    @property
    def num_threads(self) -> int:
        """Threads that a call uses at most."""

    @property
    def first(self) -> Specialisation:
        """The one that the report is about.  Raises ``InputError`` if nothing is compiled yet."""

    @property
    def freedom(self) -> Callable[[], Freedom] | None:
        """What a file needs besides the first graph; None if that is all."""

    def at(self, feeds: Mapping[str, Array]) -> Specialisation:
        """The one for the shapes of these arrays.  Raises ``InputError``."""


@dataclass(frozen=True, eq=False)
class OneShape:
    """A model whose shapes are all fixed."""

    first: Specialisation
    freedom: None = None

    @property
    def signature(self) -> Signature:
        """The types of the graph."""
        return self.first.graph.signature

    @property
    def target(self) -> str:
        """Of the only program."""
        return self.first.build.target

    @property
    def num_threads(self) -> int:
        """Of the only program."""
        return self.first.build.num_threads

    def at(self, feeds: Mapping[str, Array]) -> Specialisation:
        """The only one; ``run`` checks the feeds."""
        return self.first


@dataclass(eq=False)
class FreeShapes:
    """Programs by the shapes of the inputs.  All methods may be called from any thread.

    ``graph_at`` makes the graph to compile for input shapes, ``delegate`` what runs where nothing
    can be compiled for them; ``freedom`` is what a file needs to do the same.
    """

    signature: Signature
    graph_at: Callable[[Shapes], Graph]
    machine: Machine
    delegate: Callable[[Shapes], Specialisation] | None = None
    freedom: Callable[[], Freedom] | None = None
    most_programs: int = MOST_PROGRAMS
    most_nbytes: int = MOST_NBYTES
    _arrays: SharedArrays = field(default_factory=SharedArrays)
    _ready: OrderedDict[tuple[Shape, ...], Specialisation] = field(default_factory=OrderedDict)
    _pending: dict[tuple[Shape, ...], Future[Specialisation]] = field(default_factory=dict)
    _first: Specialisation | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def target(self) -> str:
        """What the code is for."""
        return self.machine.name

    @property
    def num_threads(self) -> int:
        """Threads that a call uses at most."""
        return self.machine.num_threads

    @property
    def first(self) -> Specialisation:
        """The program that was compiled first."""
        if self._first is None:
            raise InputError(
                "the model leaves dimensions free and was not run yet, so there is no program to "
                "look at. Remedy: run it once, or compile it with input_shapes."
            )
        return self._first

    @property
    def shapes(self) -> list[dict[str, Shape]]:
        """The input shapes of the programs that are kept, the last used one last."""
        names = [port.name for port in self.signature.inputs]
        with self._lock:
            return [dict(zip(names, key, strict=True)) for key in self._ready]

    def add(self, found: Specialisation) -> None:
        """Keep a program that was compiled elsewhere."""
        shapes = {node.name: node.type.shape for node in found.graph.inputs}
        self._arrays.graph(found.graph)
        with self._lock:
            self._keep(tuple(shapes[port.name] for port in self.signature.inputs), found)

    def at(self, feeds: Mapping[str, Array]) -> Specialisation:
        """The program for the shapes of ``feeds``, compiled now if they are new.

        Threads that ask for the same new shapes wait for one of them; others go on.
        """
        check_names([port.name for port in self.signature.inputs], feeds)
        key = tuple(feeds[port.name].shape for port in self.signature.inputs)
        with self._lock:
            found = self._ready.get(key)
            if found is not None:
                self._ready.move_to_end(key)
                return found
            pending = self._pending.get(key)
            is_mine = pending is None
            if pending is None:
                pending = self._pending[key] = Future()
        if is_mine:
            self._fulfil(pending, key, feeds)
        return pending.result()

    def _fulfil(
        self, pending: Future[Specialisation], key: tuple[Shape, ...], feeds: Mapping[str, Array]
    ) -> None:
        try:
            made = self._compiled(feeds)
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            pending.set_exception(error)
            raise
        with self._lock:
            self._keep(key, made)
            del self._pending[key]
        pending.set_result(made)

    def _compiled(self, feeds: Mapping[str, Array]) -> Specialisation:
        shapes = {port.name: feeds[port.name].shape for port in self.signature.inputs}
        if self.delegate and any(0 in shape for shape in shapes.values()):
            return self.delegate(shapes)  # programs have no empty tensors
        self.signature.check(shapes)
        self._check_elements(feeds)
        try:
            graph = self._arrays.graph(self.graph_at(shapes))
            build = self.machine.compile(graph)
        except QuantglowError as error:
            if self.delegate and isinstance(error, UnsupportedOpError | DelegationError):
                return self.delegate(shapes)
            raise InputError(
                f"the model cannot be compiled for inputs of the shapes {shapes}: {error}. "
                "Remedy: feed shapes that its operators agree with."
            ) from error
        return Specialisation(graph, build)

    def _check_elements(self, feeds: Mapping[str, Array]) -> None:
        for port in self.signature.inputs:
            found = feeds[port.name].dtype
            if found != port.dtype.numpy:
                raise InputError(
                    f"input {port.name!r} must be {port.dtype.numpy}, got {found}. "
                    f"Remedy: cast it with .astype(numpy.{port.dtype.numpy})"
                )

    def _keep(self, key: tuple[Shape, ...], found: Specialisation) -> None:
        """Make room for a new program; the caller holds the lock."""
        self._first = self._first or found
        self._ready[key] = found
        self._ready.move_to_end(key)
        total = sum(nbytes_of(s.build) for s in self._ready.values())
        for old in list(self._ready):
            if len(self._ready) <= self.most_programs and total <= self.most_nbytes:
                break
            if old != key and self._ready[old] is not self._first:
                total -= nbytes_of(self._ready.pop(old).build)


def nbytes_of(build: Build) -> int:
    """What a program adds to those it shares constants with."""
    return sum(planned.plan.peak_nbytes for planned in build.programs)
