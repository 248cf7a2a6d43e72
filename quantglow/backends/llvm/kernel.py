"""Kernel calls, the results of emit rules: a kernel, its pointers and its work items.

A kernel is a pure function of its IR text: ``void kernel(ptr args, i64 begin, i64 end)`` loads
its pointers from ``args`` and computes work items ``begin`` to ``end``.  Shapes and strides are
literals in the text; addresses are not, so equal layers share one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from quantglow.backends.llvm.isa.target import Target
from quantglow.concise import Concise
from quantglow.foreign_types import Array
from quantglow.graph.node import Node
from quantglow.instr.program import Compute, Instruction, View
from quantglow.lazy import cached_property


@dataclass(frozen=True, eq=False, repr=False)
class KernelCall(Concise):
    """One kernel on its operands.

    ``code``: the IR text, or a function that makes it, called once and only on demand.
    ``pointers``: views of buffers, or constant arrays (packed weights) the backend owns.
    ``items``: independent pieces of work, split among threads in contiguous ranges.
    ``work``: rough operation count; small calls run on one thread.
    ``facts``: all that the text depends on of the values of constants and of the parameters of
    quantization; None: it may depend on each of them.
    ``checked``: it takes one pointer more, to an int64 of the running context, and stores an index
    there that is out of range.
    """

    code: str | Callable[[], str]
    pointers: tuple[View | Array, ...]
    items: int
    work: float
    label: str = ""
    facts: str | None = None
    checked: bool = False

    @cached_property
    def ir(self) -> str:
        """The IR text."""
        return self.code if isinstance(self.code, str) else self.code()


class Kernel(Protocol):
    """A generator of the code of one primitive."""

    @property
    def applies(self) -> bool:
        """Whether this form exists for the primitive on its target, and pays."""

    def call(self) -> KernelCall:
        """The kernel call."""


AnyKernel = TypeVar("AnyKernel", bound=Kernel)


def first_call(kernels: Iterable[Callable[[], Kernel]]) -> KernelCall:
    """The call of the first kernel that applies."""
    return first_kernel(kernels).call()


def first_kernel(kernels: Iterable[Callable[[], AnyKernel]]) -> AnyKernel:
    """The first kernel that applies."""
    return next(kernel for made in kernels if (kernel := made()).applies)


EmitRule = Callable[[Compute, Target], KernelCall]
AnyNode = TypeVar("AnyNode", bound=Node)

emit_rules: dict[type[Node], EmitRule] = {}
"""One rule for each primitive."""

instruction_rules: dict[type[Instruction], Callable[[Any, Target], KernelCall]] = {}
"""Rules for ``copy`` and ``fill``."""


def emits(*classes: type[Node]) -> Callable[[EmitRule], EmitRule]:
    """Register a rule for primitives."""

    def register(rule: EmitRule) -> EmitRule:
        emit_rules.update(dict.fromkeys(classes, rule))
        return rule

    return register
