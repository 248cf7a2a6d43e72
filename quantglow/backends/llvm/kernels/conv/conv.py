"""The kernels of convolutions, in the order in which they are tried."""

from __future__ import annotations

from functools import partial

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import Kernel, KernelCall, emits, first_kernel
from quantglow.backends.llvm.kernels.conv.gathered_rows import GatheredConvKernel
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.matrix_tiles import TilesConvKernel
from quantglow.backends.llvm.kernels.conv.merged_channels import MergedConvKernel
from quantglow.backends.llvm.kernels.conv.pair_sums import PairsConvKernel
from quantglow.backends.llvm.kernels.conv.pixel_pairs import BlockConvKernel
from quantglow.backends.llvm.kernels.conv.row_products import RowsConvKernel
from quantglow.backends.llvm.kernels.conv.split_vectors import SharedConvKernel
from quantglow.backends.llvm.kernels.depthwise.element_kernel import ElementDepthwise
from quantglow.backends.llvm.kernels.depthwise.float_kernel import FloatDepthwise
from quantglow.backends.llvm.kernels.depthwise.integer_kernel import IntegerDepthwise
from quantglow.backends.llvm.kernels.depthwise.tap_kernel import TapDepthwise
from quantglow.backends.llvm.kernels.depthwise.window_kernel import WindowDepthwise
from quantglow.instr.program import Compute
from quantglow.ops import Conv

KERNELS = (
    ElementDepthwise,
    WindowDepthwise,
    TapDepthwise,
    IntegerDepthwise,
    FloatDepthwise,
    PairsConvKernel,
    TilesConvKernel,
    MergedConvKernel,
    RowsConvKernel,
    GatheredConvKernel,
    SharedConvKernel,
    BlockConvKernel,
    ConvKernel,
)
"""The last one takes every convolution."""


@emits(Conv)
def emit_conv(step: Compute, target: Target) -> KernelCall:
    """Depthwise convolutions have kernels of their own; all others are implicit GEMMs."""
    return conv_kernel(step, target).call()


def conv_kernel(step: Compute, target: Target) -> Kernel:
    """The first kernel that takes a convolution."""
    assert isinstance(step.op, Conv)
    return first_kernel(partial(kernel, step, step.op, target) for kernel in KERNELS)
