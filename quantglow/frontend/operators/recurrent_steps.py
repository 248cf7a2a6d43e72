"""Steps of recurrent networks: a cell, and the ways to run it over a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call
from quantglow.frontend.operators.indexing import Bound, iota, positions
from quantglow.frontend.operators.loops import Operands, reversed_steps
from quantglow.frontend.operators.slicing import Span, along, along_span
from quantglow.graph.node import Constant, Node
from quantglow.ops.binary import Add, Mul
from quantglow.ops.convolution import Gemm
from quantglow.ops.expression import Expr, arg, lconst
from quantglow.ops.expression import call as fn
from quantglow.ops.indexing import Gather
from quantglow.ops.primitives import Elementwise
from quantglow.ops.selection import Where
from quantglow.ops.shape import Concat, Reshape
from quantglow.ops.unary import Clip, Relu, Sigmoid, Tanh
from quantglow.types import DType, ElementType

MOST_STEPS = 4
"""Maximum number of steps that are unrolled, which pays where the first state is known; longer
sequences are loops."""

LARGE_STEP = 2**22
"""Minimum number of multiply-accumulates of a step that threads share."""

MOST_LARGE_STEPS = 128
"""Maximum number of such steps that are unrolled, in a model without free dimensions."""

FUNCTIONS: dict[str, Callable[..., Node]] = {"relu": Relu, "sigmoid": Sigmoid, "tanh": Tanh}

State = tuple[Node, ...]
"""The hidden state [B, H], of an LSTM the cell state too."""


@dataclass(frozen=True)
class Cell:
    """One direction: what a step computes from its part of x and the state before it.

    ``w`` is [I, gates * H], ``r`` [H, gates * H]; the bias of the input and that of the state are
    [gates * H].
    """

    call: Call
    hidden: int
    w: Array
    r: Array
    input_bias: Array
    state_bias: Array
    peepholes: Array | None
    functions: tuple[str, ...]
    made: dict[str, Constant] = field(default_factory=dict)

    def constant(self, tag: str, array: Array) -> Constant:
        """One for all steps; the tag names the array."""
        if tag not in self.made:
            self.made[tag] = self.call.constant(tag, np.ascontiguousarray(array))
        return self.made[tag]

    def product(self, tag: str, x: Node, w: Constant, b: Constant | None = None) -> Node:
        return Gemm(name=self.call.derived(tag), x=x, w=w, b=b)

    def add(self, x: Node, y: Node) -> Node:
        return Add(name=self.call.derived("sum"), x=x, y=y)

    def mul(self, x: Node, y: Node) -> Node:
        return Mul(name=self.call.derived("product"), x=x, y=y)

    def from_input(self, x: Node) -> Node:
        """x W + input bias."""
        weights, bias = self.constant("W", self.w), self.constant("Wb", self.input_bias)
        return self.product("projected", x, weights, bias)

    def gates(self, x: Node, h: Node) -> Node:
        """``from_input`` + h R + state bias."""
        weights, bias = self.constant("R", self.r), self.constant("Rb", self.state_bias)
        return self.add(x, self.product("state", h, weights, bias))

    def most_unrolled(self, x: Node) -> int:
        """Maximum number of steps with nodes of their own: a loop computes its steps on one
        thread, and serves all lengths."""
        if self.call.scope.unrolls:
            return MOST_LARGE_STEPS
        if self.call.scope.has_free_inputs:
            return MOST_STEPS
        return MOST_LARGE_STEPS if x.type.shape[1] * self.r.size >= LARGE_STEP else MOST_STEPS

    def gate(self, gates: Node, position: int) -> Node:
        """One of the gates that lie side by side."""
        start = position * self.hidden
        return along(self.call.derived("gate"), gates, 1, range(start, start + self.hidden))

    def activated(self, number: int, gate: Node) -> Node:
        """Activation ``number`` of a gate, which is clipped before if the model says so."""
        clip = self.call.number("clip", 0.0)
        if clip > 0:
            gate = Clip(name=self.call.derived("clip"), x=gate, low=-clip, high=clip)
        return self.function(number, gate)

    def function(self, number: int, x: Node) -> Node:
        made = FUNCTIONS[self.functions[number]]
        return made(name=self.call.derived(self.functions[number]), x=x)


Step = Callable[[Cell, Node, State], State]
"""(cell, x W + input bias [B, gates * H], state) -> the next state."""


def lengths_of(call: Call, steps: int, batch: int) -> Node | None:
    """The length of each sequence as int64 [B, 1]; None where all have all ``steps``.

    Raises ``ValueError`` for another number of lengths than ``batch``, and for known ones that are
    negative or more than ``steps``; others are an ``OutOfRangeError`` at run time.
    """
    if not call.has(4):
        return None
    if call.shape(4) != (batch,):
        raise ValueError(f"sequence_lens has shape {call.shape(4)}, not ({batch},) as the batch")
    if call.is_known(4) and (call.array(4, "sequence_lens") == steps).all():
        return None
    given, wide = call.tensor(4), fn("int64", arg(0))
    checked = positions(call, "length", wide, [given], [Bound(wide, wide, steps, closed=True)])
    # A Gather checks its indices: each length is looked up in a table of all.
    every = iota(call, (steps + 1,), 0)
    found = Gather(name=call.derived("lengths"), x=every, indices=checked, axis=0)
    return Reshape(name=call.derived("column"), x=found, shape=(batch, 1))


def projected(cell: Cell, x: Node) -> Node:
    """x W + input bias of all steps, [T * B, gates * H]."""
    call, (steps, batch, width) = cell.call, x.type.shape
    flat = Reshape(name=call.derived("inputs"), x=x, shape=(steps * batch, width))
    return cell.from_input(flat)


def ran(
    cell: Cell, step: Step, x: Node, state: State, backwards: bool, lengths: Node | None
) -> tuple[Node, State]:
    """The hidden states of all steps in the order of time, and the last state."""
    if lengths is not None or x.type.shape[0] > cell.most_unrolled(x):
        return looped(cell, step, x, state, backwards, lengths)
    return unrolled(cell, step, x, state, backwards)


def unrolled(cell: Cell, step: Step, x: Node, state: State, backwards: bool) -> tuple[Node, State]:
    """``ran`` with nodes of its own for each step; the hidden states are [T * B, H]."""
    call, (steps, batch, _) = cell.call, x.type.shape
    rows = projected(cell, x)
    results: dict[int, Node] = {}
    for t in reversed(range(steps)) if backwards else range(steps):
        now = along_span(call.derived("step"), rows, 0, Span(t * batch, batch))
        state = step(cell, now, state)
        results[t] = state[0]
    parts = tuple(results[t] for t in range(steps))
    return Concat(name=call.derived("steps"), parts=parts, axis=0), state


def looped(
    cell: Cell, step: Step, x: Node, state: State, backwards: bool, lengths: Node | None
) -> tuple[Node, State]:
    """``ran`` as a loop; the hidden states are [T, B, H]."""
    call, (steps, batch, _) = cell.call, x.type.shape
    shape = (steps, batch, cell.w.shape[1])
    rows: Node = Reshape(name=call.derived("steps"), x=projected(cell, x), shape=shape)
    if backwards:
        rows = reversed_steps(call, rows, "backwards")
    clock = None if lengths is None else Clock(call, lengths, steps, backwards)
    carried = state if clock is None else (*state, clock.start)
    operands = Operands(call, carried, (rows,), steps)
    inputs = operands.inputs([call.derived("before")] * len(carried) + [call.derived("step")])
    before, now = inputs[: len(state)], inputs[-1]
    after = step(cell, now, before)
    ends = [*after, after[0]] if clock is None else clock.held(after, before, inputs[len(state)])
    loop = operands.loop(inputs, ends)
    every: Node = loop.result(call.derived("every"), len(carried))
    last: State = tuple(loop.result(call.derived("last"), i) for i in range(len(state)))
    if clock is not None:
        last = clock.ended(last)
    return (reversed_steps(call, every, "forwards") if backwards else every), last


@dataclass(frozen=True)
class Clock:
    """Counts steps, and holds the states of sequences outside of their lengths (int64 [B, 1])."""

    call: Call
    lengths: Node
    steps: int
    backwards: bool

    @property
    def start(self) -> Node:
        """The number of the step that comes first."""
        first = lconst(self.steps - 1 if self.backwards else 0)
        zero = Constant(name=self.call.derived("zero"), value=np.zeros(1, np.int64))
        return self._computed("start", fn("iadd", arg(0), first), DType.I64, zero)

    def held(self, after: State, before: State, now: Node) -> list[Node]:
        """The states and the time behind step ``now``, and its result, 0 outside of a sequence."""
        runs = self._computed("runs", fn("lt", arg(0), arg(1)), DType.BOOL, now, self.lengths)
        states = [self._where("held", runs, *pair) for pair in zip(after, before, strict=True)]
        zero = self.call.constant("padding", np.zeros(1))
        way = lconst(-1 if self.backwards else 1)
        following = self._computed("following", fn("iadd", arg(0), way), DType.I64, now)
        return [*states, following, self._where("result", runs, after[0], zero)]

    def ended(self, last: State) -> State:
        """The last states; 0 for sequences of no steps, as onnxruntime has it."""
        some = self._computed("some", fn("gt", arg(0), lconst(0)), DType.BOOL, self.lengths)
        zero = self.call.constant("padding", np.zeros(1))
        return tuple(self._where("ended", some, state, zero) for state in last)

    def _where(self, tag: str, condition: Node, x: Node, y: Node) -> Node:
        return Where(name=self.call.derived(tag), condition=condition, x=x, y=y)

    def _computed(self, tag: str, expression: Expr, out: DType, *args: Node) -> Node:
        name = self.call.derived(tag)
        return Elementwise(name=name, args=args, expression=expression, out=ElementType(out))
