"""The order of channels in vectors of sums that packs bring into the order of memory.

Four (two) vectors of sums are packed to one vector of bytes, two to one of 16-bit words.  Packs may
interleave groups of their operands' lanes, so weights are packed in the order that comes out right.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from quantglow.backends.llvm.isa.interface import InstructionSet
from quantglow.backends.llvm.kernels.contraction.tiling import groups
from quantglow.foreign_types import Array


def channel_order(isa: InstructionSet, vectors: int, joined: int) -> Array:
    """int [vectors, lanes]: the channel (within a panel) that each lane of each vector holds, where
    up to ``joined`` vectors of results are stored together."""
    return _order(isa.vector_nbytes // 4, vectors, joined, isa.group_nbytes // 4)


@cache
def _order(lanes: int, vectors: int, joined: int, group: int) -> Array:
    """``channel_order`` for packs that interleave groups of ``group`` lanes."""
    order = np.empty((vectors, lanes), np.int64)
    first = 0
    index, within = np.divmod(np.arange(lanes), group)
    for size in groups(vectors, joined):
        for v in range(size):
            order[first + v] = first * lanes + index * group * size + v * group + within
        first += size
    order.setflags(write=False)
    return order
