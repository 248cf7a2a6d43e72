"""Cases: the input shapes, and the values of deciding inputs, that one graph of a model serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quantglow.foreign_types import Array
from quantglow.graph.signature import Shape, Shapes
from quantglow.lazy import Hashed, cached_property

Values = Mapping[str, tuple[int, ...]]
"""Input name -> its elements in order: integers, or conditions as 0 and 1."""

CASES_KEPT = 1024
"""Number of cases that are kept for later calls, of all models."""

MOST_DECIDING = 16
"""Maximum number of elements of an input whose values may decide shapes or branches."""


@dataclass(frozen=True, order=True)
class Case(Hashed):
    """Input shapes by name, and the values of the inputs that decide shapes or branches, such as a
    sampling rate.

    ``values`` is None if the case covers all values.
    """

    shapes: tuple[tuple[str, Shape], ...]
    values: tuple[tuple[str, tuple[int, ...]], ...] | None = ()

    @staticmethod
    def of(shapes: Shapes, values: Values | None = None) -> Case:
        """The case of some shapes and values."""
        given = tuple(sorted((name, tuple(v)) for name, v in (values or {}).items()))
        return Case(tuple(sorted((name, tuple(s)) for name, s in shapes.items())), given)

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

    @property
    def value_map(self) -> Values | None:
        """Values by name."""
        return None if self.values is None else dict(self.values)

    @property
    def whatever_values(self) -> Case:
        """The case of the same shapes and all values."""
        return Case(self.shapes, None)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: dictionaries ask often, and a case may have dozens of shapes."""
        return hash((self.shapes, self.values))

    def __str__(self) -> str:
        values = f" with the values {dict(self.values)}" if self.values else ""
        return f"{dict(self.shapes)}{values}"


@lru_cache(CASES_KEPT)
def _of_shapes(shapes: tuple[tuple[str, Shape], ...]) -> Case:
    """The case of shapes in any order, made once: each call of a model has one."""
    return Case(tuple(sorted(shapes)))


def may_decide(array: Array) -> bool:
    """Whether an input is a small array of integers or conditions."""
    return array.dtype.kind in "iub" and array.size <= MOST_DECIDING


def elements(array: Array) -> tuple[int, ...]:
    return tuple(map(int, array.reshape(-1).tolist()))


def values_from_json(data: Mapping[str, Any]) -> Values:
    """Values as read by ``json``.  Raises ``TypeError`` or ``ValueError``."""
    return {str(name): tuple(map(int, found)) for name, found in data.items()}
