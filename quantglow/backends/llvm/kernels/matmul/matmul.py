"""``MatMul`` of activations: [B, M, K] times [B, K, N], float32 or exact int32 sums of integers.

A work item is a panel of columns of one batch.
"""

from __future__ import annotations

from functools import partial

from quantglow.backends.llvm.builder import Builder
from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits, first_kernel
from quantglow.backends.llvm.kernels.matmul.byte_products import ByteProduct
from quantglow.backends.llvm.kernels.matmul.float_products import FloatProduct
from quantglow.backends.llvm.kernels.matmul.product import Product
from quantglow.backends.llvm.kernels.matmul.turned_products import TurnedProduct
from quantglow.backends.llvm.kernels.matmul.word_products import WordProduct
from quantglow.instr.program import Compute
from quantglow.ops import MatMul

KERNELS: tuple[type[Product], ...] = (TurnedProduct, FloatProduct, ByteProduct, WordProduct)
"""In the order in which they are tried; the last one takes all integers."""


@emits(MatMul)
def emit_matmul(step: Compute, target: Target) -> KernelCall:
    """One work item for each batch and panel of columns."""
    return matmul_kernel(step, target).call()


def matmul_kernel(step: Compute, target: Target) -> Product:
    """The first kernel that takes a product."""
    return first_kernel(partial(product, form, step, target) for form in KERNELS)


def product(
    form: type[Product], step: Compute, target: Target, chosen: Choice | None = None
) -> Product:
    """The kernel of a form."""
    op, (x, y) = step.op, step.inputs
    assert isinstance(op, MatMul)
    return form(Builder(index=target.isa.index), target, op, x, y, step.output, chosen)
