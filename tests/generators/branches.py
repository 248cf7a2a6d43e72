"""Hypothesis: graphs with many branches, whose order of execution decides what memory they need."""

from __future__ import annotations

from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Add, Concat, MaxPool, Relu
from quantglow.ir.program.program import Buffer, BufferKind
from quantglow.ir.types import f32
from quantglow.memory.tasks import Tasks, TaskStep
from tests.support.builder import Builder

CHANNELS = (1, 4, 16, 64)
"""Sizes of values far apart: with equal ones all orders are alike."""


@st.composite
def branching_graphs(draw: st.DrawFn, most: int = 12) -> Graph:
    """Up to ``most`` NHWC operators; many values have several readers, and any may be an output."""
    b = Builder(draw(st.integers(0, 2**16)), channels_last=True)
    values: list[Node] = [b.input(1, 4, 4, draw(st.sampled_from(CHANNELS)))]
    for _ in range(draw(st.integers(2, most))):
        x, y = (draw(st.sampled_from(values[-5:])) for _ in range(2))
        values.append(_step(draw, b, x, y))
    unread = [v for v in values if not any(v in w.operands for w in values)]
    return b.graph(*unread, *draw(st.lists(st.sampled_from(values[1:]), max_size=2)))


def _step(draw: st.DrawFn, b: Builder, x: Node, y: Node) -> Node:
    kind = draw(st.sampled_from(["conv", "conv", "concat", "add", "relu", "pool"]))
    if kind == "conv":
        return b.conv(x, draw(st.sampled_from(CHANNELS)), kernel=draw(st.sampled_from([1, 3])))
    if kind == "relu":
        return b.make(Relu, x=x)
    if kind == "pool":
        return b.make(MaxPool, x=x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
    if kind == "concat":
        return b.make(Concat, parts=(x, y), axis=3)
    return b.make(Add, x=x, y=b.conv(y, x.type.shape[3], kernel=1))


@st.composite
def task_sets(draw: st.DrawFn, most: int = 7) -> Tasks:
    """Up to ``most`` tasks before the last; each writes a buffer, its own or one that another task
    writes a part of, and reads those of earlier tasks, of which it may take one over.
    """
    steps: list[tuple[TaskStep, ...]] = []
    written: list[Buffer] = []
    before: list[int] = []
    for task in range(draw(st.integers(1, most))):
        read = draw(st.sets(st.integers(0, task - 1), max_size=3)) if task else set()
        shared = draw(st.sampled_from([None, None, *written]))
        nbytes = 64 * draw(st.integers(1, 9))
        written.append(shared or Buffer(f"b{task}", BufferKind.TEMP, nbytes))
        operands = [b for b in dict.fromkeys(written[r] for r in read) if b is not written[-1]]
        like = [b for b in operands if b.nbytes == written[-1].nbytes]
        replaced = tuple(like) if draw(st.booleans()) else ()
        steps.append(_drawn_steps(draw, operands, written[-1], replaced))
        before.append(sum(1 << task for task in read))
    ends = draw(st.sets(st.sampled_from(written)))
    last = TaskStep(tuple(b for b in dict.fromkeys(written) if b in ends))
    nodes = tuple(Input(name=f"n{task}", tensor=f32(1)) for task in range(len(steps)))
    return Tasks(Graph((), ()), nodes, (*steps, (last,)), (*before, (1 << len(steps)) - 1))


def _drawn_steps(
    draw: st.DrawFn, operands: list[Buffer], out: Buffer, replaced: tuple[Buffer, ...]
) -> tuple[TaskStep, ...]:
    """A step, and where operands are copied first, two."""
    if not draw(st.booleans()) or not operands:
        return (TaskStep((*operands, out), out, replaced),)
    copy = Buffer("copy", BufferKind.TEMP, operands[0].nbytes)
    kept = tuple(b for b in replaced if b is not operands[0])
    return (TaskStep((operands[0], copy)), TaskStep((copy, *operands[1:], out), out, kept))
