"""Importers of LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.recurrent_steps import (
    FUNCTIONS,
    Cell,
    State,
    Step,
    lengths_of,
    ran,
)
from quantglow.frontend.operators.slicing import along
from quantglow.graph.node import Node
from quantglow.ops.binary import Sub
from quantglow.ops.shape import Concat, Expand, Reshape, Transpose
from quantglow.symbolic.size import is_free

LSTM_FUNCTIONS = ("sigmoid", "tanh", "tanh")


@importer("LSTM")
def lstm(call: Call) -> list[Node]:
    return lstm_of(call, cells_of(call, 4, LSTM_FUNCTIONS, *transposed_weights(call)))


def lstm_of(call: Call, cells: Sequence[Cell]) -> list[Node]:
    if call.integer("input_forget", 0):
        raise Unsupported("input_forget couples the gates")
    return recurrent(call, cells, lstm_step, states=2)


def lstm_step(cell: Cell, x: Node, state: State) -> State:
    """Gates in the order input, output, forget, cell."""
    h, c = state
    gates = cell.gates(x, h)
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
    cells = cells_of(call, 3, ("sigmoid", "tanh"), *transposed_weights(call))
    return recurrent(call, cells, gru_step)


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
    return recurrent(call, cells_of(call, 1, ("tanh",), *transposed_weights(call)), rnn_step)


def rnn_step(cell: Cell, x: Node, state: State) -> State:
    (h,) = state
    product = cell.product("state", h, cell.constant("R", cell.r))
    return (
        cell.activated(0, cell.add(cell.add(x, product), cell.constant("Rb", cell.state_bias))),
    )


def recurrent(call: Call, cells: Sequence[Cell], step: Step, states: int = 1) -> list[Node]:
    """Y [T, D, B, H], then the last state of each kind [D, B, H]; ``layout`` 1 puts B first."""
    x, batch_first = call.node(0), call.integer("layout", 0)
    if batch_first:
        x = Transpose(name=call.derived("time-first"), x=x, perm=(1, 0, 2))
    steps, batch, _ = x.type.shape
    lengths = lengths_of(call, steps, batch)
    rows: list[Node] = []
    last: list[State] = []
    for number, cell in enumerate(cells):
        backwards = call.text("direction", "forward") == "reverse" or number == 1
        first = tuple(initial(call, 5 + s, number, batch, cell.hidden) for s in range(states))
        joined, final = ran(cell, step, x, first, backwards, lengths)
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


def transposed_weights(call: Call) -> tuple[Array, Array]:
    """W and R as [D, I, gates * H] and [D, H, gates * H]."""
    w, r = call.array(1, "W"), call.array(2, "R")
    return w.transpose(0, 2, 1), r.transpose(0, 2, 1)


def cells_of(call: Call, gates: int, defaults: tuple[str, ...], w: Array, r: Array) -> list[Cell]:
    """One cell for each direction."""
    directions, hidden = r.shape[:2]
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
            w=w[d],
            r=r[d],
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
        zeros = call.constant("zeros", np.zeros((1 if is_free(batch) else batch, hidden)))
        if not is_free(batch):
            return zeros
        return Expand(name=call.derived("zeros"), x=zeros, shape=(batch, hidden))
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
