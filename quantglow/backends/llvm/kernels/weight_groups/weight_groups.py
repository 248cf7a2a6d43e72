"""``GroupedMatMul`` and ``QuantizeRows``: which kernel computes them."""

from __future__ import annotations

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels.weight_groups.float_product import FloatProduct
from quantglow.backends.llvm.kernels.weight_groups.integer_product import IntegerProduct
from quantglow.backends.llvm.kernels.weight_groups.quantize_rows import RowQuantizer
from quantglow.instr.program import Compute
from quantglow.ops import GroupedMatMul, QuantizeRows


@emits(GroupedMatMul)
def emit_grouped_matmul(step: Compute, target: Target) -> KernelCall:
    """A work item is a panel of channels."""
    assert isinstance(step.op, GroupedMatMul)
    kernel = IntegerProduct if step.op.is_dynamic else FloatProduct
    return kernel(target, step).call()


@emits(QuantizeRows)
def emit_quantize_rows(step: Compute, target: Target) -> KernelCall:
    """A work item is a row."""
    return RowQuantizer(target, step).call()
