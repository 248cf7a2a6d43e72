"""Depthwise convolution: one input channel for each output channel."""

from __future__ import annotations

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.depthwise.float_kernel import FloatDepthwise
from quantglow.backends.llvm.kernels.depthwise.integer_kernel import IntegerDepthwise
from quantglow.instr.program import Compute
from quantglow.ops import Conv
from quantglow.types import DType

LARGEST_TAPS = 81
"""Larger windows would unroll to too much code; they run as grouped convolutions."""


def has_depthwise_form(step: Compute, target: Target) -> bool:
    """Whether there is a kernel for the convolution."""
    conv = step.op
    assert isinstance(conv, Conv)
    kh, kw = conv.w.type.shape[:2]
    if not conv.depthwise or conv.residual is not None or kh * kw > LARGEST_TAPS:
        return False
    dtypes = {conv.x.type.dtype, conv.type.dtype}
    return dtypes <= {DType.U8, DType.I8, DType.I16} or dtypes == {DType.F32}


def depthwise_call(step: Compute, target: Target) -> KernelCall:
    """The kernel call of a depthwise convolution."""
    assert isinstance(step.op, Conv)
    if step.op.x.type.dtype is DType.F32:
        return FloatDepthwise(step, step.op, target).call()
    return IntegerDepthwise(step, step.op, target).call()
