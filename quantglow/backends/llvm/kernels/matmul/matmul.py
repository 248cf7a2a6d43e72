"""``MatMul`` of activations: [B, M, K] times [B, K, N], float32 or exact int32 sums of integers.

A work item is a panel of columns of one batch.
"""

from __future__ import annotations

from functools import partial

from quantglow.backends.llvm.builder import Builder
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits, first_call
from quantglow.backends.llvm.kernels.matmul.byte_products import ByteProduct
from quantglow.backends.llvm.kernels.matmul.float_products import FloatProduct
from quantglow.backends.llvm.kernels.matmul.turned_products import TurnedProduct
from quantglow.backends.llvm.kernels.matmul.word_products import WordProduct
from quantglow.instr.program import Compute
from quantglow.ops import MatMul

KERNELS = (TurnedProduct, FloatProduct, ByteProduct, WordProduct)
"""In the order in which they are tried; the last one takes all integers."""


@emits(MatMul)
def emit_matmul(step: Compute, target: Target) -> KernelCall:
    """One work item for each batch and panel of columns."""
    op, (x, y) = step.op, step.inputs
    assert isinstance(op, MatMul)
    return first_call(
        partial(k, Builder(index=target.isa.index), target, op, x, y, step.output) for k in KERNELS
    )
