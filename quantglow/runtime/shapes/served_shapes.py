"""Entries of a report about the programs of a model: which shapes each serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantglow.graph.signature import Dim
from quantglow.runtime.answers import Answers
from quantglow.runtime.build import Build
from quantglow.runtime.fallback import FallbackNode
from quantglow.runtime.shapes.general import GeneralProgram
from quantglow.runtime.shapes.general_segments import SegmentedProgram

FOR_ONE, FOR_ALL, WHOLE = "for this shape", "for all shapes", "where it cannot be compiled"
MEANWHILE = "while it is compiled"
"""How programs were made."""

MOST_CONDITIONS = 6
"""Conditions of a program that are shown."""


@dataclass(frozen=True)
class ServedShapes:
    """A program of a model.

    ``shapes``: those that it serves, ``x [N, 3, H, W]``.  ``program``: how it was made.
    ``conditions``: of the symbols, under which it serves them.  ``elsewhere``: operators that it
    leaves to other backends.
    """

    shapes: str
    program: str
    conditions: tuple[str, ...] = ()
    elsewhere: str = ""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ServedShapes:
        """The entry from the result of ``dataclasses.asdict``.  Raises ``KeyError`` or
        ``TypeError``."""
        conditions = tuple(map(str, data["conditions"]))
        shapes, program, elsewhere = (str(data[k]) for k in ("shapes", "program", "elsewhere"))
        return ServedShapes(shapes, program, conditions, elsewhere)


def served_by_own(shapes: Iterable[tuple[str, Iterable[Dim]]], build: Build) -> ServedShapes:
    """The entry of a program that was compiled for one shape."""
    return ServedShapes(shapes_text(shapes), FOR_ONE, elsewhere=elsewhere_text(build.fallback))


def served_by_onnxruntime(shapes: Iterable[tuple[str, Iterable[Dim]]], why: str) -> ServedShapes:
    """The entry of a model that runs whole in onnxruntime where it cannot be compiled."""
    return ServedShapes(shapes_text(shapes), WHOLE, elsewhere=why)


def served_meanwhile(calls: Answers) -> ServedShapes:
    """The entry of calls that onnxruntime answered."""
    number = f"{calls.onnxruntime} call{'s' if calls.onnxruntime > 1 else ''}"
    return ServedShapes(
        calls.shapes, MEANWHILE, elsewhere=f"{number} of the whole model in onnxruntime"
    )


def with_elsewhere(program: ServedShapes, rest: Iterable[FallbackNode]) -> ServedShapes:
    """The entry of a program behind which other operators run."""
    found = filter(None, (program.elsewhere, elsewhere_text(rest)))
    return replace(program, elsewhere=", ".join(found))


def elsewhere_text(nodes: Iterable[FallbackNode]) -> str:
    """``2 Gather in onnxruntime``."""
    counts = Counter((node.op, node.backend) for node in nodes)
    return ", ".join(f"{n} {op} in {backend}" for (op, backend), n in counts.items())


def served_by_general(program: GeneralProgram | SegmentedProgram) -> ServedShapes:
    """The entry of a program for all shapes."""
    conditions = list(program.guards.texts)
    if len(conditions) > MOST_CONDITIONS:
        rest = len(conditions) - MOST_CONDITIONS + 1
        conditions = [*conditions[: MOST_CONDITIONS - 1], f"and {rest} more"]
    elsewhere = elsewhere_text(program.fallback)
    return ServedShapes(shapes_text(program.source.template), FOR_ALL, tuple(conditions), elsewhere)


def shapes_text(shapes: Iterable[tuple[str, Iterable[Dim]]]) -> str:
    """``x [N, 3, H, W], mask [N, T]``."""
    return ", ".join(f"{name} [{', '.join(map(str, dims))}]" for name, dims in shapes)
