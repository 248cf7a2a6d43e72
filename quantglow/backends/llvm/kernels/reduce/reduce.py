"""Which kernel computes a reduction."""

from __future__ import annotations

from quantglow.backends.llvm.builder import Builder
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels.reduce.byte_sums import ByteSums
from quantglow.backends.llvm.kernels.reduce.middle_axis import ReduceKernel
from quantglow.instr.program import Compute
from quantglow.ops import ReduceMax, ReduceMean, ReduceMin, ReduceSum


@emits(ReduceMean, ReduceSum, ReduceMax, ReduceMin)
def emit_reduce(step: Compute, target: Target) -> KernelCall:
    """Sums of bytes have a kernel of their own."""
    op = step.op
    assert isinstance(op, ReduceMean | ReduceSum | ReduceMax | ReduceMin)
    operands = (Builder(), target, op, step.inputs[0], step.output)
    byte_sums = ByteSums(*operands)
    return (byte_sums if byte_sums.applies else ReduceKernel(*operands)).call()
