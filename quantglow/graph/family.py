"""The graphs of one model: one for each case of input shapes and deciding values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from quantglow.errors import (
    ImportBudgetError,
    ModelError,
    QuantglowError,
    UndecidedError,
    UnsupportedOpError,
)
from quantglow.foreign_types import Array
from quantglow.graph.case import Case, Values
from quantglow.graph.graph import Graph
from quantglow.graph.sharing import SharedArrays, paged_graph
from quantglow.graph.signature import Shapes, Signature

LARGER_BATCHES = (2, 3, 4, 6, 8, 16, 64)
"""Batches that are tried where a batch of 1 has no graph, as that of the largest 3 of N rows."""

KEPT = 8
"""Maximum number of graphs that are kept, the ones used last: samples often alternate between
few shapes.  Equal constants of these graphs share memory."""


@dataclass(eq=False)
class Family:
    """The graphs of one model, by case; equal names in them mean equal values of the model.

    ``make`` builds the graph of a case that ``signature`` allows; ``source`` is the opened model,
    of a class that only the frontend knows.  ``deciding`` are the inputs whose values are part of a
    case; ``make`` may ask for more of them by ``UndecidedError``.  ``notes`` are for the report.
    Not thread-safe.
    """

    signature: Signature
    source_hash: str
    make: Callable[[Case], Graph]
    source: object = None
    deciding: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    _kept: dict[Case, Graph] = field(default_factory=dict)
    _arrays: SharedArrays = field(default_factory=SharedArrays)

    @staticmethod
    def of(graph: Graph | Family) -> Family:
        """The family of one graph, or the family itself."""
        if isinstance(graph, Family):
            return graph
        return Family(graph.signature, graph.source_hash, lambda case: graph)

    @property
    def is_single(self) -> bool:
        """Whether it has exactly one graph."""
        return not self.signature.is_free and not self.deciding

    def at(self, shapes: Shapes, values: Values | None = None) -> Graph:
        """The graph for some input shapes and values of the deciding inputs.

        Raises ``InputError``, ``UndecidedError``, and the errors of ``make``.
        """
        case = Case.of({port.name: shapes[port.name] for port in self.signature.inputs}, values)
        if case not in self._kept:
            if self.signature.is_free:
                self.signature.check(shapes)
            made = self.make(case)
            self.deciding = tuple(sorted({*self.deciding, *(values or {})}))
            self._kept[case] = paged_graph(made) if self.is_single else self._arrays.graph(made)
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        found = self._kept[case] = self._kept.pop(case)  # the last one
        return found

    def fitting(self, feeds: Mapping[str, Array]) -> Graph:
        """The graph for some arrays; learns which inputs decide.

        Raises ``UndecidedError`` where ``make`` asks for inputs that it was given, and what ``at``
        raises.
        """
        while True:
            deciding = self.deciding
            case = Case.fitting(feeds, deciding)
            try:
                return self.at(case.shape_map, case.value_map)
            except UndecidedError as error:
                self.deciding = tuple(sorted({*deciding, *error.inputs}))
                if self.deciding == deciding:
                    raise

    def case_of(self, feeds: Mapping[str, Array]) -> Case:
        """The case of some arrays, with the values of all deciding inputs.  Raises no
        ``QuantglowError``.
        """
        with suppress(QuantglowError):
            self.fitting(feeds)
        return Case.fitting(feeds, self.deciding)

    @property
    def default(self) -> Graph | None:
        """The graph with batches of 1 if only batches are free; None for other models, and for
        those of which a graph exists for larger batches only.  Raises the errors of ``make``.
        """
        shapes = self.signature.default
        if shapes is None or self.deciding:
            return None
        try:
            return self.at(shapes)
        except UndecidedError as error:
            self.deciding = error.inputs
            return None
        except (ImportBudgetError, UnsupportedOpError):
            raise
        except ModelError:
            if any(self._exists_at(batch) for batch in LARGER_BATCHES):
                return None
            raise

    def _exists_at(self, batch: int) -> bool:
        """Whether there is a graph for batches of this size, where only batches are free."""
        shapes = self.signature.with_batch(batch)
        if shapes is None or not self.signature.is_free:
            return False
        try:
            self.at(shapes)
        except QuantglowError:
            return False
        return True
