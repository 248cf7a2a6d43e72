"""Kernels of ``RowMap``, in order of preference."""

from __future__ import annotations

import math

from quantglow.backends.llvm.builder import Builder
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels.elementwise.row_loops import RowLoops
from quantglow.backends.llvm.kernels.elementwise.row_map import RowKernel
from quantglow.backends.llvm.kernels.vector.nest import broadcast_axes, merged
from quantglow.instr.program import Compute
from quantglow.ops import RowMap
from quantglow.symbolic.size import likely

KERNELS: tuple[type[RowKernel], ...] = (RowLoops, RowKernel)


@emits(RowMap)
def emit_rows(step: Compute, target: Target) -> KernelCall:
    """One work item for each row; an element is read for the last time just before it is written,
    so that it may run in place."""
    op = step.op
    assert isinstance(op, RowMap)
    views = (step.output, *step.inputs)
    *outer, row = broadcast_axes(op.type.shape, views)
    axes = merged(outer)
    dtypes = tuple(view.type.dtype for view in step.inputs)
    kernels = (kind(Builder(index=target.isa.index), target, op, row, dtypes) for kind in KERNELS)
    kernel = next(kernel for kernel in kernels if kernel.applies)
    work = likely(op.type.size) * (2 + op.expression.size()) / 4
    items = math.prod(axis.size for axis in axes)
    return KernelCall(lambda: kernel.text(axes), views, items, work, "rows", facts="")
