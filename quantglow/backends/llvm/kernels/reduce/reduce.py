"""The kernels of reductions, in the order in which they are tried."""

from __future__ import annotations

from functools import partial

from quantglow.backends.llvm.builder import Builder
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits, first_call
from quantglow.backends.llvm.kernels.reduce.byte_sums import ByteSums
from quantglow.backends.llvm.kernels.reduce.middle_axis import ReduceKernel
from quantglow.backends.llvm.kernels.reduce.short_code import ShortSums
from quantglow.instr.program import Compute
from quantglow.ops import ReduceMax, ReduceMean, ReduceMin, ReduceSum

KERNELS = (ShortSums, ByteSums, ReduceKernel)
"""The last one takes every reduction."""


@emits(ReduceMean, ReduceSum, ReduceMax, ReduceMin)
def emit_reduce(step: Compute, target: Target) -> KernelCall:
    """Sums of bytes have a kernel of their own."""
    op, x = step.op, step.inputs[0]
    assert isinstance(op, ReduceMean | ReduceSum | ReduceMax | ReduceMin)
    return first_call(
        partial(k, Builder(index=target.isa.index), target, op, x, step.output) for k in KERNELS
    )
