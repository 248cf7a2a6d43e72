"""Programs of the body of a loop: those of a model of free dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quantglow.concise import Concise
from quantglow.errors import BackendError, QuantglowError
from quantglow.graph.case import Case
from quantglow.graph.signature import Shape
from quantglow.runtime.protocol import Executable
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.served_shapes import ServedShapes
from quantglow.runtime.shapes.specialisations import ModelPrograms, Served

BodyShapes = Mapping[str, Shape]
"""Shapes of the inputs of a body."""

Make = Callable[[Sequence[BodyShapes]], ModelPrograms]
"""Makes the programs of a body, given the shapes of its inputs in some trips."""


@dataclass(eq=False, repr=False)
class Bodies(Concise):
    """The programs of a body.

    ``make`` makes them where a size differs that did not before; None: those there are have to do.
    ``seen``: shapes of some trips.
    """

    make: Make | None = None
    programs: ModelPrograms | None = None
    seen: list[BodyShapes] = field(default_factory=list)

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
        self.seen += [shapes for shapes in trips if shapes not in self.seen]
        self.programs = self.make(self.seen)
        return self.programs

    @property
    def served(self) -> tuple[ServedShapes, ...]:
        """The programs, and the shapes that each serves."""
        return () if self.programs is None else self.programs.served()


def program_at(programs: ModelPrograms, shapes: BodyShapes) -> Executable:
    """The program of a trip.  Raises ``BackendError`` where its body is no single program of ours,
    and ``QuantglowError`` where it cannot be compiled."""
    found = served_at(programs, shapes)
    if left := found.build.fallback:
        names = ", ".join(f"{node.name!r} ({node.op}): {node.reason}" for node in left)
        raise BackendError(f"its body has operators for other runtimes: {names}")
    if found.is_in_parts or found.build.segments:
        raise BackendError("its body is no single program")
    return found.build.executable


def served_at(programs: ModelPrograms, shapes: BodyShapes) -> Served:
    """The program for these shapes, which the inputs may have."""
    programs.signature.check(shapes, 1)
    return programs.prepare(Case.of(shapes)) if isinstance(programs, FreeShapes) else programs.first
