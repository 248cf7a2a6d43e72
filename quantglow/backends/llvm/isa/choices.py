"""Tuned choices: how single kernels are generated, found by measuring instead of by a cost model.

A choice never decides what the results are: every form of a kernel gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

MOST_PIXELS = 1024
"""Maximum number of rows, columns or vectors of a tile in a file."""


@dataclass(frozen=True, order=True)
class Choice:
    """How one convolution or product is computed.

    form          name of the kernel, see ``kernels.tunable.FORMS``
    tile          rows and columns of pixels, and vectors of channels; of a product: rows of x,
                  1, and vectors of columns of y
    panels_outer  whether panels of channels are the outer loop
    unroll        steps in the body of the inner loop
    prefetch      of weights that come from far away: none, early or even

    A field that is None is decided by the cost model.
    """

    form: str
    tile: tuple[int, int, int] | None = None
    panels_outer: bool | None = None
    unroll: int | None = None
    prefetch: str | None = None

    def to_json(self) -> list[Any]:
        """The fields in types that ``json`` writes."""
        return list(astuple(self))

    @staticmethod
    def of(data: Any) -> Choice:
        """The choice from the result of ``to_json``.  Raises ``ValueError`` or ``TypeError``."""
        form, tile, outer, unroll, prefetch = data
        if tile is not None:
            rows, columns, vectors = (whole(size) for size in tile)
            tile = (rows, columns, vectors)
        if not isinstance(form, str) or not isinstance(outer, bool | None):
            raise TypeError(f"{form!r} and {outer!r} are no form and order")
        if not isinstance(prefetch, str | None):
            raise TypeError(f"{prefetch!r} is no prefetch")
        return Choice(form, tile, outer, None if unroll is None else whole(unroll), prefetch)

    def __str__(self) -> str:
        words = [self.form]
        if self.tile is not None:
            words.append("x".join(map(str, self.tile)))
        if self.panels_outer is not None:
            words.append("panels first" if self.panels_outer else "pixels first")
        if self.unroll is not None:
            words.append(f"{self.unroll} steps")
        if self.prefetch is not None:
            words.append(f"prefetch {self.prefetch}")
        return ", ".join(words)


def whole(value: Any) -> int:
    """A size out of a file.  Raises ``ValueError``."""
    if type(value) is not int or not 1 <= value <= MOST_PIXELS:
        raise ValueError(f"{value!r} is no size of a tile")
    return value


@dataclass(frozen=True)
class Choices:
    """Choices by task, see ``jit.identity.task_of``; by default the cost model decides all."""

    by_task: Mapping[str, Choice] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_task)

    @property
    def key(self) -> str:
        """All choices as text."""
        return repr(sorted(self.by_task.items()))
