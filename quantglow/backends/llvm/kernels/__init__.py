"""Kernel generators, a folder for each family.  Importing this package fills the tables.

``conv`` and ``depthwise``: convolutions; ``matmul``: products of two activations;
``weight_groups``: products with weights of few bits; ``elementwise``:
expressions and tables; ``reduce``: reductions, pools, softmax; ``data_movement``: copies, gathers,
resizing.  ``contraction`` and ``vector`` are parts of these.  ``tunable``: what can be tuned.
"""

from __future__ import annotations

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall, emit_rules, instruction_rules
from quantglow.backends.llvm.kernels.conv import conv
from quantglow.backends.llvm.kernels.data_movement import copy, fill, indexing, resize
from quantglow.backends.llvm.kernels.elementwise import elementwise, rows, table
from quantglow.backends.llvm.kernels.matmul import matmul
from quantglow.backends.llvm.kernels.reduce import pool, reduce, softmax
from quantglow.backends.llvm.kernels.tunable import tuned_kernel
from quantglow.backends.llvm.kernels.weight_groups import weight_groups
from quantglow.errors import BackendError
from quantglow.instr.program import Compute, Instruction


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
    if not any(view.type.size for view in (*step.outs, *step.inouts)):
        return KernelCall("", (), items=0, work=0.0)
    if (tuned := tuned_kernel(step, target)) is not None:
        return tuned.call()
    return rule(step, target)  # type: ignore[arg-type]
