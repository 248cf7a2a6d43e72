"""Rules of the verifier for loops, and the text of a program with one."""

from __future__ import annotations

import pytest

from quantglow.ir.program.program import Alloc, Buffer, BufferKind, Copy, Program, Repeat, View
from quantglow.ir.program.text import parse_program
from quantglow.ir.program.verify import verify_program
from quantglow.ir.types import f32
from quantglow.support.errors import BackendError, FileFormatError

X = Buffer("x", BufferKind.INPUT, 48)
Y = Buffer("y", BufferKind.OUTPUT, 48)
T = Buffer("t", BufferKind.TEMP, 48)


def row(buffer: Buffer, advance: int = 4, offset: int = 0) -> View:
    return View(buffer, f32(4), (1,), offset, advance)


def whole(buffer: Buffer) -> View:
    return View(buffer, f32(3, 4), (4, 1))


def program(*body: Copy | Alloc, trips: int = 3) -> Program:
    loop = Repeat("loop", trips, body)
    return Program((("x", whole(X)),), (("y", whole(Y)),), (loop,))


def test_rows_forward_and_backward() -> None:
    verify_program(program(Copy(row(X), row(Y))))
    verify_program(program(Copy(row(X), row(Y, -4, 8))))


@pytest.mark.parametrize(
    ("body", "trips", "cause"),
    [
        (Copy(row(X), row(Y)), 4, "leaves its buffer"),
        (Copy(row(X), row(Y, -4)), 3, "leaves its buffer"),
        (Copy(row(X), row(T)), 3, "outside its life"),
        (Copy(row(Y), row(Y, 0, 8)), 3, "moves over|before it is written"),
        (Alloc(T), 3, "live as long as the loop"),
    ],
)
def test_rules(body: Copy | Alloc, trips: int, cause: str) -> None:
    with pytest.raises(BackendError, match=cause):
        verify_program(program(body, trips=trips))


def test_an_operand_that_moves_otherwise_than_the_result() -> None:
    first = Copy(row(X), row(Y))
    with pytest.raises(BackendError, match="moves over"):
        verify_program(program(first, Copy(row(Y, 0, 8), row(Y))))


def test_text() -> None:
    built_program = program(Copy(row(X), row(Y, -4, 8)))
    shown = str(built_program)
    assert "   0  repeat {name='loop', trips=3}" in shown
    assert "   0.0  copy @out %y[8:1+-4]: f32[4], @in %x[0:1+4]: f32[4]" in shown
    assert str(parse_program(shown, {})) == shown


def test_a_step_of_no_loop_is_refused() -> None:
    shown = str(program(Copy(row(X), row(Y)))).replace("   0  repeat {name='loop', trips=3}\n", "")
    with pytest.raises(FileFormatError, match="no loop"):
        parse_program(shown, {})
