"""Shapes of inputs with a symbol for each free dimension."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quantglow.graph.case import Case
from quantglow.graph.signature import Dim, Port, Signature, is_symbol
from quantglow.symbolic.expression import LARGEST, SMALLEST
from quantglow.symbolic.text import identifiers

Template = tuple[tuple[str, tuple[int | str, ...]], ...]
"""Shapes by input name; a free dimension is the name of its symbol, an identifier."""

Values = tuple[tuple[str, tuple[int, ...]], ...] | None
"""Deciding values of inputs, as a ``Case`` has them."""


def template_of(signature: Signature, case: Case) -> Template:
    """The shapes of a case with symbols for its free dimensions but those of 1."""
    shapes = case.shape_map
    free = [(p, list(_free_dimensions(p, len(shapes[p.name])))) for p in signature.inputs]
    names = identifiers(dict.fromkeys(name for _, found in free for _, name in found))
    template = []
    for port, found in free:
        sizes: list[int | str] = [*shapes[port.name]]
        for axis, name in found:
            if shapes[port.name][axis] >= SMALLEST:
                sizes[axis] = names[name]
        template.append((port.name, tuple(sizes)))
    return tuple(template)


def _free_dimensions(port: Port, rank: int) -> Iterator[tuple[int, str]]:
    """The axis and the name of each free dimension: its own, which others may share, or that of its
    place.
    """
    dims: tuple[Dim, ...] = port.dims or (None,) * rank
    for axis, dim in enumerate(dims):
        if not isinstance(dim, int):
            yield axis, str(dim) if is_symbol(dim) else f"{port.name}_{axis}"


USUAL = 8
"""A size that stands for all above 1: recurrences of fewer steps are not loops."""


def without_ones(signature: Signature, case: Case) -> Case:
    """The case with ``USUAL`` for each free dimension of 1."""
    shapes = {name: [*shape] for name, shape in case.shapes}
    for port in signature.inputs:
        for axis, _ in _free_dimensions(port, len(shapes[port.name])):
            if shapes[port.name][axis] < SMALLEST:
                shapes[port.name][axis] = USUAL
    found = {name: tuple(shape) for name, shape in shapes.items()}
    return replace(Case.of(found), values=case.values)


def fitting(template: Template, case: Case) -> dict[str, int] | None:
    """The values of the symbols at the shapes of a case; None if these do not fit."""
    found: dict[str, int] = {}
    shapes = case.shape_map
    for dims, shape in dict.fromkeys([(dims, shapes[name]) for name, dims in template]):
        if len(shape) != len(dims):
            return None
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int):
                if dim != size:
                    return None
            elif not SMALLEST <= size <= LARGEST or found.setdefault(dim, size) != size:
                return None
    return found


def case_with(template: Template, sizes: dict[str, int], values: Values) -> Case:
    """The case of a template with these sizes for its symbols."""
    shapes = {
        name: tuple(dim if isinstance(dim, int) else sizes[dim] for dim in dims)
        for name, dims in template
    }
    return Case(tuple(sorted(shapes.items())), values)
