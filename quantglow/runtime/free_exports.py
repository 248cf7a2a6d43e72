"""Export with free dimensions: the graph for all shapes, whose sizes are expressions of symbols.

Decisions that depend on a symbol are guards of the graph.  A symbol that guards fix is a fixed
dimension of the exported model if the model takes no other size; else it is refused.  Where other
guards do not hold, the exported model is run beside the graph of these shapes, and refused if it
computes something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from quantglow.errors import (
    FallbackError,
    InputError,
    ModelError,
    QuantglowError,
    UndecidedError,
    UnsupportedOpError,
)
from quantglow.graph.case import Case
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Signature
from quantglow.interpreter import interpret
from quantglow.lazy import cached_property
from quantglow.runtime.newer_opsets import opened
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specialisations import case_of
from quantglow.runtime.templates import (
    USUAL,
    Template,
    case_with,
    fitting,
    template_of,
    without_ones,
)
from quantglow.symbolic.expression import symbol
from quantglow.symbolic.guards import Guard, Guards
from quantglow.symbolic.size import symbols
from quantglow.types import Array

REMEDY = "Remedy: export one shape: export_onnx(path, input_shapes={name: shape})."

UNKNOWN = (USUAL, 16, 32, 64, 128, 224, 256, 512)
"""Sizes of all free dimensions that are tried where none came yet."""

SMALL = 32
"""Maximum of sizes whose neighbours any model takes that takes them."""

MOST_KNOWN = 3
"""Maximum number of cases that came of which others are made."""

MOST_PROBES = 8
"""Maximum number of shapes at which an exported model is run beside its graph."""

NEAR, SHARE = 0.1, 0.9
"""Share of the largest number by which this share of all numbers may differ: a rounding that turns
moves later ones, a wrong size moves all."""

Sizes = Mapping[str, int]
"""Sizes of symbols."""


def free_model(programs: FreeShapes) -> bytes:
    """The ONNX model of all shapes that the model takes; the original where no shape of it can be
    compiled.

    Raises ``ModelError`` where a dimension cannot stay free, ``InputError`` where no shape is known
    and none was found.
    """
    refused: QuantglowError | None = None
    known, most = _known(programs), 0
    for case in _cases(programs, known):
        try:
            made = FreeGraph.of(programs, template_of(programs.signature, case), case)
            if len(made.hints) < most:
                break  # it would fix a dimension of which the model takes other sizes
            most = len(made.hints)
            return made.with_fixed(made.pinned).checked
        except CannotStayFreeError as error:
            refused = error
        except QuantglowError as error:
            if isinstance(error, UndecidedError) and not known:
                raise InputError(
                    f"values of the input(s) {', '.join(error.inputs)} decide what is computed, "
                    "and no run showed any. Remedy: run the model once before the export."
                ) from error
            refused = refused if isinstance(refused, CannotStayFreeError) else error
    return _without_free_graph(programs, known, refused)


class CannotStayFreeError(ModelError):
    """A dimension has to be fixed."""


def _without_free_graph(
    programs: FreeShapes, known: Sequence[Case], refused: QuantglowError | None
) -> bytes:
    """The original where no shape that came can be compiled.  Raises ``refused`` or the like."""
    if isinstance(refused, CannotStayFreeError):
        raise refused
    is_left = isinstance(refused, UnsupportedOpError | FallbackError)
    if is_left and programs.fallback and not any(_is_compiled(programs, case) for case in known):
        return programs.fallback.original()
    if known:
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


def _known(programs: FreeShapes) -> list[Case]:
    """The cases that came, those of most free dimensions first."""
    first = [] if programs.is_empty else [case_of(programs.first)]
    cases = list(dict.fromkeys([*first, *reversed(programs.cases)]))

    def count(case: Case) -> int:
        return len(fitting(template_of(programs.signature, case), case) or {})

    return sorted(cases, key=count, reverse=True)[:MOST_KNOWN]


def _cases(programs: FreeShapes, known: Sequence[Case]) -> Iterator[Case]:
    """Cases to make the graph at: others than those that came as far as the model takes them, with
    sizes that differ and none that are small, since these have graphs of their own; where none
    came, such of equal sizes."""
    signature = programs.signature
    for case in known:
        for are_apart in (True, False):
            yield _grown(signature, case, are_apart)
    for case in known:
        yield _taken(programs, case)
    if known:
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
            yield _grown(signature, Case.of(shapes), are_apart)


def _taken(programs: FreeShapes, case: Case) -> Case:
    """The case with ``USUAL`` for each free dimension of 1 of which the model takes that."""
    large = without_ones(programs.signature, case)
    template = template_of(programs.signature, large)
    sizes = fitting(template, large) or {}
    ones = [name for name, size in _sizes_at(template, case).items() if size == 1]
    taken = {**sizes, **dict.fromkeys(ones, 1)}
    for name in ones:
        with suppress(QuantglowError):
            programs.graph_at(case_with(template, {**taken, name: USUAL}, case.values))
            taken[name] = USUAL
    return case_with(template, taken, case.values)


def _sizes_at(template: Template, case: Case) -> dict[str, int]:
    """The sizes of the symbols of a template in a case, those of 1, too."""
    shapes = case.shape_map
    pairs = [p for name, dims in template for p in zip(dims, shapes[name], strict=True)]
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


def _grown(signature: Signature, case: Case, are_apart: bool) -> Case:
    """The case with at least ``USUAL`` for each free dimension; ``are_apart``: all of them differ,
    those of equal large sizes by a factor."""
    given = without_ones(signature, case)
    template = template_of(signature, given)
    sizes: dict[str, int] = {}
    for name, size in (fitting(template, given) or {}).items():
        least = max(size, USUAL)
        step = least if least > SMALL else 1
        while are_apart and least in sizes.values():
            least += step
        sizes[name] = least
    return case_with(template, sizes, case.values)


@dataclass(frozen=True, eq=False)
class FreeGraph:
    """A graph with free sizes, made at a case, and the guards under which it is that of others."""

    programs: FreeShapes
    template: Template
    case: Case
    hints: Sizes
    graph: Graph
    guards: Guards

    @staticmethod
    def of(programs: FreeShapes, template: Template, case: Case) -> FreeGraph:
        """The graph at a case.  Raises ``QuantglowError`` where the model does not take it."""
        programs.signature.check(case.shape_map)
        hints = fitting(template, case) or {}
        sizes, guards = symbols(hints)
        graph = programs.graph_at(case_with(template, sizes, case.values))
        return FreeGraph(programs, template, case, hints, graph, guards)

    @cached_property
    def exported(self) -> bytes:
        """The ONNX model.  Raises ``ModelError``."""
        return self._written(self.graph)

    def _written(self, graph: Graph) -> bytes:
        # Imported here because a process that runs a saved model does not need onnx.
        from quantglow.frontend.export.model import export_onnx

        slots: dict[str, tuple[str, int]] = {}
        for name, dims in self.template:
            for axis, dim in enumerate(dims):
                if isinstance(dim, str):
                    slots.setdefault(dim, (name, axis))
        made = export_onnx(graph, dimensions=slots, signature=self.programs.signature)
        return bytes(made.SerializeToString())

    @property
    def asked(self) -> dict[Guard, str]:
        """The guards that shapes may fail, and the places that need them."""
        return {guard: at for guard, at in self.guards.found.items() if not guard.is_limit}

    @property
    def pinned(self) -> dict[str, int]:
        """Symbols that guards fix, with their sizes.

        Raises ``ModelError`` for one of which the model takes other sizes.
        """
        self.exported  # noqa: B018 - the exporter may ask for guards, too
        found: dict[str, int] = {}
        for name, hint in self.hints.items():
            low, high = self.guards.bounds(symbol(name))
            if low == high:
                found[name] = hint
                if any(self.takes({**self.hints, name: size}) for size in others(hint)):
                    raise CannotStayFreeError(
                        f"what the model computes from its dimension {name!r} has an ONNX form at "
                        f"one size only, so it cannot stay free ({self.why(name)}). {REMEDY}"
                    )
        return found

    def why(self, name: str) -> str:
        """The guard that fixes a symbol, in words."""
        named = (str(guard) for guard in self.asked if name in guard.expression.names)
        return next(named, name)

    def with_fixed(self, pinned: Sizes) -> FreeGraph:
        """The graph with integers for some of the symbols."""
        if not pinned:
            return self
        template = tuple(
            (name, tuple(pinned.get(dim, dim) if isinstance(dim, str) else dim for dim in dims))
            for name, dims in self.template
        )
        return FreeGraph.of(self.programs, template, self.case)

    def at(self, sizes: Sizes) -> Graph:
        """The graph of some sizes alone.  Raises ``QuantglowError``."""
        case = case_with(self.template, dict(sizes), self.case.values)
        self.programs.signature.check(case.shape_map)
        return self.programs.graph_at(case)

    def takes(self, sizes: Sizes) -> bool:
        """Whether the model takes some sizes."""
        with suppress(QuantglowError):
            self.at(sizes)
            return True
        return False

    @property
    def checked(self) -> bytes:
        """The ONNX model.  Raises ``ModelError`` unless it computes what the model does where
        guards do not hold."""
        # Without the types that ends declare, which not all arrays can have.
        core = self._written(replace(self.graph, declared={}))
        session, probes = None, 0
        open_guards = list(self.asked)
        for sizes in self.probes():
            broken = [guard for guard in open_guards if not guard.holds(sizes)]
            if not broken and min(sizes.values(), default=2) > 1:
                continue
            if probes == MOST_PROBES:
                break
            try:
                graph = self.at(sizes)
                feeds = self.feeds(graph)
                wanted = interpret(graph, feeds)
            except QuantglowError:
                continue
            probes += 1
            session = session or opened(core)
            try:
                found = session.run({name: feeds[name] for name in session.input_names})
            except QuantglowError as error:
                raise self.refusal(sizes, broken, str(error)) from error
            if not all(map(is_alike, found, wanted)):
                raise self.refusal(sizes, broken, "the results differ")
            open_guards = [guard for guard in open_guards if guard not in broken]
        return self.exported

    def probes(self) -> Iterator[Sizes]:
        """Sizes that came, others near those of the case, and smaller ones."""
        yield from (_sizes_at(self.template, case) for case in _known(self.programs))
        yield dict.fromkeys(self.hints, 1)
        yield {name: hint + 1 + i for i, (name, hint) in enumerate(self.hints.items())}
        yield {name: 2 * hint + 1 for name, hint in self.hints.items()}
        for name, hint in self.hints.items():
            for size in (1, *others(hint)):
                yield {**self.hints, name: size}

    def refusal(self, sizes: Sizes, broken: Iterable[Guard], why: str) -> CannotStayFreeError:
        """The error for a model that computes something else at some sizes."""
        names = {name for guard in broken for name in guard.expression.names} or set(sizes)
        shown = ", ".join(f"{name} = {sizes[name]}" for name in sorted(names) if name in sizes)
        return CannotStayFreeError(
            f"the ONNX form of the model differs from shape to shape, as for {shown}, so its "
            f"dimensions cannot stay free: {why:.300}. {REMEDY}"
        )

    def feeds(self, graph: Graph) -> dict[str, Array]:
        """Arrays for the inputs of a graph: numbers of both signs, indices 0 and 1."""
        rng = np.random.default_rng(0)
        values = dict(self.case.values or ())

        def array(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
            if name in values:
                return np.array(values[name]).reshape(shape).astype(dtype)
            if dtype.kind == "f":
                return rng.normal(size=shape).astype(dtype)
            return np.asarray(rng.integers(0, 2, shape)).astype(dtype)

        return {x.name: array(x.name, x.type.shape, x.type.dtype.numpy) for x in graph.inputs}


def others(size: int) -> tuple[int, ...]:
    """Other sizes, near and far."""
    found = (size + 1, 2 * size, 3 * size, size // 2, size - 1, 2 * size + 1, 3, 2)
    return tuple(n for n in dict.fromkeys(found) if n > 0 and n != size)


def is_alike(found: Array, wanted: Array) -> bool:
    """Whether most numbers are near, and the shapes are equal."""
    if found.shape != wanted.shape:
        return False
    one, other = (np.asarray(array, np.float64) for array in (found, wanted))
    with np.errstate(invalid="ignore"):
        finite = np.abs(other[np.isfinite(other)])
        near = np.abs(one - other) <= NEAR * finite.max(initial=0) + 1e-6
        near |= (one == other) | (np.isnan(one) & np.isnan(other))
    return bool(near.mean() >= SHARE) if near.size else True
