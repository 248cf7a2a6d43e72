"""Every rule of the program verifier fires on a program that breaks it, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Conv, Elementwise
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.program.program import (
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Copy,
    Dealloc,
    Fill,
    Instruction,
    Program,
    View,
)
from quantglow.ir.program.strides import dense_strides
from quantglow.ir.program.verify import may_overlap, verify_program
from quantglow.ir.types import DType, ElementType, TensorType, f32
from quantglow.memory.planner import plan_memory
from quantglow.support.errors import BackendError

FLOAT = ElementType(DType.F32)
X = Buffer("x", BufferKind.INPUT, 16)
Y = Buffer("y", BufferKind.OUTPUT, 16)
C = Buffer("c", BufferKind.CONSTANT, 16, np.zeros(4, np.float32))
T = Buffer("t", BufferKind.TEMP, 16)


FOUR = f32(4)


Ends = tuple[tuple[str, View], ...]


def dense(buffer: Buffer, kind: TensorType = FOUR, offset: int = 0) -> View:
    return View(buffer, kind, dense_strides(kind.shape), offset)


def program(*steps: Instruction) -> Program:
    return Program((("x", dense(X)),), (("y", dense(Y)),), steps)


def negated(source: View, target: View) -> Compute:
    op = Elementwise(
        name="m",
        args=(Input(name="a", tensor=f32(4)),),
        expression=call("neg", arg(0)),
        out=FLOAT,
    )
    return Compute(op, (source,), target)


COPY_OUT = Copy(dense(X), dense(Y))
VALUES = np.array([1, -2, 3, -4], np.float32)


def accepted_result(*steps: Instruction) -> list[float]:
    """Result for ``VALUES`` of a program that the verifier accepts."""
    built_program = program(*steps)
    verify_program(built_program)
    (result,) = ReferenceExecutable(built_program, plan_memory(built_program)).run({"x": VALUES})
    return list(result)


def test_a_sound_program_is_accepted_and_runs() -> None:
    steps = (Alloc(T), negated(dense(X), dense(T)), Copy(dense(T), dense(Y)), Dealloc(T))
    assert accepted_result(*steps) == [-1, 2, -3, 4]


FAULTY: dict[str, tuple[str, tuple[Instruction, ...]]] = {
    "allocated-twice": ("allocated twice", (Alloc(T), Alloc(T), Dealloc(T), COPY_OUT)),
    "allocated-again": ("allocated twice", (Alloc(T), Dealloc(T), Alloc(T), COPY_OUT)),
    "dead-dealloc": ("is not alive", (Dealloc(T), COPY_OUT)),
    "leak": ("never deallocated", (Alloc(T), COPY_OUT)),
    "before-alloc": ("outside its life", (Copy(dense(X), dense(T)), COPY_OUT)),
    "after-dealloc": (
        "outside its life",
        (Alloc(T), Copy(dense(X), dense(T)), Dealloc(T), Copy(dense(T), dense(Y))),
    ),
    "beyond-the-end": ("leaves its buffer", (Copy(dense(X, f32(3), 2), dense(Y, f32(3))),)),
    "before-the-start": (
        "leaves its buffer",
        (Copy(View(X, f32(4), (-1,), 2), dense(Y)),),
    ),
    "unwritten": ("read before it is written", (Alloc(T), Copy(dense(T), dense(Y)), Dealloc(T))),
    "constant-written": ("may not be written", (Copy(dense(X), dense(C)), COPY_OUT)),
    "input-written": ("may not be written", (Fill(dense(X), 0, ((0,), (0,))), COPY_OUT)),
    "copy-types": ("copy between", (Copy(dense(X, f32(2)), dense(Y)),)),
    "operand-types": ("operands must be", (negated(dense(X, f32(2, 2)), dense(Y)),)),
    "result-type": ("the result must be", (negated(dense(X), dense(Y, f32(2, 2))),)),
    "overlap": (
        "overlaps the operand",
        (COPY_OUT, Copy(dense(Y, f32(3)), dense(Y, f32(3), 1))),
    ),
    "reversed-in-place": (
        "overlaps the operand",
        (COPY_OUT, negated(View(Y, f32(4), (-1,), 3), dense(Y))),
    ),
    "output-unwritten": ("output 'y' is never written", ()),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_program_is_refused(name: str) -> None:
    message, steps = FAULTY[name]
    with pytest.raises(BackendError, match=message):
        verify_program(program(*steps))


def test_the_message_points_at_the_faulty_instruction() -> None:
    steps = (Alloc(T), Copy(dense(T), dense(Y)), Dealloc(T))
    with pytest.raises(BackendError, match="->    1  copy @out %y"):
        verify_program(program(*steps))


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((), (("y", dense(Y)), ("z", dense(Y))), "'z' and 'y' share %y"),
        ((), (("y", dense(Y)), ("y", dense(Y))), "'y' and 'y' share %y"),
        ((("x", dense(X)), ("z", dense(X))), (), "'z' and 'x' share %x"),
        ((("x", dense(X, f32(2))),), (), "'x' is not the whole of %x"),
        ((("x", dense(X, f32(5))),), (), "'x' is not the whole of %x"),
        ((("x", dense(X, f32(4), offset=1)),), (), "'x' is not the whole of %x"),
        ((("x", View(X, f32(2, 2), (1, 2))),), (), "'x' is not the whole of %x"),
    ],
)
def test_inputs_and_outputs_are_whole_buffers_of_their_own(
    inputs: Ends, outputs: Ends, message: str
) -> None:
    with pytest.raises(BackendError, match=message):
        verify_program(Program(inputs, outputs, (Copy(dense(X), dense(Y)),)))


def test_a_map_may_run_in_place() -> None:
    assert accepted_result(COPY_OUT, negated(dense(Y), dense(Y))) == [-1, 2, -3, 4]


def test_a_convolution_may_not_run_in_place_of_its_image() -> None:
    kind = f32(1, 2, 2, 1)
    image, weights = Input(name="i", tensor=kind), Input(name="w", tensor=f32(1, 1, 1, 1))
    conv = Conv(name="c", x=image, w=weights, residual=image)
    y, c = dense(Y, kind), dense(C, f32(1, 1, 1, 1))
    with pytest.raises(BackendError, match="overlaps the operand"):
        verify_program(program(COPY_OUT, Compute(conv, (y, c, y), y)))


BIG = Buffer("big", BufferKind.TEMP, 4096)


def box(starts: tuple[int, ...], sizes: tuple[int, ...]) -> View:
    return dense(BIG, f32(4, 6, 8)).sub(starts, sizes)


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [
        (box((0, 0, 0), (4, 3, 8)), box((0, 3, 0), (4, 3, 8)), False),
        (box((0, 0, 0), (4, 6, 4)), box((0, 0, 4), (4, 6, 4)), False),
        (box((0, 0, 0), (4, 6, 5)), box((0, 0, 4), (4, 6, 4)), True),
        (box((0, 0, 0), (2, 3, 8)), box((1, 2, 0), (2, 3, 8)), True),
        (View(BIG, f32(8), (2,), 0), View(BIG, f32(8), (2,), 1), False),
        (View(BIG, f32(8), (2,), 0), View(BIG, f32(8), (3,), 1), True),
        (box((0, 0, 0), (0, 6, 8)), box((0, 0, 0), (4, 6, 8)), False),
        (View(BIG, f32(8), (-1,), 7), View(BIG, f32(8), (1,), 8), False),
        (View(BIG, f32(3, 5), (0, 1), 0), View(BIG, f32(5), (1,), 4), True),
    ],
)
def test_views_overlap_exactly_when_they_share_an_element(a: View, b: View, overlap: bool) -> None:
    assert may_overlap(a, b) is overlap


def test_an_empty_view_touches_no_byte() -> None:
    nothing = Buffer("nothing", BufferKind.TEMP, 0)
    kind = TensorType(DType.F32, (0, 3))
    copy = Copy(View(nothing, kind, (9, 3), 1), dense(nothing, kind))
    steps = (Alloc(nothing), copy, Dealloc(nothing), Copy(dense(X), dense(Y)))
    verify_program(program(*steps))
