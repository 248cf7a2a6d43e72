"""Importers of LSTM, GRU and RNN.

A ``Cell`` is one direction.  Its steps over the sequence are a loop, or unrolled where they are
few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.controlflow.loops import LoopOperands, reversed_steps
from quantglow.importer.onnx.operators.tensor.indexing import Bound, iota, positions
from quantglow.importer.onnx.operators.tensor.slicing import SliceRange, along, along_span
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.binary import Add, Mul, Sub, Where
from quantglow.ir.ops.convolution import Gemm
from quantglow.ir.ops.expression import Expr, arg, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.indexing import Gather
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.shape import Concat, Expand, Reshape, Transpose
from quantglow.ir.ops.unary import Clip, Relu, Sigmoid, Tanh
from quantglow.ir.symbolic.size import Dim, decide, decide_equal, is_free
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

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

LSTM_FUNCTIONS = ("sigmoid", "tanh", "tanh")


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
    constants: dict[str, Constant] = field(default_factory=dict)

    def constant(self, tag: str, array: Array) -> Constant:
        """One for all steps; the tag names the array."""
        if tag not in self.constants:
            self.constants[tag] = self.call.constant(tag, np.ascontiguousarray(array))
        return self.constants[tag]

    def product(self, tag: str, x: Node, w: Constant, b: Constant | None = None) -> Node:
        return Gemm(name=self.call.derive(tag), x=x, w=w, b=b)

    def add(self, x: Node, y: Node) -> Node:
        return Add(name=self.call.derive("sum"), x=x, y=y)

    def mul(self, x: Node, y: Node) -> Node:
        return Mul(name=self.call.derive("product"), x=x, y=y)

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
        is_large = decide(x.type.shape[1] * self.r.size >= LARGE_STEP)
        return MOST_LARGE_STEPS if is_large else MOST_STEPS

    def gate(self, gates: Node, position: int) -> Node:
        """One of the gates that lie side by side."""
        start = position * self.hidden
        return along(self.call.derive("gate"), gates, 1, range(start, start + self.hidden))

    def activate(self, number: int, gate: Node) -> Node:
        """Activation ``number`` of a gate, which is clipped before if the model says so."""
        clip = self.call.number("clip", 0.0)
        if clip > 0:
            gate = Clip(name=self.call.derive("clip"), x=gate, low=-clip, high=clip)
        return self.function(number, gate)

    def function(self, number: int, x: Node) -> Node:
        operator = FUNCTIONS[self.functions[number]]
        return operator(name=self.call.derive(self.functions[number]), x=x)


Step = Callable[[Cell, Node, State], State]
"""(cell, x W + input bias [B, gates * H], state) -> the next state."""


def sequence_lengths(call: Call, steps: Dim, batch: Dim) -> Node | None:
    """The length of each sequence as int64 [B, 1]; None where all have all ``steps``.

    Raises ``ValueError`` for another number of lengths than ``batch``, and for known ones that are
    negative or more than ``steps``; others are an ``OutOfRangeError`` at run time.
    """
    if not call.has(4):
        return None
    if not decide_equal(call.shape(4), (batch,)):
        raise ValueError(f"sequence_lens has shape {call.shape(4)}, not ({batch},) as the batch")
    if call.is_known(4):
        lengths = call.array(4, "sequence_lens").tolist()
        if all(decide(length == steps) for length in lengths):
            return None
    operand, wide = call.tensor(4), fn("int64", arg(0))
    checked = positions(call, "length", wide, [operand], [Bound(wide, wide, steps, closed=True)])
    # A Gather checks its indices: each length is looked up in a table of all.
    every = iota(call, (steps + 1,), 0)
    looked_up = Gather(name=call.derive("lengths"), x=every, indices=checked, axis=0)
    return Reshape(name=call.derive("column"), x=looked_up, shape=(batch, 1))


def _project(cell: Cell, x: Node) -> Node:
    """x W + input bias of all steps, [T * B, gates * H]."""
    call, (steps, batch, width) = cell.call, x.type.shape
    flat = Reshape(name=call.derive("inputs"), x=x, shape=(steps * batch, width))
    return cell.from_input(flat)


def _ran(
    cell: Cell, step: Step, x: Node, state: State, backwards: bool, lengths: Node | None
) -> tuple[Node, State]:
    """The hidden states of all steps in the order of time, and the last state."""
    if lengths is not None or decide(x.type.shape[0] > cell.most_unrolled(x)):
        return _loop(cell, step, x, state, backwards, lengths)
    return _unroll(cell, step, x, state, backwards)


def _unroll(cell: Cell, step: Step, x: Node, state: State, backwards: bool) -> tuple[Node, State]:
    """``ran`` with nodes of its own for each step; the hidden states are [T * B, H]."""
    call, (steps, batch, _) = cell.call, x.type.shape
    rows = _project(cell, x)
    results: dict[int, Node] = {}
    for t in reversed(range(steps)) if backwards else range(steps):
        now = along_span(call.derive("step"), rows, 0, SliceRange(t * batch, batch))
        state = step(cell, now, state)
        results[t] = state[0]
    parts = tuple(results[t] for t in range(steps))
    return Concat(name=call.derive("steps"), parts=parts, axis=0), state


def _loop(
    cell: Cell, step: Step, x: Node, state: State, backwards: bool, lengths: Node | None
) -> tuple[Node, State]:
    """``ran`` as a loop; the hidden states are [T, B, H]."""
    call, (steps, batch, _) = cell.call, x.type.shape
    shape = (steps, batch, cell.w.shape[1])
    rows: Node = Reshape(name=call.derive("steps"), x=_project(cell, x), shape=shape)
    if backwards:
        rows = reversed_steps(call, rows, "backwards")
    clock = None if lengths is None else SequenceClock(call, lengths, steps, backwards)
    carried = state if clock is None else (*state, clock.start)
    operands = LoopOperands(call, carried, (rows,), steps)
    inputs = operands.inputs([call.derive("before")] * len(carried) + [call.derive("step")])
    before, now = inputs[: len(state)], inputs[-1]
    after = step(cell, now, before)
    ends = [*after, after[0]] if clock is None else clock.hold(after, before, inputs[len(state)])
    loop = operands.loop(inputs, ends)
    every: Node = loop.result(call.derive("every"), len(carried))
    last: State = tuple(loop.result(call.derive("last"), i) for i in range(len(state)))
    if clock is not None:
        last = clock.end(last)
    return (reversed_steps(call, every, "forwards") if backwards else every), last


@dataclass(frozen=True)
class SequenceClock:
    """Counts steps, and holds the states of sequences outside of their lengths (int64 [B, 1])."""

    call: Call
    lengths: Node
    steps: Dim
    backwards: bool

    @property
    def start(self) -> Node:
        """The number of the step that comes first."""
        first = lconst(self.steps - 1 if self.backwards else 0)
        zero = Constant(name=self.call.derive("zero"), value=np.zeros(1, np.int64))
        return self._compute("start", fn("iadd", arg(0), first), DType.I64, zero)

    def hold(self, after: State, before: State, now: Node) -> list[Node]:
        """The states and the time behind step ``now``, and its result, 0 outside of a sequence."""
        runs = self._compute("runs", fn("lt", arg(0), arg(1)), DType.BOOL, now, self.lengths)
        states = [self._where("held", runs, *pair) for pair in zip(after, before, strict=True)]
        zero = self.call.constant("padding", np.zeros(1))
        way = lconst(-1 if self.backwards else 1)
        following = self._compute("following", fn("iadd", arg(0), way), DType.I64, now)
        return [*states, following, self._where("result", runs, after[0], zero)]

    def end(self, last: State) -> State:
        """The last states; 0 for sequences of no steps, as onnxruntime has it."""
        some = self._compute("some", fn("gt", arg(0), lconst(0)), DType.BOOL, self.lengths)
        zero = self.call.constant("padding", np.zeros(1))
        return tuple(self._where("ended", some, state, zero) for state in last)

    def _where(self, tag: str, condition: Node, x: Node, y: Node) -> Node:
        return Where(name=self.call.derive(tag), condition=condition, x=x, y=y)

    def _compute(self, tag: str, expression: Expr, out: DType, *args: Node) -> Node:
        name = self.call.derive(tag)
        return Elementwise(name=name, args=args, expression=expression, out=ElementType(out))


@importer("LSTM")
def lstm(call: Call) -> list[Node]:
    return lstm_nodes(call, build_cells(call, 4, LSTM_FUNCTIONS, *_transpose_weights(call)))


def lstm_nodes(call: Call, cells: Sequence[Cell]) -> list[Node]:
    if call.integer("input_forget", 0):
        raise Unsupported("input_forget couples the gates")
    return _recurrent(call, cells, _lstm_step, states=2)


def _lstm_step(cell: Cell, x: Node, state: State) -> State:
    """Gates in the order input, output, forget, cell."""
    h, c = state
    gates = cell.gates(x, h)
    i, o, f, g = (cell.gate(gates, position) for position in range(4))
    p = None if cell.peepholes is None else cell.peepholes.reshape(3, 1, cell.hidden)
    if p is not None:
        i = cell.add(i, cell.mul(c, cell.constant("Pi", p[0])))
        f = cell.add(f, cell.mul(c, cell.constant("Pf", p[2])))
    retained = cell.mul(cell.activate(0, f), c)
    c = cell.add(retained, cell.mul(cell.activate(0, i), cell.activate(1, g)))
    if p is not None:
        o = cell.add(o, cell.mul(c, cell.constant("Po", p[1])))
    return cell.mul(cell.activate(0, o), cell.function(2, c)), c


@importer("GRU")
def gru(call: Call) -> list[Node]:
    cells = build_cells(call, 3, ("sigmoid", "tanh"), *_transpose_weights(call))
    return _recurrent(call, cells, _gru_step)


def _gru_step(cell: Cell, x: Node, state: State) -> State:
    """Gates in the order update, reset, hidden."""
    (h,), n = state, cell.hidden
    is_linear_first = cell.call.integer("linear_before_reset", 0)
    r, b = cell.r, cell.state_bias
    columns = 3 * n if is_linear_first else 2 * n
    from_state = cell.product(
        "state", h, cell.constant("R", r[:, :columns]), cell.constant("Rb", b[:columns])
    )
    z, reset = (
        cell.activate(0, cell.add(cell.gate(x, position), cell.gate(from_state, position)))
        for position in range(2)
    )
    if is_linear_first:
        inner = cell.mul(reset, cell.gate(from_state, 2))
    else:
        weights, bias = cell.constant("Rh", r[:, 2 * n :]), cell.constant("Rbh", b[2 * n :])
        inner = cell.product("reset", cell.mul(reset, h), weights, bias)
    new = cell.activate(1, cell.add(cell.gate(x, 2), inner))
    # (1 - z) new + z h
    change = Sub(name=cell.call.derive("change"), x=h, y=new)
    return (cell.add(new, cell.mul(z, change)),)


@importer("RNN")
def rnn(call: Call) -> list[Node]:
    return _recurrent(call, build_cells(call, 1, ("tanh",), *_transpose_weights(call)), _rnn_step)


def _rnn_step(cell: Cell, x: Node, state: State) -> State:
    (h,) = state
    product = cell.product("state", h, cell.constant("R", cell.r))
    return (cell.activate(0, cell.add(cell.add(x, product), cell.constant("Rb", cell.state_bias))),)


def _recurrent(call: Call, cells: Sequence[Cell], step: Step, states: int = 1) -> list[Node]:
    """Y [T, D, B, H], then the last state of each kind [D, B, H]; ``layout`` 1 puts B first."""
    x, batch_first = call.node(0), call.integer("layout", 0)
    if batch_first:
        x = Transpose(name=call.derive("time-first"), x=x, perm=(1, 0, 2))
    steps, batch, _ = x.type.shape
    lengths = sequence_lengths(call, steps, batch)
    rows: list[Node] = []
    last: list[State] = []
    for number, cell in enumerate(cells):
        backwards = call.text("direction", "forward") == "reverse" or number == 1
        first = tuple(initial(call, 5 + s, number, batch, cell.hidden) for s in range(states))
        joined, final = _ran(cell, step, x, first, backwards, lengths)
        shape = (steps, 1, batch, cell.hidden)
        rows.append(Reshape(name=call.derive("rows"), x=joined, shape=shape))
        last.append(final)
    outputs = [stack(call, 0, rows, axis=1, perm=(2, 0, 1, 3) if batch_first else None)]
    for position in range(states):
        parts = [
            Reshape(name=call.derive("last"), x=final[position], shape=(1, batch, cell.hidden))
            for cell, final in zip(cells, last, strict=True)
        ]
        perm = (1, 0, 2) if batch_first else None
        outputs.append(stack(call, 1 + position, parts, axis=0, perm=perm))
    return outputs


def _transpose_weights(call: Call) -> tuple[Array, Array]:
    """W and R as [D, I, gates * H] and [D, H, gates * H]."""
    w, r = call.array(1, "W"), call.array(2, "R")
    return w.transpose(0, 2, 1), r.transpose(0, 2, 1)


def build_cells(
    call: Call, gates: int, defaults: tuple[str, ...], w: Array, r: Array
) -> list[Cell]:
    """One cell for each direction."""
    directions, hidden = r.shape[:2]
    names = [name.decode().lower() for name in call.attributes.get("activations", ())]
    functions = names or [*defaults] * directions
    if unknown := sorted(set(functions) - FUNCTIONS.keys()):
        raise Unsupported(f"its activations {unknown} are not among {sorted(FUNCTIONS)}")
    bias = call.array(3, "B") if call.has(3) else np.zeros((directions, 2 * gates * hidden))
    peepholes = call.array(7, "P") if call.has(7) else None
    return [
        Cell(
            call=call,
            hidden=hidden,
            w=w[d],
            r=r[d],
            input_bias=bias[d, : gates * hidden],
            state_bias=bias[d, gates * hidden :],
            peepholes=None if peepholes is None else peepholes[d],
            functions=tuple(functions[d * len(defaults) : (d + 1) * len(defaults)]),
        )
        for d in range(directions)
    ]


def initial(call: Call, position: int, direction: int, batch: Dim, hidden: int) -> Node:
    """The state before the first step [B, H]; zeros where the model gives none."""
    if not call.has(position):
        zeros = call.constant("zeros", np.zeros((1 if is_free(batch) else batch, hidden)))
        if not is_free(batch):
            return zeros
        return Expand(name=call.derive("zeros"), x=zeros, shape=(batch, hidden))
    states = call.node(position)
    if call.integer("layout", 0):
        states = Transpose(name=call.derive("state-first"), x=states, perm=(1, 0, 2))
    state = along(call.derive("initial"), states, 0, range(direction, direction + 1))
    return Reshape(name=call.derive("initial"), x=state, shape=(batch, hidden))


def stack(
    call: Call, position: int, parts: Sequence[Node], axis: int, perm: tuple[int, ...] | None
) -> Node:
    """Output ``position``: the directions side by side, in the layout that the model wants."""
    named = position < len(call.proto.output) and call.proto.output[position]
    name = call.result_name(position) if named else call.derive("unused")
    inner = call.derive("time-first") if perm else name
    joined: Node = Concat(name=inner, parts=tuple(parts), axis=axis)
    return Transpose(name=name, x=joined, perm=perm) if perm else joined
