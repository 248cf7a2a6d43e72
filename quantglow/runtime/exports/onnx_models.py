"""ONNX models of compiled ones: int8 values as QDQ, with fixed or free dimensions.

The sizes of a graph with free dimensions are expressions of symbols.  A symbol that guards fix is a
fixed dimension of the exported model if the model takes no other size; else it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from quantglow.ir.graph.family import Case
from quantglow.ir.graph.signature import Shapes, Signature
from quantglow.ir.symbolic.expression import USUAL
from quantglow.runtime.exports.free_graphs import REMEDY, CannotStayFreeError, FreeGraph, sizes_at
from quantglow.runtime.programs.symbolic_graphs import (
    case_template,
    case_with,
    fitting,
    without_ones,
)
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import ModelPrograms, served_case
from quantglow.support.errors import (
    FallbackError,
    InputError,
    ModelError,
    OptionError,
    QuantglowError,
    UndecidedError,
    UnsupportedOpError,
)
from quantglow.support.files import writing

UNKNOWN = (USUAL, 16, 32, 64, 128, 224, 256, 512)
"""Sizes of all free dimensions that are tried where none came yet."""

SMALL = 32
"""Maximum of sizes whose neighbors any model takes that takes them."""

MOST_KNOWN = 3
"""Maximum number of cases that came of which others are made."""

MOST_REFUSALS = 3
"""Maximum number of cases that are tried where a dimension has to be fixed at each."""


def _free_model(programs: FreeShapes) -> bytes:
    """The ONNX model of all shapes that the model takes; the original where no shape of it can be
    compiled.

    Raises ``ModelError`` where a dimension cannot stay free, ``InputError`` where no shape is known
    and none was found.
    """
    refused: QuantglowError | None = None
    cases, most, refusals = _know(programs), 0, 0
    for case in _cases(programs, cases):
        try:
            template = case_template(programs.signature, case)
            free = FreeGraph.of(programs, template, case, cases).apart
            if len(free.hints) < most:
                break  # it would fix a dimension of which the model takes other sizes
            most = len(free.hints)
            return free.model()
        except CannotStayFreeError as error:
            refused, refusals = error, refusals + 1
            if refusals == MOST_REFUSALS:
                break
        except OptionError:  # the model has no graph at any shape
            raise
        except QuantglowError as error:
            if isinstance(error, UndecidedError) and not cases:
                raise InputError(
                    f"values of the input(s) {', '.join(error.inputs)} decide what is computed, "
                    "and no run showed any. Remedy: run the model once before the export."
                ) from error
            refused = refused if isinstance(refused, CannotStayFreeError) else error
    return _without_free_graph(programs, cases, refused)


def _without_free_graph(
    programs: FreeShapes, cases: Sequence[Case], refused: QuantglowError | None
) -> bytes:
    """The original where no shape that came can be compiled.  Raises ``refused`` or the like."""
    if isinstance(refused, CannotStayFreeError):
        raise refused
    is_left = isinstance(refused, UnsupportedOpError | FallbackError)
    if is_left and programs.fallback and not any(_is_compiled(programs, case) for case in cases):
        return programs.fallback.original()
    if cases:
        raise CannotStayFreeError(f"the dimensions cannot stay free: {refused}. {REMEDY}")
    raise InputError(
        "the model was not run yet, so no sizes of its free dimensions are known, and those that "
        f"were tried ({', '.join(map(str, UNKNOWN))}) do not fit: {refused}. Remedy: run it once."
    )


def _is_compiled(programs: FreeShapes, case: Case) -> bool:
    """Whether a case has a graph."""
    with suppress(QuantglowError):
        programs.graph_at(case)
        return True
    return False


def _know(programs: FreeShapes) -> list[Case]:
    """The cases that came, those of most free dimensions first."""
    first = [] if programs.is_empty else [served_case(programs.first)]
    cases = list(dict.fromkeys([*first, *reversed(programs.cases)]))

    def count(case: Case) -> int:
        return len(fitting(case_template(programs.signature, case), case) or {})

    return sorted(cases, key=count, reverse=True)[:MOST_KNOWN]


def _cases(programs: FreeShapes, cases: Sequence[Case]) -> Iterator[Case]:
    """Cases to make the graph at: others than those that came as far as the model takes them, with
    sizes that differ and none that are small, since these have graphs of their own; where none
    came, such of equal sizes."""
    signature = programs.signature
    for case in cases:
        for are_apart in (True, False):
            yield _grow(signature, case, are_apart)
    for case in cases:
        yield _serve_case(programs, case)
    if cases:
        return
    if unranked := [port.name for port in signature.inputs if port.dims is None]:
        raise InputError(
            f"input {unranked[0]!r} is of no fixed rank, and the model was not run yet. "
            "Remedy: run it once before the export."
        )
    for size in UNKNOWN:
        shapes = {
            port.name: tuple(d if isinstance(d, int) else size for d in port.dims or ())
            for port in signature.inputs
        }
        for are_apart in (True, False):
            yield _grow(signature, Case.of(shapes), are_apart)


def _serve_case(programs: FreeShapes, case: Case) -> Case:
    """The case with ``USUAL`` for each free dimension of 1 of which the model takes that."""
    large = without_ones(programs.signature, case)
    template = case_template(programs.signature, large)
    sizes = fitting(template, large) or {}
    ones = [name for name, size in sizes_at(template, case).items() if size == 1]
    accepted = {**sizes, **dict.fromkeys(ones, 1)}
    for name in ones:
        with suppress(QuantglowError):
            programs.graph_at(case_with(template, {**accepted, name: USUAL}, case.values))
            accepted[name] = USUAL
    return case_with(template, accepted, case.values)


def _grow(signature: Signature, case: Case, are_apart: bool) -> Case:
    """The case with at least ``USUAL`` for each free dimension; ``are_apart``: all of them differ,
    those of equal large sizes by a factor."""
    large = without_ones(signature, case)
    template = case_template(signature, large)
    sizes: dict[str, int] = {}
    for name, size in (fitting(template, large) or {}).items():
        least = max(size, USUAL)
        step = least if least > SMALL else 1
        while are_apart and least in sizes.values():
            least += step
        sizes[name] = least
    return case_with(template, sizes, case.values)


def whole_model(programs: ModelPrograms, shapes: Shapes | None) -> bytes:
    """The model of some programs; ``shapes`` fixes those of its inputs.

    Raises ``ModelError`` and ``InputError``.
    """
    if shapes is None and isinstance(programs, FreeShapes):
        _check_values(programs)
        if programs.signature.is_free:
            return _free_model(programs)
    # Imported here because a process that runs a saved model does not need onnx.
    from quantglow.export.onnx.model import export_onnx

    try:
        graph = programs.first.graph if shapes is None else programs.graph_for(shapes)
    except (UnsupportedOpError, FallbackError) as error:
        raise OptionError(
            f"input_shapes: onnxruntime runs the model at these shapes, since {error}. "
            "Remedy: leave input_shapes out."
        ) from error
    if graph.has_free_sizes and isinstance(programs, FreeShapes):
        return _late_model(programs, shapes)
    return bytes(export_onnx(graph, signature=programs.signature).SerializeToString())


def _late_model(programs: FreeShapes, shapes: Shapes | None) -> bytes:
    """The ONNX model of one combination of input shapes, at which results decide sizes."""
    case = served_case(programs.first)
    if shapes is not None:
        case = Case.of(shapes, dict(case.values or ()))
    return FreeGraph.of(programs, case.shapes, case).apart.model()


def _check_values(programs: FreeShapes) -> None:
    """Raise ``ModelError`` where values of inputs decide shapes or branches: an ONNX model would be
    that of some values only."""
    cases = [] if programs.is_empty else [served_case(programs.first)]
    names = {name for case in (*cases, *programs.cases) for name, _ in case.values or ()}
    if names:
        raise ModelError(
            f"values of the input(s) {', '.join(sorted(names))} decide shapes or branches, so the "
            "exported model would hold for some values only. Remedy: export that of the values "
            "that came first, by input_shapes={name: shape}."
        )


def write(model: bytes, path: str) -> None:
    """Write a model to a file, replaced at once or not at all."""
    with writing(path) as temporary:
        temporary.write_bytes(model)
