"""Scheduling costs: cycles that decide between tiles, forms and orders of one operation.

They never decide what the integers are: those decisions use one fixed cost model, the same on
every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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

    def finish_of(self, together: int) -> float:
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
