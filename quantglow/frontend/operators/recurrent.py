"""Importers of LSTM, GRU and RNN: unrolled into the products and functions of every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.frontend.context import Call, Unsupported, importer
from quantglow.frontend.operators.slicing import along
from quantglow.graph.node import Constant, Node
from quantglow.ops.binary import Add, Mul, Sub
from quantglow.ops.convolution import Gemm
from quantglow.ops.shape import Concat, Reshape, Transpose
from quantglow.ops.unary import Clip, Relu, Sigmoid, Tanh
from quantglow.types import Array

MOST_STEPS = 128
"""Longer sequences would make too many nodes; onnxruntime runs them."""

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


@importer("LSTM")
def lstm(call: Call) -> list[Node]:
    if call.integer("input_forget", 0):
        raise Unsupported("input_forget couples the gates")
    return unrolled(call, 4, ("sigmoid", "tanh", "tanh"), lstm_step, states=2)


def lstm_step(cell: Cell, x: Node, state: State) -> State:
    """Gates in the order input, output, forget, cell."""
    h, c = state
    r = cell.constant("R", cell.r)
    gates = cell.add(x, cell.product("state", h, r, cell.constant("Rb", cell.state_bias)))
    i, o, f, g = (cell.gate(gates, position) for position in range(4))
    p = None if cell.peepholes is None else cell.peepholes.reshape(3, 1, cell.hidden)
    if p is not None:
        i = cell.add(i, cell.mul(c, cell.constant("Pi", p[0])))
        f = cell.add(f, cell.mul(c, cell.constant("Pf", p[2])))
    kept = cell.mul(cell.activated(0, f), c)
    c = cell.add(kept, cell.mul(cell.activated(0, i), cell.activated(1, g)))
    if p is not None:
        o = cell.add(o, cell.mul(c, cell.constant("Po", p[1])))
    return cell.mul(cell.activated(0, o), cell.function(2, c)), c


@importer("GRU")
def gru(call: Call) -> list[Node]:
    return unrolled(call, 3, ("sigmoid", "tanh"), gru_step)


def gru_step(cell: Cell, x: Node, state: State) -> State:
    """Gates in the order update, reset, hidden."""
    (h,), n = state, cell.hidden
    late = cell.call.integer("linear_before_reset", 0)
    r, b = cell.r, cell.state_bias
    columns = 3 * n if late else 2 * n
    early = cell.product(
        "state", h, cell.constant("R", r[:, :columns]), cell.constant("Rb", b[:columns])
    )
    z, reset = (
        cell.activated(0, cell.add(cell.gate(x, position), cell.gate(early, position)))
        for position in range(2)
    )
    if late:
        inner = cell.mul(reset, cell.gate(early, 2))
    else:
        weights, bias = cell.constant("Rh", r[:, 2 * n :]), cell.constant("Rbh", b[2 * n :])
        inner = cell.product("reset", cell.mul(reset, h), weights, bias)
    new = cell.activated(1, cell.add(cell.gate(x, 2), inner))
    # (1 - z) new + z h
    change = Sub(name=cell.call.derived("change"), x=h, y=new)
    return (cell.add(new, cell.mul(z, change)),)


@importer("RNN")
def rnn(call: Call) -> list[Node]:
    return unrolled(call, 1, ("tanh",), rnn_step)


def rnn_step(cell: Cell, x: Node, state: State) -> State:
    (h,) = state
    product = cell.product("state", h, cell.constant("R", cell.r))
    return (
        cell.activated(0, cell.add(cell.add(x, product), cell.constant("Rb", cell.state_bias))),
    )


def unrolled(
    call: Call, gates: int, functions: tuple[str, ...], step: Step, states: int = 1
) -> list[Node]:
    """Y [T, D, B, H], then the last state of each kind [D, B, H]; ``layout`` 1 puts B first."""
    x, batch_first = call.node(0), call.integer("layout", 0)
    if batch_first:
        x = Transpose(name=call.derived("time-first"), x=x, perm=(1, 0, 2))
    steps, batch, _ = x.type.shape
    refuse_lengths(call, steps)
    cells = cells_of(call, gates, functions)
    rows: list[Node] = []
    last: list[State] = []
    for number, cell in enumerate(cells):
        backwards = call.text("direction", "forward") == "reverse" or number == 1
        first = tuple(initial(call, 5 + s, number, batch, cell.hidden) for s in range(states))
        results, final = ran(cell, step, x, first, backwards)
        joined = Concat(name=call.derived("steps"), parts=tuple(results), axis=0)
        shape = (steps, 1, batch, cell.hidden)
        rows.append(Reshape(name=call.derived("rows"), x=joined, shape=shape))
        last.append(final)
    outputs = [stacked(call, 0, rows, axis=1, perm=(2, 0, 1, 3) if batch_first else None)]
    for position in range(states):
        parts = [
            Reshape(name=call.derived("last"), x=final[position], shape=(1, batch, cell.hidden))
            for cell, final in zip(cells, last, strict=True)
        ]
        perm = (1, 0, 2) if batch_first else None
        outputs.append(stacked(call, 1 + position, parts, axis=0, perm=perm))
    return outputs


def ran(cell: Cell, step: Step, x: Node, state: State, backwards: bool) -> tuple[list[Node], State]:
    """The hidden state of every step in the order of time, and the last state."""
    call, (steps, batch, width) = cell.call, x.type.shape
    flat = Reshape(name=call.derived("inputs"), x=x, shape=(steps * batch, width))
    weights, bias = cell.constant("W", cell.w), cell.constant("Wb", cell.input_bias)
    projected = cell.product("projected", flat, weights, bias)
    results: dict[int, Node] = {}
    for t in reversed(range(steps)) if backwards else range(steps):
        now = along(call.derived("step"), projected, 0, range(t * batch, (t + 1) * batch))
        state = step(cell, now, state)
        results[t] = state[0]
    return [results[t] for t in range(steps)], state


def refuse_lengths(call: Call, steps: int) -> None:
    if steps > MOST_STEPS:
        raise Unsupported(f"{steps} steps are more than the {MOST_STEPS} that are unrolled")
    if call.has(4) and (call.array(4, "sequence_lens") != steps).any():
        raise Unsupported("its sequences differ in length")


def cells_of(call: Call, gates: int, defaults: tuple[str, ...]) -> list[Cell]:
    """One cell for each direction."""
    w, r = call.array(1, "W"), call.array(2, "R")
    directions, hidden = r.shape[0], r.shape[2]
    given = [name.decode().lower() for name in call.attributes.get("activations", ())]
    functions = given or [*defaults] * directions
    if unknown := sorted(set(functions) - FUNCTIONS.keys()):
        raise Unsupported(f"its activations {unknown} are not among {sorted(FUNCTIONS)}")
    bias = call.array(3, "B") if call.has(3) else np.zeros((directions, 2 * gates * hidden))
    peepholes = call.array(7, "P") if call.has(7) else None
    return [
        Cell(
            call=call,
            hidden=hidden,
            w=w[d].T,
            r=r[d].T,
            input_bias=bias[d, : gates * hidden],
            state_bias=bias[d, gates * hidden :],
            peepholes=None if peepholes is None else peepholes[d],
            functions=tuple(functions[d * len(defaults) : (d + 1) * len(defaults)]),
        )
        for d in range(directions)
    ]


def initial(call: Call, position: int, direction: int, batch: int, hidden: int) -> Node:
    """The state before the first step [B, H]; zeros where the model gives none."""
    if not call.has(position):
        return call.constant("zeros", np.zeros((batch, hidden)))
    given = call.node(position)
    if call.integer("layout", 0):
        given = Transpose(name=call.derived("state-first"), x=given, perm=(1, 0, 2))
    one = along(call.derived("initial"), given, 0, range(direction, direction + 1))
    return Reshape(name=call.derived("initial"), x=one, shape=(batch, hidden))


def stacked(
    call: Call, position: int, parts: Sequence[Node], axis: int, perm: tuple[int, ...] | None
) -> Node:
    """Output ``position``: the directions side by side, in the layout that the model wants."""
    named = position < len(call.proto.output) and call.proto.output[position]
    name = call.result_name(position) if named else call.derived("unused")
    inner = call.derived("time-first") if perm else name
    made: Node = Concat(name=inner, parts=tuple(parts), axis=axis)
    return Transpose(name=name, x=made, perm=perm) if perm else made
