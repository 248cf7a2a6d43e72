"""Families: the graphs of a model, one for each case, with equal constants held once.

A ``Case`` has the input shapes, and the values of deciding inputs, that one graph serves; in a
``FreeCase`` sizes may be free, and its graph serves many shapes.
``SharedArrays`` holds equal constants of many graphs once, the large ones in pages of a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from mmap import mmap
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.graph.signature import Shapes, Signature
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import FixedShape, Shape
from quantglow.support import pages
from quantglow.support.arrays import Array
from quantglow.support.classes import Hashed, cached_property
from quantglow.support.errors import (
    ImportBudgetError,
    ModelError,
    QuantglowError,
    UndecidedError,
    UnsupportedOpError,
)


class LateResults(StrEnum):
    """The treatment of results whose shapes are known when their nodes have run.

    ``SYMBOLIC``: they have sizes of their own, and what reads them is a part of the graph.
    ``OPAQUE``: other runtimes compute with them, up to the next value of a known shape.
    """

    REFUSED = "refused"
    SYMBOLIC = "symbolic"
    OPAQUE = "opaque"


Values = Mapping[str, tuple[int, ...]]
"""Input name -> its elements in order: integers, or conditions as 0 and 1."""

ResultShapes = tuple[tuple[str, FixedShape], ...]
"""Shapes of results whose nodes decide them, by name."""

MAX_CASES = 1024
"""Number of cases that are kept for later calls, of all models."""

MOST_DECIDING = 16
"""Maximum number of elements of an input whose values may decide shapes or branches."""

LEAST_NBYTES = 4096
"""Minimum size of an array that is shared, in bytes."""

_keys: WeakKeyDictionary[mmap, dict[tuple[int, str], bytes]] = WeakKeyDictionary()
"""Hashes of arrays in pages by their places, which are read-only."""

LARGER_BATCHES = (2, 3, 4, 6, 8, 16, 64)
"""Batches that are tried where a batch of 1 has no graph, as that of the largest 3 of N rows."""

MAX_GRAPHS = 8
"""Maximum number of graphs that are kept, the ones used last: samples often alternate between
few shapes.  Equal constants of these graphs share memory."""


@dataclass(frozen=True)
class FreeCase(Hashed):
    """Input shapes by name, whose sizes may be free, and the values of the inputs that decide
    shapes or branches, such as a sampling rate.

    ``values`` is None if the case covers all values.  ``late``: shapes of results, by name, whose
    nodes decide them.  ``guards``: those of all free sizes, also of late ones.
    """

    shapes: tuple[tuple[str, Shape], ...]
    values: tuple[tuple[str, tuple[int, ...]], ...] | None = ()
    late: ResultShapes = ()
    guards: Guards | None = field(default=None, compare=False, repr=False)

    @property
    def shape_map(self) -> Mapping[str, Shape]:
        """Shapes by name."""
        return dict(self.shapes)

    @property
    def value_map(self) -> Values | None:
        """Values by name."""
        return None if self.values is None else dict(self.values)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: dictionaries ask often, and a case may have dozens of shapes."""
        return hash((self.shapes, self.values, self.late))

    def __str__(self) -> str:
        values = f" with the values {dict(self.values)}" if self.values else ""
        return f"{dict(self.shapes)}{values}"


@dataclass(frozen=True, order=True)
class Case(FreeCase):
    """A case of plain sizes, as a call has."""

    shapes: tuple[tuple[str, FixedShape], ...]

    __hash__ = FreeCase.__hash__  # else that of dataclasses, which is computed each time

    @staticmethod
    def of(shapes: Shapes, values: Values | None = None) -> Case:
        """The case of some shapes and values."""
        entries = tuple(sorted((name, tuple(v)) for name, v in (values or {}).items()))
        return Case(tuple(sorted((name, tuple(s)) for name, s in shapes.items())), entries)

    @staticmethod
    def fitting(feeds: Mapping[str, Array], deciding: Collection[str] = ()) -> Case:
        """The case of a run; ``deciding`` are the names of inputs whose values count."""
        if not deciding:
            return _of_shapes(tuple([(name, array.shape) for name, array in feeds.items()]))
        return Case.of(
            {name: array.shape for name, array in feeds.items()},
            {name: elements(feeds[name]) for name in deciding if may_decide(feeds[name])},
        )

    @property
    def shape_map(self) -> Shapes:
        """Shapes by name."""
        return dict(self.shapes)

    def to_json(self) -> list[Any]:
        """Shapes, values and shapes of results in types that ``json`` writes."""
        return [dict(self.shapes), self.value_map, dict(self.late)]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Case:
        """The case from the result of ``to_json``.  Raises ``TypeError`` or ``ValueError``."""
        shapes, values, late = data
        case = Case.of({str(name): tuple(map(int, shape)) for name, shape in shapes.items()})
        deciding = None if values is None else Case.of({}, values_from_json(values)).values
        results = tuple((str(name), tuple(map(int, shape))) for name, shape in late.items())
        return replace(case, values=deciding, late=results)

    @property
    def whatever_values(self) -> Case:
        """The case of the same shapes and all values."""
        return replace(self, values=None)


@lru_cache(MAX_CASES)
def _of_shapes(shapes: tuple[tuple[str, FixedShape], ...]) -> Case:
    """The case of shapes in any order, made once: each call of a model has one."""
    return Case(tuple(sorted(shapes)))


def may_decide(array: Array) -> bool:
    """Whether an input is a small array of integers or conditions."""
    return array.dtype.kind in "iub" and array.size <= MOST_DECIDING


def elements(array: Array) -> tuple[int, ...]:
    return tuple(map(int, array.reshape(-1).tolist()))


