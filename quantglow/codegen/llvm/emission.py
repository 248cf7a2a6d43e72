"""Code generation: a planned program becomes an ``EmittedProgram``.

The result holds all that a loader needs and nothing of the process that made it: the JIT loads it
(``runtime.native``), a bundle writes it to files (``export.bundle``).  The target need not be the
host.

A loop is a row of the table of calls: its kernel walks the rows of the body.  The rows of all
bodies follow those of the program, in one table.  The arguments of a loop have the base and the
stride of each pointer that moves, and where the call in the body reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from quantglow.codegen.llvm.emitted import (
    EmittedCall,
    EmittedProgram,
    MemoryRegion,
    Pointer,
    PointerExtent,
)
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, step_parts
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.table_walk import ENTRY_NBYTES, LOOP
from quantglow.codegen.llvm.values import I64
from quantglow.ir.program.program import (
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Dealloc,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import Dim, decide, is_free, likely, size
from quantglow.memory.planner import MemoryPlan, OrderedPlan
from quantglow.support.arrays import Array

Moving = tuple[int, int, Dim]
"""The call in the body, the pointer of it, and bytes by which it moves in each trip."""

Hold = Callable[[Array], Array]
"""Keeps a constant: returns the bytes that the emitted program refers to."""

KERNEL, ENTRY = "@kernel(", "entry:\n"
SIZE_IN_TEXT = re.compile(r"\{[^{}\s]+\}")
"""A size in the text of a kernel, see ``symbolic.guards.Guards.named``."""
INTEGER = re.compile(r"\bi(?:32|64)\b")
"""The type of an operand, which stands before it."""


def emit_program(
    program: Program, plan: MemoryPlan, target: Target, hold: Hold = np.ascontiguousarray
) -> EmittedProgram:
    """Emit every kernel of a planned program; ``hold`` is given each constant once."""
    layout = _Layout(program, plan, hold)
    return layout.emitted(target, plan.peak_nbytes)


def emit_free_program(
    program: Program, order: OrderedPlan, target: Target, guards: Guards, hold: Hold
) -> EmittedProgram:
    """Emit every kernel of a program whose sizes depend on free dimensions: its kernels take them
    as operands, and ``guards`` has the conditions on which the program serves a shape.
    """
    layout = _FreeLayout(program, order, hold, guards=guards, index=target.isa.index)
    return replace(layout.emitted(target, 0), order=order)


def with_operands(text: str, first: int, index: str) -> tuple[str, list[str]]:
    """The text of a kernel that loads the sizes in it from its arguments, ``first`` being the
    position of the first of them; and these sizes.

    ``index``: the type of most sizes; kernels that read indices of a model have i64, too.
    """
    begin = text.index(ENTRY, text.index(KERNEL)) + len(ENTRY)  # functions may come before it
    body = text[begin:]
    names: dict[str, str] = {}

    def operand(size: re.Match[str]) -> str:
        name = names.setdefault(size[0], f"%size{len(names)}")
        if index == I64:
            return name
        line = body.rfind("\n", 0, size.start()) + 1
        is_wide = INTEGER.findall(body, line, size.start())[-1] == I64
        return f"{name}.wide" if is_wide else name

    substituted = SIZE_IN_TEXT.sub(operand, body)
    loads = (_load_size(name, first + number, index) for number, name in enumerate(names.values()))
    return "".join([text[:begin], *loads, substituted]), list(names)


def _free_numbers(step: Instruction) -> tuple[bool, ...]:
    """Whether each number of the shapes and places of an instruction is free."""
    places = [(*view.type.shape, *view.strides, view.offset) for view in step.views]
    if isinstance(step, Compute):
        places += [node.type.shape for node in (step.op, *step.op.operands)]
    return tuple(is_free(number) for place in places for number in place)


def _load_size(name: str, position: int, index: str) -> str:
    """Instructions that load a size, an int64 among the arguments of a kernel."""
    wide = name if index == I64 else f"{name}.wide"
    narrowed = "" if index == I64 else f"  {name} = trunc i64 {wide} to {index}\n"
    return (
        f"  {name}.at = getelementptr i8, ptr %args, i64 {8 * position}\n  {wide} = load i64, ptr "
        f"{name}.at, align 8\n{narrowed}"
    )


def kernel_calls(program: Program, target: Target) -> Iterator[tuple[Instruction, KernelCall]]:
    """The instructions that become kernels with something to do, those in loops included."""
    waiting = list(reversed(program.instructions))
    while waiting:
        step = waiting.pop()
        waiting.extend(reversed(step.steps))
        if not isinstance(step, Repeat) and (call := _emit_call(step, target)) is not None:
            yield step, call


def _emit_call(step: Instruction, target: Target) -> KernelCall | None:
    """The kernel of an instruction that is no loop, None where there is nothing to do."""
    if isinstance(step, Alloc | Dealloc):
        return None
    call = emit(step, target)
    return call if decide(call.items != 0) else None


@dataclass
class _Layout:
    """Places of buffers and packed constants, as calls come."""

    program: Program
    plan: MemoryPlan | OrderedPlan
    hold: Hold
    constants: list[Array] = field(default_factory=list)
    checks: int = 0
    _constant_of: dict[Buffer, int] = field(default_factory=dict)
    _ends: dict[Buffer, Pointer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, ports in (
            (MemoryRegion.INPUT, self.program.inputs),
            (MemoryRegion.OUTPUT, self.program.outputs),
        ):
            for index, (_, view) in enumerate(ports):
                self._ends[view.buffer] = Pointer(place, index)

    def emitted(self, target: Target, arena_nbytes: int) -> EmittedProgram:
        """The program for a target."""
        calls = list(self.calls(self.program.instructions, target))
        ends = (tuple(self.program.inputs), tuple(self.program.outputs))
        constants = tuple(self.constants)
        return EmittedProgram(target, _with_rows(calls), len(calls), constants, arena_nbytes, *ends)

    def calls(self, steps: Iterable[Instruction], target: Target) -> Iterator[EmittedCall]:
        """The calls of instructions, with places."""
        for step in steps:
            if isinstance(step, Repeat):
                yield self.loop(step, target)
            elif (call := _emit_call(step, target)) is not None:
                yield self.placed(step, call)

    def loop(self, step: Repeat, target: Target) -> EmittedCall:
        """The call of a loop; pointers of loops inside do not move with it."""
        body, moving = [], list[Moving]()
        for inner in step.body:
            if isinstance(inner, Repeat):
                body.append(self.loop(inner, target))
            elif (call := _emit_call(inner, target)) is not None:
                views = [(i, p) for i, p in enumerate(call.pointers) if isinstance(p, View)]
                moves = [(i, p.advance * p.type.dtype.nbytes) for i, p in views]
                moving += [(len(body), i, nbytes) for i, nbytes in moves if decide(nbytes != 0)]
                body.append(self.placed(inner, call, step.trips))
        condition = (
            Pointer(MemoryRegion.SIZE) if step.condition is None else self._pointer(step.condition)
        )
        return _loop_call(step, body, moving, condition)

    def placed(self, step: Instruction, call: KernelCall, trips: Dim = 1) -> EmittedCall:
        """The call with places instead of views and arrays; ``trips``: of the loop around it."""
        pointers = [self._pointer(pointer, trips) for pointer in call.pointers]
        if call.checked:
            pointers.append(Pointer(MemoryRegion.CHECK, self.checks, 8 * self.checks))
            self.checks += 1
        nbytes = sum(p.type.nbytes if isinstance(p, View) else p.nbytes for p in call.pointers)
        return EmittedCall(step, replace(call, pointers=()), tuple(pointers), nbytes)

    def _pointer(self, pointer: View | Array, trips: Dim = 1) -> Pointer:
        if not isinstance(pointer, View):
            extent = PointerExtent((pointer.nbytes,), (1,), 1, 0, pointer.nbytes)
            return Pointer(MemoryRegion.CONSTANT, self._add_constant(pointer), extent=extent)
        return replace(self._place(pointer), extent=self._extent(pointer, trips))

    def _extent(self, view: View, trips: Dim) -> PointerExtent:
        """The elements of a view in all trips of a loop."""
        shape, strides = view.shape, view.strides
        if decide(view.advance != 0):
            shape, strides = (trips, *shape), (view.advance, *strides)
        size = view.type.dtype.nbytes
        return PointerExtent(shape, strides, size, self._begin(view.buffer), view.buffer.nbytes)

    def _begin(self, buffer: Buffer) -> int:
        """Bytes of a buffer from the beginning of its place."""
        if buffer.kind is not BufferKind.TEMP:
            return 0
        assert isinstance(self.plan, MemoryPlan)
        return self.plan.offsets[buffer]

    def _place(self, pointer: View) -> Pointer:
        buffer = pointer.buffer
        if buffer.kind is BufferKind.TEMP:
            return self._in_arena(pointer)
        if buffer.value is None:
            return replace(self._ends[buffer], offset_bytes=pointer.offset_bytes)
        if buffer not in self._constant_of:
            self._constant_of[buffer] = self._add_constant(buffer.value)
        return Pointer(MemoryRegion.CONSTANT, self._constant_of[buffer], pointer.offset_bytes)

    def _in_arena(self, view: View) -> Pointer:
        return Pointer(MemoryRegion.ARENA, 0, self._begin(view.buffer) + view.offset_bytes)

    def _add_constant(self, array: Array) -> int:
        self.constants.append(self.hold(array))
        return len(self.constants) - 1


@dataclass
class _FreeLayout(_Layout):
    """The same where sizes are free: they are operands, and the arena has buffers, not offsets."""

    guards: Guards = field(kw_only=True)
    index: str = field(kw_only=True)
    _texts: dict[tuple[object, ...], tuple[str, list[str]]] = field(default_factory=dict)

    def placed(self, step: Instruction, call: KernelCall, trips: Dim = 1) -> EmittedCall:
        """The call with a text that serves all shapes, and the sizes that it takes."""
        emitted = super().placed(step, call, trips)
        text, names = self._text(step, call, len(emitted.pointers))
        sizes = (size(self.guards.names[name], self.guards) for name in names)
        pointers = (*emitted.pointers, *(Pointer(MemoryRegion.SIZE, 0, size) for size in sizes))
        return replace(emitted, kernel=replace(emitted.kernel, code=text), pointers=pointers)

    def _text(self, step: Instruction, call: KernelCall, first: int) -> tuple[str, list[str]]:
        """``with_operands`` of the text of a call; calls of equal parts share one.

        Parts of calls without ``facts`` have all constants: they take longer than most texts.
        Tiles for a free size may be smaller than those for an integer, also where guards have left
        it one value, which is what the parts show of it.
        """
        if call.facts is None:
            return with_operands(call.ir, first, self.index)
        key = (first, _free_numbers(step), *step_parts(step, call.facts, {}))
        operands = self._texts.get(key)
        if operands is None:
            operands = self._texts[key] = with_operands(call.ir, first, self.index)
        return operands

    def _begin(self, buffer: Buffer) -> int:
        """0: each buffer is a place."""
        return 0

    def _in_arena(self, view: View) -> Pointer:
        assert isinstance(self.plan, OrderedPlan)
        return Pointer(MemoryRegion.ARENA, self.plan.positions[view.buffer], view.offset_bytes)


def _loop_call(
    step: Repeat, body: Sequence[EmittedCall], moving: Sequence[Moving], condition: Pointer
) -> EmittedCall:
    """The row of a loop; ``_with_rows`` will say where its body and the moving pointers lie."""
    words = [
        Pointer(MemoryRegion.SIZE, 0, step.trips),
        Pointer(MemoryRegion.ROW),
        Pointer(MemoryRegion.SIZE, 0, len(body)),
        Pointer(MemoryRegion.SIZE, 0, len(moving)),
        condition,
    ]
    for call, number, nbytes in moving:
        words += [
            body[call].pointers[number],
            Pointer(MemoryRegion.SIZE, 0, nbytes),
            Pointer(MemoryRegion.ARGUMENT, call, 8 * number),
        ]
    trips = likely(step.trips) if step.condition is None else 1
    work = trips * sum(call.work for call in body)
    kernel = KernelCall(LOOP, (), items=1, work=work, label="loop", facts="")
    nbytes = trips * sum(call.nbytes for call in body)
    return EmittedCall(step, kernel, tuple(words), nbytes, tuple(body))


def _with_rows(calls: Sequence[EmittedCall]) -> tuple[EmittedCall, ...]:
    """The rows of a table: calls, then those in bodies, with the places of all of them known."""
    rows = list(calls)
    bodies: dict[int, int] = {}
    for number, call in enumerate(rows):  # rows grow meanwhile
        if call.body:
            bodies[number] = len(rows)
            rows += call.body
    first = list(accumulate((len(call.pointers) for call in rows), initial=0))
    return tuple(
        replace(call, pointers=tuple(_place_pointers(call.pointers, bodies[number], first)))
        if number in bodies
        else call
        for number, call in enumerate(rows)
    )


def _place_pointers(
    pointers: Sequence[Pointer], row: int, first: Sequence[int]
) -> Iterator[Pointer]:
    """The pointers of a loop whose body begins at ``row``; ``first``: positions of the first
    pointers of rows."""
    for pointer in pointers:
        if pointer.place is MemoryRegion.ROW:
            yield Pointer(MemoryRegion.ROW, 0, ENTRY_NBYTES * row)
        elif pointer.place is MemoryRegion.ARGUMENT:
            position = 8 * first[row + pointer.index] + pointer.offset_bytes
            yield Pointer(MemoryRegion.ARGUMENT, 0, position)
        else:
            yield pointer
