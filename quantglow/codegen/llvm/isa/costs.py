"""Scheduling costs of processors, and tuned choices between tiles, forms and orders of kernels.

Neither decides what the results are.  Every form of a kernel gives the same bits, and decisions on
which integers depend use one fixed cost model, the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

MOST_PIXELS = 1024
"""Maximum number of rows, columns or vectors of a tile in a file."""


@dataclass(frozen=True)
class Core:
    """Costs of a processor's core in cycles, and its ways to get data from far away; by default
    Zen 5.

    ``issue``        instructions started in a cycle, where that bounds inner loops
    ``latency``      from one dot product to the next of the same sum, with the cost of waiting
    ``weights``      for a step to read one vector of weights from the caches of the core
    ``far_weights``  the same from farther away
    ``crowded``      lost by a step when all registers but one are in use
    ``finish``       to finish and store one vector of results, where four, two, one are stored
                     together
    ``overlap``      of a tile's end that the products of the next tile hide
    ``large_pages``  whether arenas and constants are faster in large pages
    ``even_prefetch``  whether far weights are prefetched evenly, not as early as possible
    """

    issue: float = math.inf
    latency: float = 6.0
    weights: float = 0.01
    far_weights: float = 0.3
    crowded: float = 0.0
    finish: tuple[float, float, float] = (1.0, 1.1, 1.5)
    overlap: float = 5.0
    large_pages: bool = False
    even_prefetch: bool = False

    def finish_cycles(self, together: int) -> float:
        """Cycles for each of ``together`` vectors that are stored at once."""
        return self.finish[{4: 0, 2: 1, 1: 2}[together]]


@dataclass(frozen=True)
class StepCost:
    """Cost of one step of a contraction's inner loop.

    ``registers``     vector registers of the target
    ``dot``           cycles for the dot product of one vector
    ``operand``       cycles to prepare the operand of one pixel
    ``weights``       registers that hold the weights of one vector
    ``operands``      registers that hold an operand
    ``rows``          registers that hold operands of one pixel for several steps
    ``loads``         loads of a step for one pixel
    ``together``      pixels whose sums share registers
    ``most_vectors``  maximum number of vectors of a tile
    ``core``          the processor's core
    """

    registers: int
    dot: float = 0.5
    operand: float = 0.0
    weights: int = 1
    operands: int = 1
    rows: int = 0
    loads: float = 1.0
    together: int = 1
    most_vectors: int = 8
    core: Core = Core()


@dataclass(frozen=True, order=True)
class KernelChoice:
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
    def of(data: Any) -> KernelChoice:
        """The choice from the result of ``to_json``.  Raises ``ValueError`` or ``TypeError``."""
        form, tile, outer, unroll, prefetch = data
        if tile is not None:
            rows, columns, vectors = (whole(size) for size in tile)
            tile = (rows, columns, vectors)
        if not isinstance(form, str) or not isinstance(outer, bool | None):
            raise TypeError(f"{form!r} and {outer!r} are no form and order")
        if not isinstance(prefetch, str | None):
            raise TypeError(f"{prefetch!r} is no prefetch")
        return KernelChoice(form, tile, outer, None if unroll is None else whole(unroll), prefetch)

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
    """Choices by task (``kernel.task_name``); by default the cost model decides all."""

    by_task: Mapping[str, KernelChoice] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_task)

    @property
    def key(self) -> str:
        """All choices as text."""
        return repr(sorted(self.by_task.items()))
