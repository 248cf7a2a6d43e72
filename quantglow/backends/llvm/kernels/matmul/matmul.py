"""``MatMul`` of activations: [B, M, K] times [B, K, N], float32 or exact int32 sums of bytes.

A work item is a panel of columns of one batch.
"""

from __future__ import annotations

from quantglow.backends.llvm.builder import Builder
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels.matmul.byte_products import ByteProduct, multiplies_bytes
from quantglow.backends.llvm.kernels.matmul.float_products import FloatProduct, Product
from quantglow.backends.llvm.kernels.matmul.word_products import WordProduct
from quantglow.instr.program import Compute
from quantglow.ops import MatMul


@emits(MatMul)
def emit_matmul(step: Compute, target: Target) -> KernelCall:
    """One work item for each batch and panel of columns."""
    op = step.op
    assert isinstance(op, MatMul)
    x, y = step.inputs
    kernel = _kind(op, target)(Builder(), target, op, x, y, step.output)
    batch, rows, columns = op.type.shape
    work = float(batch * rows * columns * op.x.type.shape[2]) / 8
    pointers = (step.output, x, y)
    return KernelCall(kernel.text, pointers, kernel.items, work, "matmul")


def _kind(op: MatMul, target: Target) -> type[Product]:
    if op.x.type.dtype.is_float:
        return FloatProduct
    return ByteProduct if multiplies_bytes(op, target) else WordProduct
