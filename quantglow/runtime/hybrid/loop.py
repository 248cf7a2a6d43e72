"""Loop whose body is compiled as a model with free dimensions, and runs trip after trip.

onnxruntime runs the whole loop where the body cannot be compiled and where there is no trip; it
makes trips over values without elements.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quantglow.ir.graph.family import Case
from quantglow.ir.ops.loop import Trips
from quantglow.ir.symbolic.size import FixedShape
from quantglow.ort.session import Session
from quantglow.runtime.hybrid.trips import (
    TRIPS,
    NamedArrays,
    Progress,
    TripBlock,
    TripSession,
    buffers_for,
    first_element,
)
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import (
    ModelPrograms,
    Served,
    ServedShapes,
    show_run,
)
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import (
    BackendError,
    ModelError,
    OutOfMemoryError,
    OutOfRangeError,
    QuantglowError,
)
from quantglow.support.observing import observer, observing
from quantglow.support.timeline import active
from quantglow.transforms.partition import Executable

if TYPE_CHECKING:
    from quantglow.runtime.compiled import CompiledModel

BodyShapes = Mapping[str, FixedShape]
"""Shapes of the inputs of a body."""

Make = Callable[[Sequence[BodyShapes]], ModelPrograms]
"""Makes the programs of a body, given the shapes of its inputs in some trips."""

GIVEN = ":given"
"""Ending of the names of operands in the model that computes them."""

MOST_KEPT = 4
"""Maximum number of shapes whose trips are kept."""

MOST_EMPTY = 2
"""Maximum number of first trips over values without elements."""

SEEN = 3
"""Trips whose shapes show which sizes grow."""

Key = tuple[tuple[tuple[int, ...], ...], ...]
"""Shapes of the captured and of the carried values before the first compiled trip."""


@dataclass(eq=False, repr=False)
class Bodies(Concise):
    """The programs of a body.

    ``make`` makes them where a size differs that did not before, or a rank; None: those there are
    have to do.  ``shapes``: shapes of some trips.
    """

    make: Make | None = None
    programs: ModelPrograms | None = None
    shapes: list[BodyShapes] = field(default_factory=list)

    def prepare(self, trips: Sequence[BodyShapes]) -> ModelPrograms:
        """The programs for a loop whose trips have inputs of such shapes.

        Raises ``QuantglowError`` where there are none.
        """
        if self.programs is not None:
            try:
                for shapes in trips:
                    self.programs.signature.check(shapes, 1)
            except QuantglowError:
                if self.make is None:
                    raise
            else:
                return self.programs
        assert self.make is not None, "programs without a way to make them"
        self.shapes += [shapes for shapes in trips if shapes not in self.shapes]
        ranks = {_ranks(shapes) for shapes in trips}
        self.programs = self.make([shapes for shapes in self.shapes if _ranks(shapes) in ranks])
        return self.programs

    def on_threads(self, num_threads: int) -> Bodies:
        """The same for another number of threads."""
        make = self.make
        programs = None if self.programs is None else self.programs.on_threads(num_threads)
        if make is None:
            return Bodies(None, programs, list(self.shapes))
        return Bodies(
            lambda trips: make(trips).on_threads(num_threads), programs, list(self.shapes)
        )

    @property
    def served(self) -> tuple[ServedShapes, ...]:
        """The programs, and the shapes that each serves."""
        return () if self.programs is None else self.programs.served()


def _program_at(programs: ModelPrograms, shapes: BodyShapes) -> Executable:
    """The program of a trip.  Raises ``BackendError`` where its body is no single program of ours,
    and ``QuantglowError`` where it cannot be compiled."""
    served = _serve_at(programs, shapes)
    if left := served.build.fallback:
        names = ", ".join(f"{node.name!r} ({node.op}): {node.reason}" for node in left)
        raise BackendError(f"its body has operators for other runtimes: {names}")
    if served.is_in_parts or served.build.segments:
        raise BackendError("its body is no single program")
    return served.build.executable


def _serve_at(programs: ModelPrograms, shapes: BodyShapes) -> Served:
    """The program for these shapes, which the inputs may have."""
    programs.signature.check(shapes, 1)
    return programs.prepare(Case.of(shapes)) if isinstance(programs, FreeShapes) else programs.first


@dataclass(eq=False, repr=False)
class BodyPrograms(Concise):
    """The programs of a body, and blocks of trips from some shapes on; ``apart``: trips run one by
    one, since one of them is no table of calls that others may follow."""

    programs: ModelPrograms
    blocks: list[TripBlock] = field(default_factory=list)
    apart: bool = False

    def block(self, number: int, progress: Progress, count: int) -> TripBlock:
        """A block of at least so many trips.  Raises ``QuantglowError``."""
        if number < len(self.blocks) and self.blocks[number].count >= count:
            return self.blocks[number]
        kinds = tuple((array.shape, array.dtype) for array in progress.carried)
        pairs = zip(progress.names.captured, progress.captured, strict=True)
        captured = {name: array.shape for name, array in pairs}
        block = TripBlock.of(progress.names, kinds, captured, count, self._tabulate)
        self.blocks[number : number + 1] = [block]
        return block

    def _tabulate(self, shapes: BodyShapes) -> LlvmExecutable:
        """The program of a trip as a table.  Raises ``QuantglowError``."""
        executable = _program_at(self.programs, shapes)
        if not isinstance(executable, LlvmExecutable):
            raise NoTableError("a trip is no table of calls")
        return executable

    def program_at(self, feeds: NamedArrays) -> Executable:
        """The program of a trip.  Raises ``QuantglowError``."""
        shapes = {name: array.shape for name, array in feeds.items()}
        if observer() is not None:
            show_run(_serve_at(self.programs, shapes), feeds)
        return _program_at(self.programs, shapes)


class NoTableError(BackendError):
    """A trip runs, but not by a table of calls that others may follow."""


@dataclass(eq=False, repr=False)
class CompiledLoop(Concise):
    """A loop, and the programs of its body.  Has the methods of a ``Session``, thread-safe.

    session   the whole loop in onnxruntime
    operands  computes the operands that no input is; None if there are none
    trip      a trip in onnxruntime
    int8      the quantized body; None if it is not
    not_int8  why it is not, if quantization was asked for
    why       reasons for which it stayed in onnxruntime at some shapes
    """

    names: Trips
    session: Session
    operands: Session | None
    trip: TripSession
    bodies: Bodies
    int8: CompiledModel | None = None
    not_int8: str = ""
    why: dict[Key, str] = field(default_factory=dict)
    _idle: dict[Key, list[BodyPrograms]] = field(default_factory=dict)

    def on_threads(self, num_threads: int) -> CompiledLoop:
        """The same for another number of threads."""
        int8 = None if self.int8 is None else self.int8.with_num_threads(num_threads)
        return CompiledLoop(
            self.names,
            self.session.on_threads(num_threads),
            self.operands and self.operands.on_threads(num_threads),
            self.trip.on_threads(num_threads),
            self.bodies.on_threads(num_threads)
            if int8 is None
            else Bodies(None, int8.specialisations),
            int8,
            self.not_int8,
        )

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return self.session.input_names

    @property
    def inputs(self) -> list[Any]:
        """Name, type and shape of each input."""
        return self.session.inputs

    @property
    def outputs(self) -> list[Any]:
        """The same of each output."""
        return self.session.outputs

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        """The named outputs (None: all)."""
        output_names = [info.name for info in self.outputs] if names is None else names
        results = self.results(feeds)
        if results is None:
            return self.session.run(feeds, output_names)
        return [results[name] for name in output_names]

    def results(self, feeds: Mapping[str, Any]) -> dict[str, Array] | None:
        """All results; None where onnxruntime has to run the loop."""
        progress = self.begun(feeds)
        if not progress.goes_on or (progress.limit is None and not self.names.holds):
            return None
        while not progress.has_elements:
            if progress.trips == MOST_EMPTY or not progress.goes_on:
                return None
            self.trip.step(progress)
        return progress.results if self._run_trips(progress) else None

    def begun(self, feeds: Mapping[str, Any]) -> Progress:
        """The loop before its first trip."""
        names, values = self.names, {**feeds, **self._operand_arrays(feeds)}

        def first(name: str) -> Any:
            return first_element(np.asarray(values[name]))

        def arrays(operands: Sequence[str]) -> tuple[Array, ...]:
            return tuple(np.asarray(values[name], order="C") for name in operands)

        return Progress(
            names,
            arrays(names.captured),
            arrays([carry.operand for carry in names.carried]),
            tuple([] for _ in names.stacked),
            max(0, int(first(names.limit))) if names.limit else None,
            holds=not names.condition or bool(first(names.condition)),
        )

    def _operand_arrays(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The operands that no input is."""
        if self.operands is None:
            return {}
        return self._compute(feeds) if self.operands.input_names else self._constants

    @cached_property
    def _constants(self) -> dict[str, Array]:
        return self._compute({})

    def _compute(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        assert self.operands is not None
        operands = self.operands.run({name: feeds[name] for name in self.operands.input_names})
        names = (info.name.removesuffix(GIVEN) for info in self.operands.outputs)
        return dict(zip(names, operands, strict=True))

    # -- compiled trips

    def _run_trips(self, progress: Progress) -> bool:
        """Make all further trips by programs; False where there are none for them."""
        key = _shapes(progress.captured), _shapes(progress.carried)
        if key in self.why:
            return False
        try:
            trips = self._take_idle(key) or BodyPrograms(
                self.bodies.prepare(self.observe(progress))
            )
            self._make(progress, trips)
        except (OutOfMemoryError, OutOfRangeError):
            raise
        except QuantglowError as error:
            self.why[key] = str(error.__cause__ or error)
            return False
        self._give(key, trips)
        return True

    def observe(self, progress: Progress) -> list[BodyShapes]:
        """The shapes of the inputs of some trips.  Raises ``QuantglowError``."""
        with observing(None):  # these trips are made again
            return self._observe(progress)

    def _observe(self, progress: Progress) -> list[BodyShapes]:
        shapes_of_trips, copy = list[BodyShapes](), progress.copy()
        while True:
            shapes_of_trips.append({name: array.shape for name, array in copy.feeds.items()})
            if len(shapes_of_trips) == SEEN or not copy.goes_on:
                break
            self.trip.step(copy)
            if not copy.has_elements:
                raise BackendError("a value that it carries has no elements after a trip")
        if len(set(map(_ranks, shapes_of_trips))) > 1:
            raise BackendError("a value that it carries has more dimensions after a trip")
        return shapes_of_trips

    def _make(self, progress: Progress, trips: BodyPrograms) -> None:
        """Make all further trips: one by one where they are traced or observed.

        Raises ``QuantglowError``.
        """
        if active() is None and observer() is None and not trips.apart:
            try:
                self._chain(progress, trips)
            except NoTableError:
                trips.apart = True
        outputs = [port.name for port in trips.programs.signature.outputs]
        while progress.goes_on:
            feeds = progress.feeds
            outputs_of_trip = trips.program_at(feeds).run(feeds)
            progress.proceed(dict(zip(outputs, outputs_of_trip, strict=True)))

    def _chain(self, progress: Progress, trips: BodyPrograms) -> None:
        """Make all further trips, many at once.  Raises ``QuantglowError``, ``NoTableError`` behind
        the last trip that is part of a table."""
        buffers: list[Array] = []
        number = 0
        while progress.goes_on:
            left = TRIPS if progress.limit is None else progress.limit - progress.trips
            block = trips.block(number, progress, min(left, TRIPS))
            buffers = buffers_for(block, progress.carried, buffers)
            block.run(buffers, progress, min(left, TRIPS))
            number += 1

    def _take_idle(self, key: Key) -> BodyPrograms | None:
        """Programs of trips that nobody uses."""
        try:
            # Not "if": another thread may take the last one after the question.
            return self._idle[key].pop()
        except (KeyError, IndexError):
            return None

    def _give(self, key: Key, trips: BodyPrograms) -> None:
        """Keep programs for further runs, those of the shapes that came last."""
        self._idle.setdefault(key, []).append(trips)
        for old in list(self._idle)[:-MOST_KEPT]:
            self._idle.pop(old, None)

    # -- for a report

    @property
    def is_int8(self) -> bool:
        """Whether the body is quantized."""
        return self.int8 is not None

    @property
    def is_left(self) -> bool:
        """Whether onnxruntime ran it at all shapes so far."""
        return bool(self.why) and not self._idle

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why onnxruntime runs it at some shapes."""
        return tuple(dict.fromkeys(self.why.values()))


def _ranks(shapes: BodyShapes) -> tuple[int, ...]:
    """The ranks of the inputs of a trip."""
    return tuple(map(len, shapes.values()))


def _shapes(arrays: Sequence[Array]) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in arrays)


def model_bytes(model: CompiledModel) -> bytes:
    """The bytes of a ``.qgm`` file of a model."""
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / "part.qgm"
        model.save(path)
        return path.read_bytes()


def export_body(body: CompiledModel) -> bytes:
    """The ONNX model of an int8 body, whose free dimensions have to stay free.  Raises
    ``ModelError``."""
    try:
        return body.to_onnx()
    except QuantglowError as error:
        raise ModelError(
            f"the body of a loop is int8, and has no ONNX form: {error} That is of the body, whose "
            "sizes are those of trips. Remedy: export the float model, as quantglow.compile makes "
            "it."
        ) from error
