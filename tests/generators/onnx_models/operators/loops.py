"""Loops with small bodies, and linear attention, which is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tests.generators.onnx_models.drawing import CONDITION, FLOAT, INTEGER, Drawing, Rejected, Value
from tests.generators.onnx_models.operators.family import draws

MOST_TRIPS = 9
MOST_GROWING = 300
MOST_GROWN = 40_000
"""Most trips of a loop whose list grows, and most elements of that."""
FUNCTIONS = ("Tanh", "Sigmoid", "Relu", "Abs")
PAIRS = ("Add", "Sub", "Mul", "Max")


@draws("Scan", often=3)
def scan(d: Drawing) -> object:
    x = short(d)
    shape = x.shape[1:]
    state = d.normal(*shape)
    nodes, ends = steps(d, ["state", "element", *captured(d, shape)])
    body = helper.make_graph(
        nodes,
        "body",
        [typed("state", FLOAT, shape), typed("element", FLOAT, shape)],
        [typed(name, FLOAT, shape) for name in ends],
    )
    ways = {f"scan_{end}put_directions": ([0], [1]) for end in ("in", "out")}
    outputs = d.choose(([True, True], [True, False], [False, True]))
    inputs = {"body": body, "num_scan_inputs": 1, **d.some(ways)}
    return d.node("Scan", state, x, outputs=outputs, **inputs)


@draws("Loop", often=3)
def loop(d: Drawing) -> object:
    """A loop of known trips, or one that a sum ends."""
    state = short(d)
    shape = state.shape
    nodes, ends = steps(d, ["state", *captured(d, shape)])
    ended = d.chance(0.4)
    if ended:
        nodes += [
            helper.make_node("Max", [ends[0]], ["largest"]),
            helper.make_node("ReduceMax", ["largest"], ["top"], keepdims=0),
            helper.make_node("Less", ["top", d.uniform(0.1, 2.0).name], ["on"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["holds"], ["on"]))
    ends = ends[:1] if ended else ends
    inputs = [typed("trip", INTEGER, ()), typed("holds", CONDITION, ())]
    body = helper.make_graph(
        nodes,
        "body",
        [*inputs, typed("state", FLOAT, shape)],
        [typed("on", CONDITION, ()), *(typed(name, FLOAT, shape) for name in ends)],
    )
    count = d.integer(1, MOST_TRIPS - 1)
    trips = d.constant(np.asarray(count, np.int64))
    is_listed = not ended and d.chance(0.5)
    expected = [False, True] if is_listed else [True, *(False for _ in ends[1:])]
    built = (count, *shape) if is_listed else shape
    return d.node("Loop", trips, None, state, outputs=expected, of_shape=built, body=body)


@draws("Loop")
def decoder(d: Drawing) -> object:
    """A loop that assigns rows of a list, carries a value that stays, and one that nobody reads."""
    if d.opset < 13:
        raise Rejected("Unsqueeze has no axes as operand")
    state = short(d)
    shape, count = state.shape, d.integer(1, MOST_TRIPS - 1)
    nodes, (after, row) = steps(d, ["state", "kept", *captured(d, shape)])
    listed = (count + d.integer(0, 2), *shape)
    nodes += assignment(d, row, listed)
    nodes.append(helper.make_node("Identity", ["holds"], ["on"]))
    if same := d.chance(0.5):
        nodes.append(helper.make_node("Identity", ["kept"], ["same"]))
    inputs = [typed("trip", INTEGER, ()), typed("holds", CONDITION, ())]
    inputs += [typed(name, FLOAT, shape) for name in ("state", "kept")]
    inputs += [typed("list", FLOAT, listed), typed("unread", FLOAT, None)]
    ends = [after, "same" if same else "kept", "assigned", row]
    body = helper.make_graph(
        nodes, "body", inputs, [typed("on", CONDITION, ()), *(typed(n, FLOAT, None) for n in ends)]
    )
    trips, first = d.constant(np.asarray(count, np.int64)), d.constant(np.float32(0))
    kept = d.choose((state, d.normal(*shape)))
    operands = [trips, d.constant(np.bool_(True)), state, kept, d.normal(*listed), first]
    results = [(FLOAT, kind) for kind in (shape, shape, listed, shape)]
    left_out = d.choose(((), (0,), (1,), (0, 1), (0, 1, 2)))
    return d.classical("Loop", operands, *results, domain="", left_out=left_out, body=body)


@draws("Loop", often=2)
def growing(d: Drawing) -> object:
    """A loop that appends rows to a list, of which each trip may read one; with many trips, too.

    The state shrinks in each trip, so that roundings do not grow.
    """
    state = short(d)
    shape, axis = state.shape, d.integer(0, state.rank - 1)
    rows, trips = d.integer(0, 3), growing_trips(d, state)
    nodes, ends = steps(d, ["state", *captured(d, shape)])
    nodes.append(helper.make_node("Mul", ["state", d.uniform(-0.9, 0.9).name], ["next"]))
    piece = with_row(d, nodes, ends[1], rows, axis)
    nodes.append(helper.make_node("Concat", ["list", piece], ["longer"], axis=axis))
    nodes.append(helper.make_node("Identity", ["holds"], ["on"]))
    inputs = [typed("trip", INTEGER, ()), typed("holds", CONDITION, ())]
    inputs += [typed("state", FLOAT, shape), typed("list", FLOAT, None)]
    results = [typed("on", CONDITION, ()), *(typed(n, FLOAT, None) for n in ("next", "longer"))]
    body = helper.make_graph(nodes, "body", inputs, results)
    first, built = list(shape), list(shape)
    first[axis], built[axis] = rows, rows + trips * shape[axis]
    count, arguments = d.constant(np.asarray(trips, np.int64)), d.normal(*first)
    operands = [count, d.constant(np.bool_(True)), state, arguments]
    types, left_out = ((FLOAT, shape), (FLOAT, built)), d.choose(((), (), (0,)))
    return d.classical("Loop", operands, *types, domain="", left_out=left_out, body=body)


@draws("Loop", often=2)
def reading_all(d: Drawing) -> object:
    """A loop that reads all of a list to which it appends, for few or many trips; their number may
    be constant or computed, and a condition may end them.

    The state shrinks in each trip, so that roundings do not grow.
    """
    state = short(d)
    shape, axis = state.shape, d.integer(0, state.rank - 1)
    rows, trips = d.integer(0, 3), growing_trips(d, state)
    nodes, ends = steps(d, ["state", *captured(d, shape)])
    if d.opset < 18:
        nodes.append(helper.make_node("ReduceMax", ["longer"], ["top"], axes=[axis]))
    else:
        axes = d.constant(np.array([axis])).name
        nodes.append(helper.make_node("ReduceMax", ["longer", axes], ["top"]))
    nodes.insert(-1, helper.make_node("Concat", ["list", ends[1]], ["longer"], axis=axis))
    nodes += [
        helper.make_node("Mul", ["top", d.uniform(-0.4, 0.4).name], ["half"]),
        helper.make_node("Mul", ["state", d.uniform(-0.4, 0.4).name], ["other"]),
        helper.make_node("Add", ["half", "other"], ["next"]),
    ]
    is_ended = d.opset >= 9 and d.chance(0.3)
    built = d.integer(1, trips) if is_ended else trips
    last = d.constant(np.asarray(built - 1, np.int64)).name
    on = ("Less", ["trip", last]) if is_ended else ("Identity", ["holds"])
    nodes.append(helper.make_node(*on, ["on"]))
    inputs = [typed("trip", INTEGER, ()), typed("holds", CONDITION, ())]
    inputs += [typed("state", FLOAT, shape), typed("list", FLOAT, None)]
    results = [typed("on", CONDITION, ()), *(typed(n, FLOAT, None) for n in ("next", "longer"))]
    body = helper.make_graph(nodes, "body", inputs, results)
    first, grown = list(shape), list(shape)
    first[axis], grown[axis] = rows, rows + built * shape[axis]
    count = d.constant(np.asarray(trips, np.int64))
    operands = [count, d.constant(np.bool_(True)), state, d.normal(*first)]
    return d.classical("Loop", operands, (FLOAT, shape), (FLOAT, grown), domain="", body=body)


def growing_trips(d: Drawing, state: Value) -> int:
    """A few trips, or as many as are never unrolled; fewer of large values."""
    many = min(MOST_GROWING, MOST_GROWN // state.size)
    return d.integer(65, many) if many > 65 and d.chance(0.5) else d.integer(1, MOST_TRIPS - 1)


def with_row(d: Drawing, nodes: list[onnx.NodeProto], result: str, rows: int, axis: int) -> str:
    """The name of a result to which half of one of some ``rows`` of the list is added, if any."""
    if not rows or d.chance(0.3):
        return result
    at = d.choose((-1, -1, -rows, -d.integer(1, rows), 0))
    index = d.constant(np.array([at])).name
    nodes.append(helper.make_node("Gather", ["list", index], ["row"], axis=axis))
    nodes.append(helper.make_node("Mul", ["row", d.uniform(-0.5, 0.5).name], ["part"]))
    nodes.append(helper.make_node("Add", [result, "part"], ["piece"]))
    return "piece"


def assignment(d: Drawing, row: str, listed: Sequence[int]) -> list[onnx.NodeProto]:
    """``list[trip] = row``, as exporters of decoders write it."""
    node, prefix = helper.make_node, f"a{len(d.nodes)}"
    sizes = {
        "one": [1],
        "zero": [0],
        "length": [listed[0]],
        "ones": [1] * len(listed),
        "places": [1, *listed[1:]],
    }
    known = {name: d.constant(np.array(value)).name for name, value in sizes.items()}
    step = d.constant(np.asarray(1, np.int64)).name
    built = {name: f"{prefix}_{name}" for name in ("at", "next", "behind", "end", "to", "i", "w")}
    return [
        node("Reshape", ["trip", known["one"]], [built["at"]]),
        node("Add", ["trip", step], [built["next"]]),
        node("Reshape", [built["next"], known["one"]], [built["behind"]]),
        node("Min", [built["behind"], known["length"]], [built["end"]]),
        node("Squeeze", [built["end"]], [built["to"]]),
        node("Range", ["trip", built["to"], step], [f"{prefix}_n"]),
        node("Reshape", [f"{prefix}_n", known["ones"]], [f"{prefix}_r"]),
        node("Expand", [f"{prefix}_r", known["places"]], [built["i"]]),
        node("Slice", ["list", built["at"], built["end"], known["zero"]], [f"{prefix}_old"]),
        node("Unsqueeze", [row, known["zero"]], [built["w"]]),
        node("Add", [built["w"], f"{prefix}_old"], [f"{prefix}_new"]),
        node("ScatterElements", ["list", built["i"], f"{prefix}_new"], ["assigned"], axis=0),
    ]


def short(d: Drawing) -> Value:
    """A value whose first axis is short."""
    x = d.floats(2, 3)
    if x.shape[0] > MOST_TRIPS:
        x = d.inner("Slice", x, starts=[0], ends=[MOST_TRIPS], axes=[0])
    return x


def captured(d: Drawing, shape: tuple[int, ...]) -> list[str]:
    """Values from outside that a body may read."""
    actual = [v.name for v in d.values if v.element == FLOAT and v.shape == shape]
    return [*actual[-1:], d.normal(*shape).name]


def steps(d: Drawing, names: list[str]) -> tuple[list[onnx.NodeProto], list[str]]:
    """Nodes on named values of one shape; the next state, and a result."""
    prefix, names = f"b{len(d.nodes)}", list(names)
    nodes = []
    for number in range(d.integer(2, 5)):
        built = f"{prefix}_{number}"
        read = [names[0] if number == 0 else d.choose(names), d.choose(names)]
        op = d.choose((*FUNCTIONS, *PAIRS))
        nodes.append(helper.make_node(op, read if op in PAIRS else read[:1], [built]))
        names.append(built)
    nodes.append(helper.make_node("Tanh", [names[-1]], [f"{prefix}_state"]))
    nodes.append(helper.make_node("Identity", [names[-2]], [f"{prefix}_result"]))
    return nodes, [f"{prefix}_state", f"{prefix}_result"]


def typed(name: str, element: int, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


@draws("LinearAttention", often=2)
def linear_attention(d: Drawing) -> object:
    x = d.floats(3)
    batch, length, width = x.shape
    heads = d.choose([h for h in (1, 2, 3, 4) if width % h == 0])
    rule = d.choose(("linear", "gated", "delta", "gated_delta"))
    decay = d.uniform(-1, 0, batch, length, heads) if "gated" in rule else None
    beta = d.uniform(0, 1, batch, length, heads) if "delta" in rule else None
    key = d.uniform(-0.3, 0.3, batch, length, width)
    inputs = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": rule}
    return d.node("LinearAttention", x, key, x, None, decay, beta, outputs=2, **inputs)
