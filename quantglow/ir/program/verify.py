"""The program verifier, and which operands of a primitive a result may overwrite.

Messages show the IR around the faulty instruction.
"""

from __future__ import annotations

import numpy as np

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Conv
from quantglow.ir.ops.arithmetic import is_integer
from quantglow.ir.program.program import (
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Copy,
    Dealloc,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.ir.symbolic.size import Dim, decide, decide_equal, decide_max, is_free
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError

GIVEN = (BufferKind.CONSTANT, BufferKind.INPUT, BufferKind.STATE)
"""Kinds of buffers that hold something before the program runs."""

AROUND = 3
"""Number of instructions that a message shows before the faulty one, and behind it."""


def verify_program(program: Program) -> None:
    """Raise ``BackendError`` at the first instruction that breaks a rule of the IR."""
    live: set[Buffer] = {b for b in program.buffers if b.kind is not BufferKind.TEMP}
    written: set[Buffer] = {b for b in live if b.kind in GIVEN}
    ended: set[Buffer] = set()
    for index, instruction in enumerate(program.instructions):
        problem = _lifetimes(instruction, live, ended) or _step(instruction, live, written)
        if problem:
            raise BackendError(f"instruction {index}: {problem}\n{_excerpt(program, index)}")
        written.update(view.buffer for view in (*instruction.outs, *instruction.inouts))
    if leaked := [str(b) for b in live if b.kind is BufferKind.TEMP]:
        raise BackendError(f"buffers never deallocated: {leaked}")
    for name, view in program.outputs:
        if not view.type.is_empty and view.buffer not in written:
            raise BackendError(f"output {name!r} is never written")
    _check_ends(program)


def _check_ends(program: Program) -> None:
    """Raise ``BackendError`` unless each input and output is the whole of a buffer of its own: the
    caller's arrays take the place of these buffers, one for each.  A state is an input and an
    output."""
    owners: dict[Buffer, str] = {}
    for name, view in (*program.inputs, *program.outputs):
        if view.buffer.kind is BufferKind.STATE:
            continue
        is_whole = (
            view.contiguous
            and not decide(view.offset != 0)
            and not decide(view.buffer.nbytes != view.type.nbytes)
        )
        if not is_whole:
            raise BackendError(f"{name!r} is not the whole of {view.buffer}")
        if view.buffer in owners:
            raise BackendError(f"{name!r} and {owners[view.buffer]!r} share {view.buffer}")
        owners[view.buffer] = name


def _lifetimes(instruction: Instruction, live: set[Buffer], ended: set[Buffer]) -> str | None:
    if isinstance(instruction, Alloc):
        if instruction.buffer in live | ended:
            return f"{instruction.buffer} is allocated twice"
        live.add(instruction.buffer)
    elif isinstance(instruction, Dealloc):
        if instruction.buffer not in live:
            return f"{instruction.buffer} is not alive"
        live.remove(instruction.buffer)
        ended.add(instruction.buffer)
    return None


def _step(step: Instruction, live: set[Buffer], written: set[Buffer]) -> str | None:
    """The fault of an instruction; those of a loop are looked at as in its first trip."""
    if not isinstance(step, Repeat):
        return _operands(step, live, written)
    if step.condition is not None and step.condition.buffer not in written:
        return f"{step.condition.buffer} is read before it is written"
    initialized = set(written)
    for inner in step.body:
        problem = _inside(inner, step) or _step(inner, live, initialized)
        if problem:
            return f"in the loop, {inner}: {problem}"
        initialized.update(view.buffer for view in (*inner.outs, *inner.inouts))
    return None


def _inside(step: Instruction, loop: Repeat) -> str | None:
    """The fault of the way in which the operands of an instruction move."""
    if isinstance(step, Alloc | Dealloc):
        return "buffers live as long as the loop at least"
    if isinstance(step, Repeat):
        return None
    for view in step.views:
        low, high = _swept(view, loop.trips)
        if decide(low < 0) or decide(high > view.buffer.nbytes):
            return f"{view} leaves its buffer of {view.buffer.nbytes} bytes"
    for out in step.outs:
        for view in step.ins:
            if out.buffer is view.buffer and decide(out.advance != view.advance):
                (low, high), (begin, end) = _swept(out, loop.trips), _swept(view, loop.trips)
                if decide(low < end) and decide(begin < high):
                    return f"{out} moves over the operand {view}"
    return None


def _swept(view: View, trips: Dim) -> tuple[Dim, Dim]:
    """First byte, and one past the last byte, that the view touches in all trips."""
    (low, high), way = view.extent_bytes(), (trips - 1) * view.advance * view.type.dtype.nbytes
    return (low + way, high) if decide(view.advance < 0) else (low, high + way)


def _operands(instruction: Instruction, live: set[Buffer], written: set[Buffer]) -> str | None:
    for view in instruction.views:
        if view.buffer not in live:
            return f"{view.buffer} is used outside its life"
        low, high = view.extent_bytes()
        if decide(low < 0) or decide(high > view.buffer.nbytes):
            return f"{view} leaves its buffer of {view.buffer.nbytes} bytes"
    for view in instruction.ins:
        if not view.type.is_empty and view.buffer not in written:
            return f"{view.buffer} is read before it is written"
    for view in (*instruction.outs, *instruction.inouts):
        if view.buffer.kind in (BufferKind.CONSTANT, BufferKind.INPUT):
            return f"{view.buffer} is {view.buffer.kind} and may not be written"
    return _types(instruction) or _aliases(instruction)


def _types(instruction: Instruction) -> str | None:
    if isinstance(instruction, Copy) and instruction.src.type != instruction.dst.type:
        return f"copy between {instruction.src.type} and {instruction.dst.type}"
    if not isinstance(instruction, Compute):
        return None
    expected = [operand.type for operand in instruction.op.operands]
    if [view.type for view in instruction.inputs] != expected:
        return f"operands must be {[str(t) for t in expected]}"
    if instruction.output.type != instruction.op.type:
        return f"the result must be {instruction.op.type}"
    return None


def _aliases(instruction: Instruction) -> str | None:
    in_place = in_place_positions(instruction.op) if isinstance(instruction, Compute) else ()
    for out in instruction.outs:
        for position, view in enumerate(instruction.ins):
            permitted = position in in_place and _same_place(out, view)
            if not permitted and may_overlap(out, view):
                return f"{out} overlaps the operand {view}"
    return None


def may_overlap(a: View, b: View) -> bool:
    """Whether two views share a byte; True also where that is too hard to tell."""
    if a.buffer is not b.buffer or a.type.is_empty or b.type.is_empty:
        return False
    (a_low, a_high), (b_low, b_high) = a.extent_bytes(), b.extent_bytes()
    if decide(a_high <= b_low) or decide(b_high <= a_low):
        return False
    block = np.empty(int(decide_max(a_high, b_high)), np.uint8)
    try:
        # NumPy's stub knows only the two special values of max_work.
        return np.shares_memory(_array(a, block), _array(b, block), max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _array(view: View, block: Array) -> Array:
    """The view as an array on the bytes of ``block``."""
    itemsize = view.type.dtype.nbytes
    strides = tuple(s * itemsize for s in view.strides)
    return np.ndarray(view.shape, view.type.dtype.numpy, block.data, view.offset_bytes, strides)


def _same_place(a: View, b: View) -> bool:
    """Equal elements at equal addresses: safe to compute in place, element by element."""
    return (
        a.buffer is b.buffer
        and decide(a.offset == b.offset)
        and decide(a.advance == b.advance)
        and decide_equal(a.strides, b.strides)
        and decide_equal(a.shape, b.shape)
        and a.type.dtype.nbytes == b.type.dtype.nbytes
    )


def _excerpt(program: Program, index: int) -> str:
    """The instructions around ``index``, the faulty one marked."""
    first = max(index - AROUND, 0)
    lines = [str(i) for i in program.instructions[first : index + AROUND + 1]]
    return "\n".join(
        f"{'->' if first + n == index else '  '} {first + n:4d}  {line}"
        for n, line in enumerate(lines)
    )


def in_place_positions(op: Node) -> frozenset[int]:
    """Positions in ``op.operands`` at which the result may take over the operand's memory."""
    if isinstance(op, Conv) and _repeats_results(op):
        return frozenset()
    return frozenset(i for i, name in enumerate(op.operand_labels) if name in op.in_place)


def _repeats_results(conv: Conv) -> bool:
    """Whether kernels may compute some results twice, and need the residual again: the ends of rows
    of a free length, and rows and channels of a depthwise convolution of integers."""
    return is_free(conv.type.size) or (conv.depthwise and is_integer(conv.x.type))
