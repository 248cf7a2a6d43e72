"""Profile of kernel calls: each timed alone, beside the limits that bound it.

An entry has the name of a call, its products and bytes, and its median time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.emitted import EmittedCall
from quantglow.ir.ops.work import count_macs
from quantglow.ir.program.program import Compute, Fill, Instruction, Repeat
from quantglow.ir.symbolic.size import Dim, likely


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """One kernel call: ``name`` of the value it computes, ``op``, ``label`` of its kernel.

    ``work`` is the generator's estimate of operations; ``macs`` counts multiply-accumulates
    without padding; ``nbytes`` is what is read and written at least, constants included.
    """

    name: str
    op: str
    label: str
    work: float
    macs: int
    nbytes: int
    is_integer: bool


@dataclass(frozen=True, kw_only=True)
class CallTime(CallFacts):
    """A kernel call and its time."""

    seconds: float

    def limit_seconds(self, macs_per_second: float, nbytes_per_second: float) -> float:
        """The time of a machine that does nothing but these products, or moves these bytes."""
        return max(self.macs / macs_per_second, self.nbytes / nbytes_per_second)


def median_call_times(
    calls: Sequence[CallFacts],
    run: Callable[[int, int], None],
    repeats: int,
) -> list[CallTime]:
    """Median seconds of each call; ``run(begin, end)`` runs rows of the table, each alone, in turn.

    The cost of entering is measured before each row: after a large kernel the code of entering has
    left the caches, so it runs twice before the row is timed.
    """
    seconds, entering = np.empty((2, repeats, len(calls)))
    run(0, len(calls))
    for repeat in range(repeats):
        for row in range(len(calls)):
            run(0, 0)
            entering[repeat, row] = _seconds(run, 0, 0)
            seconds[repeat, row] = _seconds(run, row, row + 1)
    spent = np.maximum(np.median(seconds - entering, axis=0), 0.0)
    pairs = zip(calls, spent, strict=True)
    return [CallTime(**vars(call), seconds=float(median)) for call, median in pairs]


def _seconds(run: Callable[[int, int], None], begin: int, end: int) -> float:
    start = time.perf_counter()
    run(begin, end)
    return time.perf_counter() - start


def call_facts(call: EmittedCall) -> CallFacts:
    """The figures of a call, at likely sizes where they are free."""
    step = call.step
    return CallFacts(
        name=call_name(step),
        op=step.mnemonic,
        label=call.kernel.label,
        work=float(likely(call.work)),
        macs=likely(_macs_in(step)),
        nbytes=likely(_nbytes(call)),
        is_integer=not any(v.type.dtype.is_float for v in (step.ins or step.inouts)[:1]),
    )


def call_name(step: Instruction) -> str:
    """The name of the value that an instruction computes."""
    match step:
        case Compute(op=op):
            return op.name
        case Repeat(name=name):
            return name
    return (*step.outs, *step.inouts)[0].buffer.name


def _macs_in(step: Instruction) -> Dim:
    """Multiply-accumulates of an instruction; of a loop that ends by a condition, of one trip."""
    match step:
        case Compute(op=op):
            return count_macs(op)
        case Repeat(trips=trips, condition=condition):
            return (trips if condition is None else 1) * sum(map(_macs_in, step.steps))
    return 0


def _nbytes(call: EmittedCall) -> Dim:
    """Bytes of all operands; of a fill only the bytes it writes."""
    if isinstance(call.step, Fill):
        total: Dim = sum(box.type.nbytes for box in call.step.boxes())
        return total
    return call.nbytes
