"""Kernel generators, a folder for each family.  Importing this package fills the tables.

``conv`` and ``depthwise``: convolutions; ``matmul``: products of two activations, and with weights
of few bits; ``elementwise``: expressions and tables; ``reduce``: reductions, pools, softmax;
``data_movement``: copies, gathers, resizing.
``contraction`` and ``vector`` are parts of these.  ``tunable``: what can be tuned.
"""

from __future__ import annotations

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emit_rules, instruction_rules
from quantglow.codegen.llvm.kernels.conv import forms
from quantglow.codegen.llvm.kernels.data_movement import copy, indexing, resize
from quantglow.codegen.llvm.kernels.elementwise import elementwise, row_loops, table
from quantglow.codegen.llvm.kernels.matmul import forms as product_forms
from quantglow.codegen.llvm.kernels.matmul import groupwise_products
from quantglow.codegen.llvm.kernels.reduce import pool, reduce
from quantglow.codegen.llvm.kernels.tunable import find_tuned_kernel
from quantglow.ir.program.program import Compute, Instruction
from quantglow.support.errors import BackendError


def emit(step: Instruction, target: Target) -> KernelCall:
    """The kernel call of an instruction; one without items if there is nothing to write, so that
    no generator plans tiles or blocks of nothing.  Raises ``BackendError`` if there is no rule.
    """
    if isinstance(step, Compute):
        rule = emit_rules.get(type(step.op))
    else:
        rule = instruction_rules.get(type(step))
    if rule is None:
        raise BackendError(f"the LLVM backend has no rule for {step}")
    if all(view.type.is_empty for view in (*step.outs, *step.inouts)):
        return KernelCall("", (), items=0, work=0.0)
    if (tuned := find_tuned_kernel(step, target)) is not None:
        return tuned.call()
    return rule(step, target)  # type: ignore[arg-type]
