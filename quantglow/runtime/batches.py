"""In how many pieces a batch goes through the whole network.

The values of a small piece stay in the cache, and threads take pieces instead of parts of layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.pieces import shared_evenly
from quantglow.graph.graph import Graph
from quantglow.instr.program import BufferKind, Program
from quantglow.lowering.split_batch import batch_of, split_batch
from quantglow.memory.planner import MemoryPlan

PIECE_NBYTES = 6 * 2**20
"""Activations of a piece at most, where the batch can be cut.  With 1.25 MB of cache for each core
MobileNetV2, EfficientNet-Lite0 and ResNet-50 are fastest in int8 by 2 or 4 images, 3 to 6 MB."""
PIECES_PER_THREAD = 2
"""More pieces even out what other programs disturb."""


def piece_of(graph: Graph, program: Program, plan: MemoryPlan, threads: int) -> tuple[Graph, int]:
    """The graph to compile and how often to run it; ``program`` and ``plan`` are of the whole."""
    pieces = pieces_of(batch_of(graph) or 1, program, plan, threads)
    part = split_batch(graph, pieces) if pieces > 1 else None
    return (graph, 1) if part is None else (part, pieces)


def pieces_of(batch: int, program: Program, plan: MemoryPlan, threads: int) -> int:
    """As few pieces as stay in the cache; with threads, enough of them for each.

    Each piece reads all weights again: what only threads ask for has to move more than these.
    """
    fitting = [n for n in divisors(batch) if plan.peak_nbytes <= PIECE_NBYTES * n] or [batch]
    if threads == 1:
        return fitting[0]
    weights = sum(b.nbytes for b in program.buffers if b.kind is BufferKind.CONSTANT)
    moved = sum(b.nbytes for b in program.buffers) - weights
    shared = [
        n
        for n in fitting
        if shared_evenly(n, threads) and (n == fitting[0] or n * weights <= moved)
    ]
    enough = [n for n in shared if n >= PIECES_PER_THREAD * threads]
    return (enough[:1] or shared[-1:] or fitting)[0]


def divisors(number: int) -> Sequence[int]:
    """All of them, the smallest first."""
    return [d for d in range(1, number + 1) if number % d == 0]
