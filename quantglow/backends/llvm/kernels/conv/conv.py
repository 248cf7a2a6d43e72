"""Which kernel computes a convolution."""

from __future__ import annotations

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels.conv.gathered_rows import GatheredConvKernel
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.matrix_tiles import TilesConvKernel
from quantglow.backends.llvm.kernels.conv.pair_sums import PairsConvKernel
from quantglow.backends.llvm.kernels.conv.split_vectors import SharedConvKernel
from quantglow.backends.llvm.kernels.depthwise.depthwise import depthwise_call, has_depthwise_form
from quantglow.instr.program import Compute
from quantglow.ops import Conv
from quantglow.types import DType


@emits(Conv)
def emit_conv(step: Compute, target: Target) -> KernelCall:
    """Depthwise convolutions have a kernel of their own; all others are implicit GEMMs."""
    assert isinstance(step.op, Conv)
    if has_depthwise_form(step, target):
        return depthwise_call(step, target)
    if target.isa.pair_product(target.core) and step.op.x.type.dtype is DType.U8:
        pairs = PairsConvKernel(step, step.op, target)
        if pairs.pays:
            return pairs.call()
    if target.isa.tiles:
        tiles = TilesConvKernel(step, step.op, target)
        if tiles.pays:
            return tiles.call()
    gathered = GatheredConvKernel(step, step.op, target)
    if gathered.pays:
        return gathered.call()
    shared = SharedConvKernel(step, step.op, target)
    if shared.pays:
        return shared.call()
    return ConvKernel(step, step.op, target).call()
