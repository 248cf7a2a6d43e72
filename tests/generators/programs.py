"""Hypothesis: programs of instructions on buffers."""

from __future__ import annotations

from hypothesis import strategies as st

from quantglow.ir.program.program import Alloc, Buffer, BufferKind, Dealloc, Instruction, Program
from quantglow.memory.schedule import schedule
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from quantglow.transforms.program.sharing import share_in_place
from tests.generators.quantized_graphs.graphs import mixed_graphs

NBYTES = (0, 1, 63, 64, 65, 128, 1000, 4096)
"""Sizes of buffers, around the alignment."""


@st.composite
def memory_programs(draw: st.DrawFn) -> Program:
    """A program that only allocates buffers, and frees them in a drawn order."""
    live: list[Buffer] = []
    steps: list[Instruction] = []
    for index in range(draw(st.integers(0, 12))):
        live.append(Buffer(f"b{index}", BufferKind.TEMP, draw(st.sampled_from(NBYTES))))
        steps.append(Alloc(live[-1]))
        for _ in range(draw(st.integers(0, min(2, len(live))))):
            steps.append(Dealloc(live.pop(draw(st.integers(0, len(live) - 1)))))
    steps += [Dealloc(b) for b in live]
    return Program((), (), tuple(steps))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """The program of a graph: in its order or scheduled, its buffers shared or not."""
    lowered = lower(draw(mixed_graphs()), unsigned=draw(st.booleans()))
    order = schedule(lowered) if draw(st.booleans()) else None
    program = generate(lowered, order, slack_nbytes=draw(st.sampled_from([0, 64])))
    return share_in_place(program) if draw(st.booleans()) else program
