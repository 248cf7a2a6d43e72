"""Code generation: a planned program becomes an ``EmittedProgram``.

It holds all that a loader needs and nothing of the process that made it: the JIT loads it
(``runtime``), a bundle would write it to files.  The target need not be the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels import emit
from quantglow.concise import Concise
from quantglow.instr.program import (
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Dealloc,
    Instruction,
    Program,
    View,
)
from quantglow.memory.ordered_plan import OrderedPlan
from quantglow.memory.planner import MemoryPlan
from quantglow.ops.indexing import Gather, Scatter
from quantglow.symbolic.guards import Guards
from quantglow.symbolic.size import sized
from quantglow.types import Array

Own = Callable[[Array], Array]
"""Keeps a constant: returns the bytes that the emitted program refers to."""


ENTRY = "entry:\n"
SIZE_IN_TEXT = re.compile(r"\{[^{}\s]+\}")
"""A size in the text of a kernel, see ``symbolic.guards.Guards.named``."""


class Place(Enum):
    """The memory that a pointer leads to."""

    ARENA = "arena"
    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    CHECK = "check"
    """An int64 of the running context, where a kernel stores an index that is out of range."""
    SIZE = "size"
    """No memory: the offset itself is the operand, a size that depends on free dimensions."""


@dataclass(frozen=True)
class Pointer:
    """An address that is known when the program is loaded: ``offset_bytes`` from the beginning of
    a place; ``index`` says which constant, input, output, check or (in a program for all shapes)
    buffer of the arena."""

    place: Place
    index: int = 0
    offset_bytes: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class EmittedCall(Concise):
    """A row of the table of calls.

    step      the instruction that the kernel executes
    kernel    its text, label and estimated work; its pointers are replaced by ``pointers``
    nbytes    bytes of all operands
    """

    step: Instruction
    kernel: KernelCall
    pointers: tuple[Pointer, ...]
    nbytes: int

    @property
    def items(self) -> int:
        """Independent pieces of work."""
        return self.kernel.items

    @property
    def work(self) -> float:
        """Estimated operations."""
        return self.kernel.work

    @property
    def indexing(self) -> Gather | Scatter | None:
        """The operator whose indices the kernel checks."""
        if not self.kernel.checked:
            return None
        assert isinstance(self.step, Compute) and isinstance(self.step.op, Gather | Scatter)
        return self.step.op


@dataclass(frozen=True, eq=False, repr=False)
class EmittedProgram(Concise):
    """A program for one target, ready to be loaded or written.

    calls         kernels in the order of execution
    constants     weights, packed or as they are, each once
    arena_nbytes  memory of all values in between
    inputs        names and views, in the order of the program
    outputs       the same
    order         the order of buffers in the arena, of a program for all shapes
    """

    target: Target
    calls: tuple[EmittedCall, ...]
    constants: tuple[Array, ...]
    arena_nbytes: int
    inputs: tuple[tuple[str, View], ...]
    outputs: tuple[tuple[str, View], ...]
    order: OrderedPlan | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct LLVM IR texts, in the order of their first call."""
        return tuple(dict.fromkeys(call.kernel.ir for call in self.calls))

    @property
    def work(self) -> float:
        """Estimated operations of all calls."""
        return sum(call.work for call in self.calls)

    def without_texts(self) -> EmittedProgram:
        """The same program once its kernels are loaded: texts keep their generators alive."""
        calls = (replace(call, kernel=replace(call.kernel, code="")) for call in self.calls)
        return replace(self, calls=tuple(calls))


def emit_program(
    program: Program, plan: MemoryPlan, target: Target, own: Own = np.ascontiguousarray
) -> EmittedProgram:
    """Emit every kernel of a planned program; ``own`` is given each constant once."""
    layout = _Layout(program, plan, own)
    calls = tuple(layout.placed(step, call) for step, call in kernel_calls(program, target))
    ends = (tuple(program.inputs), tuple(program.outputs))
    return EmittedProgram(target, calls, tuple(layout.constants), plan.peak_nbytes, *ends)


