"""The text of programs: what it looks like, and how bad text is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv, Relu
from quantglow.ir.program.text import parse_program, text_constants
from quantglow.ir.types import f32
from quantglow.support.errors import FileFormatError
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from tests.generators.texts import edited, edits

GOLDEN = Path(__file__).parents[3] / "golden"


def small_graph() -> Graph:
    x = Input(name="x", tensor=f32(1, 3, 3, 2))
    w = Constant(name="w", value=np.ones((2, 2, 2, 1), np.float32))
    conv = Conv(name="conv", x=x, w=w, pads=(0, 1, 1, 0), low=0.0)
    return Graph((x,), (("y", Relu(name="r", x=conv)),), "abc")


PROGRAM = generate(lower(small_graph()), slack_nbytes=64)
TEXT = str(PROGRAM)


def test_the_text_shows_buffers_instructions_and_borders() -> None:
    assert (GOLDEN / "small_program.ir").read_text() == TEXT


@given(edits)
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_an_altered_program_is_read_or_refused(changes: list[tuple[int, int, str]]) -> None:
    constants = text_constants(PROGRAM)
    try:
        program = parse_program(edited(TEXT, changes), constants)
    except FileFormatError:
        return
    assert str(parse_program(str(program), text_constants(program))) == str(program)


BAD_PROGRAMS = {
    "header": ("program\n", "prog\n", "line 1"),
    "buffer": ("@out %conv: f32", "@out %cnv: f32", "buffer %cnv is not defined above"),
    "label": ("@in w=", "@in v=", "Conv 'conv'"),
    "mnemonic": ("fill @inout", "flil @inout", "no instruction 'flil'"),
    "interior": ("interior=((0, 0, 1, 0)", "interior=((0, 9, 1, 0)", "interior inside its view"),
    "type": ("@out %conv: f32[1x3x3x1]", "@out %conv: f32[1x9x3x1]", "leaves its buffer"),
    "life": ("dealloc %conv:pad\n", "dealloc %conv\n", "the program is faulty"),
    "size": ("(32 bytes)", "(31 bytes)", "has 32 bytes, not 31"),
}


@pytest.mark.parametrize("case", BAD_PROGRAMS)
def test_a_bad_program_is_refused_with_its_cause(case: str) -> None:
    old, new, message = BAD_PROGRAMS[case]
    assert old in TEXT
    with pytest.raises(FileFormatError) as caught:
        parse_program(TEXT.replace(old, new), text_constants(PROGRAM))
    assert message in str(caught.value)
