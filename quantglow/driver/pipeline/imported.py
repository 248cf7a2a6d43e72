"""Stage 1: a model, or the part of it that can be compiled, as a family of float graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quantglow import debug, frontend
from quantglow.driver.models import InputShapes, float_family_of
from quantglow.driver.samples import profile_in
from quantglow.errors import QuantglowError, UnsupportedOpError
from quantglow.graph.case import Case
from quantglow.graph.family import Family
from quantglow.profiling.data import first_of


@dataclass(frozen=True)
class Cut:
    """A model that cannot be compiled to its end: ``error`` says why, ``split`` where it is cut."""

    source: frontend.Source
    split: frontend.Split
    error: UnsupportedOpError


@dataclass(frozen=True)
class Imported:
    """The float graphs of a model.

    model    the model that is compiled: the user's, or the head of one that is cut
    data     the calibration data; a sample that was read for its shapes is part of it again
    cut      where the compiled part ends; None for a model that is compiled whole
    seconds  wall time by stage; later stages add theirs
    """

    model: Any
    family: Family
    data: Any
    cut: Cut | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def imported(model: Any, data: Any, input_shapes: InputShapes | None = None) -> Imported:
    """Import a model at the shapes that it fixes, that are given, or that ``data`` begins with.

    Raises ``UnsupportedOpError`` where no part of it can be compiled.
    """
    seconds: dict[str, float] = {}
    case = Case.of({name: tuple(shape) for name, shape in (input_shapes or {}).items()})
    with debug.timed("import", seconds):
        try:
            family = float_family_of(model, input_shapes)
            if not family.is_single:
                first, data = _first_case(family, data)
                case = first or case
                if first:
                    _try_out(family, first)
        except UnsupportedOpError as error:
            cut = _cut(model, case, error)
            head = cut.split.head
            return Imported(head, float_family_of(head, input_shapes), data, cut, seconds)
    return Imported(model, family, data, None, seconds)


def _first_case(family: Family, data: Any) -> tuple[Case | None, Any]:
    """The case of a profile or of the first sample, and the data with that sample still in it.

    None for samples that do not fit: the profiler, which comes next, says why.
    """
    if (known := profile_in(data)) is not None:
        return next(iter(known.main_cases), None), data
    feeds, data = first_of(data, family.signature)
    return None if feeds is None else family.case_of(feeds), data


def _try_out(family: Family, case: Case) -> None:
    """Import the model for a case.  Raises ``UnsupportedOpError``; the profiler other ones."""
    try:
        family.at(case.shape_map, case.value_map)
    except UnsupportedOpError:
        raise
    except QuantglowError:
        pass


def _cut(model: Any, case: Case, error: UnsupportedOpError) -> Cut:
    """The place to cut the model.  Raises ``error`` if no part of it can be compiled."""
    source = frontend.open_model(model)
    parts = frontend.split(source, case.shape_map, case.value_map)
    if parts is None:
        raise error
    return Cut(source, parts, error)