def emit_free_program(
    program: Program, order: OrderedPlan, target: Target, guards: Guards, own: Own
) -> EmittedProgram:
    """Emit every kernel of a program whose sizes depend on free dimensions: its kernels take them
    as operands, and ``guards`` has the conditions on which the program serves a shape.
    """
    layout = _FreeLayout(program, order, own, guards=guards)
    calls = tuple(layout.placed(step, call) for step, call in kernel_calls(program, target))
    ends = (tuple(program.inputs), tuple(program.outputs))
    return EmittedProgram(target, calls, tuple(layout.constants), 0, *ends, order)


def with_operands(text: str, first: int) -> tuple[str, list[str]]:
    """The text of a kernel that loads the sizes in it from its arguments, ``first`` being the
    position of the first of them; and these sizes.
    """
    head, entry, body = text.partition(ENTRY)
    names: dict[str, str] = {}

    def operand(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"%size{len(names)}")

    body = SIZE_IN_TEXT.sub(operand, body)
    loads = "".join(
        f"  {name}.at = getelementptr i8, ptr %args, i64 {8 * (first + index)}\n"
        f"  {name} = load i64, ptr {name}.at, align 8\n"
        for index, name in enumerate(names.values())
    )
    return f"{head}{entry}{loads}{body}", list(names)


def kernel_calls(program: Program, target: Target) -> Iterator[tuple[Instruction, KernelCall]]:
    """The instructions that become kernels with something to do."""
    for step in program.instructions:
        if not isinstance(step, Alloc | Dealloc) and (call := emit(step, target)).items:
            yield step, call


@dataclass
class _Layout:
    """Places of buffers and packed constants, as calls come."""

    program: Program
    plan: MemoryPlan | OrderedPlan
    own: Own
    constants: list[Array] = field(default_factory=list)
    checks: int = 0
    _constant_of: dict[Buffer, int] = field(default_factory=dict)
    _ends: dict[Buffer, Pointer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, ports in (
            (Place.INPUT, self.program.inputs),
            (Place.OUTPUT, self.program.outputs),
        ):
            for index, (_, view) in enumerate(ports):
                self._ends[view.buffer] = Pointer(place, index)

    def placed(self, step: Instruction, call: KernelCall) -> EmittedCall:
        """The call with places instead of views and arrays."""
        pointers = [self._pointer(pointer) for pointer in call.pointers]
        if call.checked:
            pointers.append(Pointer(Place.CHECK, self.checks, 8 * self.checks))
            self.checks += 1
        nbytes = sum(p.type.nbytes if isinstance(p, View) else p.nbytes for p in call.pointers)
        return EmittedCall(step, replace(call, pointers=()), tuple(pointers), nbytes)

    def _pointer(self, pointer: View | Array) -> Pointer:
        if not isinstance(pointer, View):
            return Pointer(Place.CONSTANT, self._kept(pointer))
        buffer = pointer.buffer
        if buffer.kind is BufferKind.TEMP:
            return self._in_arena(pointer)
        if buffer.value is None:
            return replace(self._ends[buffer], offset_bytes=pointer.offset_bytes)
        if buffer not in self._constant_of:
            self._constant_of[buffer] = self._kept(buffer.value)
        return Pointer(Place.CONSTANT, self._constant_of[buffer], pointer.offset_bytes)

    def _in_arena(self, view: View) -> Pointer:
        assert isinstance(self.plan, MemoryPlan)
        return Pointer(Place.ARENA, 0, self.plan.offsets[view.buffer] + view.offset_bytes)

    def _kept(self, array: Array) -> int:
        self.constants.append(self.own(array))
        return len(self.constants) - 1


@dataclass
class _FreeLayout(_Layout):
    """The same where sizes are free: they are operands, and the arena has buffers, not offsets."""

    guards: Guards = field(kw_only=True)

    def placed(self, step: Instruction, call: KernelCall) -> EmittedCall:
        """The call with a text that serves all shapes, and the sizes that it takes."""
        made = super().placed(step, call)
        text, names = with_operands(call.ir, len(made.pointers))
        sizes = (sized(self.guards.names[name], self.guards) for name in names)
        pointers = (*made.pointers, *(Pointer(Place.SIZE, 0, size) for size in sizes))
        return replace(made, kernel=replace(made.kernel, code=text), pointers=pointers)

    def _in_arena(self, view: View) -> Pointer:
        assert isinstance(self.plan, OrderedPlan)
        return Pointer(Place.ARENA, self.plan.positions[view.buffer], view.offset_bytes)