def values_from_json(data: Mapping[str, Any]) -> Values:
    """Values as read by ``json``.  Raises ``TypeError`` or ``ValueError``."""
    return {str(name): tuple(map(int, value)) for name, value in data.items()}


def content_key(array: Array) -> bytes:
    """A hash of the type, the shape and the elements; made once for an array in pages."""
    kind = f"{array.dtype.str}{array.shape}{array.strides}"
    if (file := pages.mapped_file(array)) is None:
        return _hash_array(array)
    keys = _keys.setdefault(file, {})
    place = array.ctypes.data, kind
    if place not in keys:
        keys[place] = _hash_array(array)
        pages.release_pages()
    return keys[place]


def _hash_array(array: Array) -> bytes:
    """sha256 of the type, the shape and the elements."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


@dataclass(frozen=True)
class SharedArrays:
    """Arrays by content, held weakly.  Thread-safe."""

    _arrays: WeakValueDictionary[bytes, Array] = field(default_factory=WeakValueDictionary)

    def graph(self, graph: Graph) -> Graph:
        """The graph with shared arrays; those that are new lie in pages."""
        large = [array for array in constant_arrays(graph) if array.nbytes >= LEAST_NBYTES]
        keys = [content_key(array) for array in large]
        new = {k: a for k, a in zip(keys, large, strict=True) if k not in self._arrays}
        new = dict(zip(new, in_pages(list(new.values())), strict=True))
        pairs = zip(keys, large, strict=True)
        return with_arrays(graph, {id(a): self._keep(k, new.get(k, a)) for k, a in pairs})

    def _keep(self, key: bytes, array: Array) -> Array:
        return self._arrays.setdefault(key, array)


def _page_graph(graph: Graph) -> Graph:
    """The graph with its large arrays in pages."""
    arrays = constant_arrays(graph)
    return with_arrays(graph, dict(zip(map(id, arrays), in_pages(arrays), strict=True)))


def constant_arrays(graph: Graph) -> list[Array]:
    """The arrays of its Constants, each once."""
    constants = (node for node in graph.every_node() if isinstance(node, Constant))
    return list({id(node.value): node.value for node in constants}.values())


def in_pages(arrays: list[Array]) -> list[Array]:
    """The arrays, the large ones in pages if that is worth it."""
    large = [a for a in arrays if a.nbytes >= pages.LEAST_NBYTES and pages.mapped_file(a) is None]
    copies = pages.page(large) if pages.is_worth_paging(a.nbytes for a in large) else None
    by_id = dict(zip(map(id, large), large if copies is None else copies, strict=True))
    return [by_id.get(id(array), array) for array in arrays]


def with_arrays(graph: Graph, arrays: Mapping[int, Array]) -> Graph:
    """The graph with other arrays in its Constants, by the ``id`` of its own."""

    def rule(node: Node) -> Node:
        if not isinstance(node, Constant):
            return node
        value = arrays.get(id(node.value), node.value)
        return node if value is node.value else replace(node, value=value)

    return graph.map_bodies(lambda body: with_arrays(body, arrays)).rebuild(rule)


@dataclass(eq=False)
class Family:
    """The graphs of one model, by case; equal names in them mean equal values of the model.

    ``make`` builds the graph of a case that ``signature`` allows; ``source`` is the opened model,
    of a class that only the importer knows.  ``deciding`` are the inputs whose values are part of a
    case; ``make`` may ask for more of them by ``UndecidedError``.  ``notes`` are for the report,
    ``late_results`` tells what ``make`` does with these.  Not thread-safe.
    """

    signature: Signature
    source_hash: str
    make: Callable[[FreeCase], Graph]
    source: object = None
    deciding: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    late_results: LateResults = LateResults.REFUSED
    _graphs: dict[Case, Graph] = field(default_factory=dict)
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
        """The graph for some input shapes and values of the deciding inputs; see ``graph_at``."""
        ports = self.signature.inputs
        return self.graph_at(Case.of({port.name: shapes[port.name] for port in ports}, values))

    def graph_at(self, case: Case) -> Graph:
        """The graph for a case.

        Raises ``InputError``, ``UndecidedError``, and the errors of ``make``.
        """
        if case not in self._graphs:
            if self.signature.is_free:
                self.signature.check(case.shape_map)
            graph = self._make_fixed(case)
            self.deciding = tuple(sorted({*self.deciding, *(case.value_map or {})}))
            self._graphs[case] = _page_graph(graph) if self.is_single else self._arrays.graph(graph)
            if len(self._graphs) > MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        graph = self._graphs[case] = self._graphs.pop(case)  # the last one
        return graph

    def _make_fixed(self, case: Case) -> Graph:
        """The graph of plain sizes for a case."""
        return self.make(case)

    def case_of(self, feeds: Mapping[str, Array]) -> Case:
        """The case of some arrays, as far as it is known which values decide.

        Raises the errors of ``make`` where a graph tells the case.
        """
        return Case.fitting(feeds, self.deciding)

    def fitting(self, feeds: Mapping[str, Array]) -> Graph:
        """The graph for some arrays; learns which inputs decide.

        Raises ``UndecidedError`` where ``make`` asks for inputs that it was given, and what ``at``
        raises.
        """
        while True:
            deciding = self.deciding
            try:
                return self.graph_at(self.case_of(feeds))
            except UndecidedError as error:
                self.deciding = tuple(sorted({*deciding, *error.inputs}))
                if self.deciding == deciding:
                    raise

    def case_for(self, feeds: Mapping[str, Array]) -> Case:
        """The case of some arrays, with the values of all deciding inputs.  Raises no
        ``QuantglowError``.
        """
        with suppress(QuantglowError):
            self.fitting(feeds)
            return self.case_of(feeds)
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
