"""Inputs whose memory becomes an output: rows are added, nothing else moves."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Concat, Relu, Reshape, Scatter, Transpose
from quantglow.ir.program.program import BufferKind, Compute, Copy, Program
from quantglow.ir.program.text import parse_program, text_constants
from quantglow.ir.program.verify import verify_program
from quantglow.ir.types import f32
from quantglow.support.errors import BackendError
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.copy_elision import Donation
from quantglow.transforms.program.generate import generate

PAST = Input(name="past", tensor=f32(2, 3, 5, 4))
NEW = Input(name="new", tensor=f32(2, 3, 2, 4))
GIVEN = Donation("past", "present", 2, 16)


def program(result: Node, *others: Node, past: Input = PAST) -> Program:
    outputs = [("present", result), *((node.name, node) for node in others)]
    graph = lower(Graph((past, NEW), tuple(outputs)))
    program = generate(graph, donations=[GIVEN])
    verify_program(program)
    return program


def appended() -> Concat:
    return Concat(name="present", parts=(PAST, Relu(name="relu", x=NEW)), axis=2)


def written(x: Node) -> Node:
    rows = Reshape(name="rows", x=x, shape=(30, 4))
    where = Constant(name="where", value=np.arange(12))
    new = Reshape(name="updates", x=NEW, shape=(12, 4))
    scatter = Scatter(name="written", x=rows, indices=where, updates=new)
    return Reshape(name="present", x=scatter, shape=PAST.type.shape)


def test_new_rows_are_computed_where_they_belong() -> None:
    built_program = program(appended())
    (step,) = built_program.instructions
    assert isinstance(step, Compute)
    assert step.output.buffer.kind is BufferKind.STATE
    assert (step.output.shape, step.output.offset) == ((2, 3, 2, 4), 5 * 4)
    assert step.output.strides == (3 * 16 * 4, 16 * 4, 4, 1)


def test_rows_of_an_input_are_copied_alone() -> None:
    joined = Concat(name="present", parts=(PAST, NEW), axis=2)
    (step,) = program(joined).instructions
    assert isinstance(step, Copy)
    assert step.dst.shape == NEW.type.shape


def test_rows_are_written_at_their_places() -> None:
    donation = Donation("past", "present", 2, 5)
    program = generate(
        lower(Graph((PAST, NEW), (("present", written(PAST)),))), donations=[donation]
    )
    (step,) = program.instructions
    assert isinstance(step, Compute)
    assert step.output.buffer is step.inputs[0].buffer


def test_an_empty_cache_gets_its_first_rows() -> None:
    empty = Input(name="past", tensor=f32(2, 3, 0, 4))
    built_program = program(Relu(name="present", x=NEW), past=empty)
    assert [
        type(step) for step in built_program.instructions if not step.mnemonic.endswith("alloc")
    ] == [
        Compute,
        Copy,
    ]
    (name, view), *_ = built_program.outputs
    assert (name, view.shape, view.strides[1]) == ("present", NEW.type.shape, 16 * 4)


def test_a_reader_of_the_old_rows_sees_them() -> None:
    """They stay where they are when rows are added, but not when rows are written."""
    assert program(appended(), Relu(name="old", x=PAST))
    with pytest.raises(BackendError, match="is not 'past' with rows added"):
        program(written(PAST), Relu(name="old", x=PAST))


@pytest.mark.parametrize(
    "result",
    [
        Concat(name="present", parts=(NEW, PAST), axis=2),
        Concat(name="present", parts=(PAST, PAST), axis=2),
        Concat(name="present", parts=(PAST, PAST), axis=1),
        Relu(name="present", x=PAST),
        Transpose(name="present", x=appended(), perm=(0, 1, 3, 2)),
        written(Relu(name="relu", x=PAST)),
    ],
    ids=lambda node: type(node).__name__,
)
def test_other_results_are_refused(result: Node) -> None:
    with pytest.raises(BackendError, match="is not 'past' with rows added"):
        program(result)


def test_a_program_with_a_state_has_a_text() -> None:
    built_program = program(appended())
    assert "state %past" in str(built_program)
    assert str(parse_program(str(built_program), text_constants(built_program))) == str(
        built_program
    )
