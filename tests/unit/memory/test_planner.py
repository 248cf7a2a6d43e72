"""The planner and the scheduler on cases whose best answer is known."""

from __future__ import annotations

import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Concat, Expand, ReduceMax, Relu
from quantglow.ir.program.program import Alloc, Buffer, BufferKind, Dealloc, Instruction, Program
from quantglow.ir.types import f32
from quantglow.memory.planner import OrderedPlan, plan_memory
from quantglow.memory.schedule import peak_nbytes, schedule


def program(text: str) -> Program:
    """``a b -a``: alloc a, alloc b, dealloc a; sizes are the letters' places times 64."""
    buffers = {c: Buffer(c, BufferKind.TEMP, 64 * (ord(c) - 96)) for c in text if c.isalpha()}
    words = text.split()
    steps: list[Instruction] = [
        Dealloc(buffers[w[1]]) if w[0] == "-" else Alloc(buffers[w]) for w in words
    ]
    return Program((), (), tuple(steps))


@pytest.mark.parametrize(
    ("text", "peak"),
    [
        ("", 0),
        ("a -a", 64),
        ("a -a b -b c -c", 192),
        ("a b c -a -b -c", 384),
        ("a b -a c -b -c", 320),
        ("d a -d b c -a -b -c", 384),
    ],
)
def test_the_plan_is_the_best(text: str, peak: int) -> None:
    plan = plan_memory(program(text))
    assert (plan.peak_nbytes, plan.lower_bound_nbytes) == (peak, peak)


def big_then_small(x: Node, name: str) -> Node:
    big = Relu(name=f"{name}:big", x=Expand(name=f"{name}:e", x=x, shape=(1000, 4)))
    return ReduceMax(name=name, x=big, axes=(0,))


def test_the_schedule_finishes_a_branch_before_it_starts_the_next() -> None:
    x = Input(name="x", tensor=f32(1, 4))
    joined = Concat(name="j", parts=(big_then_small(x, "a"), big_then_small(x, "b")), axis=0)
    graph = Graph((x,), (("y", joined),))
    one_branch = 2 * 16000 + 16
    assert peak_nbytes(graph, schedule(graph)) <= one_branch + 16


@pytest.mark.parametrize("text", ["d a -d b c -a -b -c", "a b c d -b e -a -c f -d -e -f"])
def test_buffers_keep_their_order_at_other_sizes(text: str) -> None:
    built_program = program(text)
    order = OrderedPlan.of(built_program, plan_memory(built_program))
    sizes = [64 * (7 * i % 5 + 1) for i in range(len(order.nbytes))]
    offsets, peak = order.offsets(sizes)
    ends = [at + size for at, size in zip(offsets, sizes, strict=True)]
    alive: set[int] = set()
    for word in text.split():
        if word.startswith("-"):
            alive.discard(order.positions[order_buffer(order, word[1])])
            continue
        new = order.positions[order_buffer(order, word)]
        assert all(ends[o] <= offsets[new] or ends[new] <= offsets[o] for o in alive)
        alive.add(new)
    assert peak == max(ends)


def order_buffer(order: OrderedPlan, name: str) -> Buffer:
    return next(buffer for buffer in order.buffers if buffer.name == name)
