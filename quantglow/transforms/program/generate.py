"""Program generation: a graph of primitives becomes instructions on buffers.

Data movement costs nothing where a view does: Reshape, Slice, Transpose and Expand are views of
their operand; the parts of a Concat and the operand of a Pad are computed right where they
belong.  Only what no view can express is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node, StoredConstant
from quantglow.ir.ops import (
    Concat,
    Conv,
    Elementwise,
    Expand,
    Loop,
    MatMul,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from quantglow.ir.program.lifetimes import (
    LoopResults,
    copies,
    hand_over,
    siblings,
    with_lifetimes,
)
from quantglow.ir.program.program import (
    Buffer,
    BufferKind,
    Compute,
    Copy,
    Fill,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.ir.symbolic.size import Dim, Shape, Size, decide
from quantglow.ir.types import TensorType
from quantglow.support.classes import Concise
from quantglow.transforms.program.copy_elision import (
    Donation,
    Home,
    ValuePlaces,
    dense_view,
    donated_state,
    is_alias,
    place,
    view_source,
)

MOST_TURNED = 256
"""The most rows of a matrix whose columns are read as they lie: the first cache holds a panel."""

CALLERS = (BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.STATE)
"""Kinds of buffers that belong to the caller, who gives them no slack."""


@dataclass(frozen=True, eq=False, repr=False)
class Generated(Concise):
    """A program, and the number of instructions of each node, in the order of execution.

    ``alloc`` and ``dealloc`` do not count.  Copies to outputs follow the last node.
    """

    program: Program
    counts: Mapping[Node, int]


def generate(
    graph: Graph,
    order: Sequence[Node] | None = None,
    *,
    slack_nbytes: int = 0,
    donations: Sequence[Donation] = (),
) -> Program:
    """The program of a lowered graph, as ``generate_by_node``."""
    return generate_by_node(graph, order, slack_nbytes=slack_nbytes, donations=donations).program


def generate_by_node(
    graph: Graph,
    order: Sequence[Node] | None = None,
    *,
    slack_nbytes: int = 0,
    donations: Sequence[Donation] = (),
) -> Generated:
    """The program of a lowered graph, its nodes executed in ``order``.

    ``slack_nbytes``: bytes after each temporary that the target's kernels may read, never write.
    ``donations``: inputs whose memory becomes outputs.  Raises ``BackendError`` for those that
    cannot.
    """
    donated = {donation.output for donation in donations}
    generator = _Generator(graph, place(graph).without_outputs(graph, donated), slack_nbytes)
    for donation in donations:
        state = donated_state(graph, donation, slack_nbytes)
        generator.names.add(state.initial.buffer.name)
        generator.views[state.input] = state.initial
        generator.places.update(state.places)
        generator.states[donation.output] = state.result
    counts: dict[Node, int] = {}
    for node in order or graph.nodes:
        before = len(generator.steps)
        generator.visit(node)
        counts[node] = len(generator.steps) - before
    return Generated(generator.finish(), counts)


@dataclass
class _Generator:
    """``places``: where values are computed that are neither inside of others nor temporary: the
    stacked results of a body."""

    graph: Graph
    placement: ValuePlaces
    slack_nbytes: int
    views: dict[Node, View] = field(default_factory=dict)
    steps: list[Instruction] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    filled: set[Node] = field(default_factory=set)
    places: dict[Node, View] = field(default_factory=dict)
    loops: dict[Node, LoopResults] = field(default_factory=dict)
    states: dict[str, View] = field(default_factory=dict)

    def visit(self, node: Node) -> None:
        """Emit what computes ``node``, and remember where its value lies."""
        if isinstance(node, Input) and node in self.views:
            return  # a state, or handed to a body
        handler = _HANDLERS.get(type(node), _Generator.compute)
        self.views[node] = handler(self, node)

    # -- leaves

    def input(self, node: Node) -> View:
        return dense_view(self.buffer(node.name, BufferKind.INPUT, node.type), node.type)

    def constant(self, node: Node) -> View:
        assert isinstance(node, Constant)
        buffer = Buffer(
            self.unique(node.name),
            BufferKind.CONSTANT,
            node.type.nbytes,
            np.ascontiguousarray(node.value),
        )
        return dense_view(buffer, node.type)

    # -- computation

    def compute(self, node: Node) -> View:
        operands = tuple(self.operand(node, o) for o in node.operands)
        output = self.destination(node)
        self.steps.append(Compute(node, operands, output))
        return output

    def operand(self, node: Node, operand: Node) -> View:
        """The view of an operand; Elementwise takes any strides, a MatMul of floats dense columns,
        other primitives dense rows."""
        view = self.views[operand]
        if not (
            isinstance(node, Elementwise) or view.dense_rows or _is_turned(node, operand, view)
        ):
            return self.copied(view, f"{operand.name}:dense")
        if self.slack_nbytes and reads_slack(node, operand) and view.buffer.kind in CALLERS:
            return self.copied(view, f"{operand.name}:slack")
        return view

    def destination(self, node: Node) -> View:
        """The place to compute ``node`` in: its home, a graph output, or a new buffer."""
        if node in self.places:
            return self.places[node]
        home = self.placement.homes.get(node)
        if home is not None:
            return self.within(home, node)
        kind = BufferKind.OUTPUT if node in self.placement.direct_outputs else BufferKind.TEMP
        return dense_view(self.buffer(node.name, kind, node.type), node.type)

    def within(self, home: Home, node: Node) -> View:
        view = self.container(home.container).sub(home.starts, home.shape)
        inside = view.reshaped(node.type.shape)
        assert inside is not None, "placement checked it"
        return inside

    def container(self, node: Node) -> View:
        """The view of a Concat or Pad, made when the first part of it is computed."""
        if node not in self.views:
            self.views[node] = self.destination(node)
        return self.views[node]

    # -- data movement

    def concat(self, node: Node) -> View:
        assert isinstance(node, Concat)
        view = self.container(node)
        position: Dim = 0
        for part in node.parts:
            starts = tuple(position if i == node.axis else 0 for i in range(node.type.rank))
            target = view.sub(starts, part.type.shape)
            self.copy_unless_there(part, node, starts, target)
            position += part.type.shape[node.axis]
        return view

    def pad(self, node: Node) -> View:
        assert isinstance(node, Pad)
        wider = self.placement.wider_pads.get(node, node)
        starts = tuple(w - b for w, b in zip(wider.before, node.before, strict=True))
        return self.fill_pad(wider).sub(starts, node.type.shape)

    def fill_pad(self, node: Pad) -> View:
        """The view of a widest Pad, complete: filled when the first of the Pads in it is met."""
        view = self.container(node)
        if node not in self.filled:
            self.filled.add(node)
            target = view.sub(node.before, node.x.type.shape)
            self.copy_unless_there(node.x, node, node.before, target)
            self.steps.append(Fill(view, node.fill, (node.before, node.x.type.shape)))
        return view

    def copy_unless_there(self, part: Node, container: Node, starts: Shape, target: View) -> None:
        home = self.placement.homes.get(view_source(part))
        if target.buffer.kind is BufferKind.STATE and self.views[part] == target:
            return
        is_there = home is not None and home.is_at(container, starts, part.type.shape)
        if not is_there and not part.type.is_empty:
            self.steps.append(Copy(self.views[part], target))

    def reshape(self, node: Node) -> View:
        assert isinstance(node, Reshape)
        view = self.views[node.x]
        reshaped = view.reshaped(node.shape)
        if reshaped is not None:
            return reshaped
        again = self.copied(view, f"{node.name}:dense").reshaped(node.shape)
        assert again is not None
        return again

    def slice(self, node: Node) -> View:
        assert isinstance(node, Slice)
        if node.type.is_empty:
            return self.destination(node)
        return self.views[node.x].sub(node.starts, node.sizes, node.steps)

    def transpose(self, node: Node) -> View:
        assert isinstance(node, Transpose)
        return self.views[node.x].permute(node.perm)

    def expand(self, node: Node) -> View:
        assert isinstance(node, Expand)
        return self.views[node.x].expanded(node.shape)

    def copied(self, view: View, name: str) -> View:
        target = dense_view(self.buffer(name, BufferKind.TEMP, view.type), view.type)
        self.steps.append(Copy(view, target))
        return target

    # -- loops

    def loop(self, node: Node) -> View:
        """The place of a result of a loop, which all its results together make once."""
        assert isinstance(node, Loop)
        if node not in self.loops:
            group = siblings(node, self.graph.nodes)
            self.loops.update(dict.fromkeys(group, self.repeated(group)))
        view = self.loops[node].of(node)
        is_placed = node in self.placement.homes or node in self.placement.direct_outputs
        if node.output >= len(node.carried) or not is_placed:
            return view
        target = self.destination(node)
        self.steps.append(Copy(view, target))
        return target

    def repeated(self, group: Sequence[Loop]) -> LoopResults:
        """Emit the loop of which a group of nodes are the results."""
        node, first = group[0], len(group[0].carried)
        carried = tuple(self.copied(self.views[x], f"{node.name}:carried") for x in node.carried)
        destinations = {o.output: self.destination(o) for o in group if o.output >= first}
        stacked = {number: self.staying(view, node.name) for number, view in destinations.items()}
        inner = self.inside(node, carried)
        ends = [end for _, end in node.body.outputs]
        for number, view in stacked.items():
            inner.offer(ends[number], view.element())
        for part in node.body.nodes:
            inner.visit(part)
        for number, view in stacked.items():
            inner.copy_to(view.element(), ends[number])
        inner.hand_over(ends[:first], carried)
        condition = carried[0] if node.conditional else None
        self.steps.append(Repeat(node.name, node.trips, tuple(inner.steps), condition))
        for number, view in destinations.items():
            if stacked[number] is not view:
                self.steps.append(Copy(stacked[number], view))
        return LoopResults(carried, destinations)

    def inside(self, node: Loop, carried: Sequence[View]) -> _Generator:
        """The generator of a body, to which its inputs are known."""
        sliced = [self.pin(self.views[x]).element() for x in node.sliced]
        captured = [self.pin(self.views[x]) for x in node.captured]
        views: dict[Node, View] = {}
        views.update(zip(node.body.inputs, (*carried, *sliced, *captured), strict=True))
        placement = replace(place(node.body), direct_outputs={})
        return _Generator(node.body, placement, self.slack_nbytes, views, names=self.names)

    def pin(self, view: View) -> View:
        """A view that stays in its place while a loop inside of this one runs."""
        return self.copied(view, f"{view.buffer.name}:kept") if decide(view.advance != 0) else view

    def staying(self, view: View, name: str) -> View:
        """A place like this one that a loop around does not move."""
        if not decide(view.advance != 0):
            return view
        return dense_view(self.buffer(f"{name}:stacked", BufferKind.TEMP, view.type), view.type)

    def offer(self, node: Node, view: View) -> None:
        """Compute a result of the body in this place, unless it belongs elsewhere."""
        source = view_source(node)
        moves_parts = isinstance(source, Concat | Pad) and not view.contiguous
        inside = view.reshaped(source.type.shape)
        is_elsewhere = is_alias(source) or source in self.placement.homes or moves_parts
        if inside is not None and inside.dense_rows and not is_elsewhere:
            self.places.setdefault(source, inside)

    def copy_to(self, place: View, node: Node) -> None:
        """Copy a result of the body unless it was computed in its place."""
        if not self.views[node].is_at(place):
            self.steps.append(Copy(self.views[node], place))

    def hand_over(self, ends: Sequence[Node], carried: Sequence[View]) -> None:
        """Copy the carried values of the next trip to where it reads them."""
        results = [self.views[end] for end in ends]
        for position in hand_over(results, carried):
            results[position] = self.copied(results[position], f"{ends[position].name}:next")
        self.steps += copies(results, carried)

    # -- buffers

    def buffer(self, name: str, kind: BufferKind, tensor: TensorType) -> Buffer:
        slack = self.slack_nbytes if kind is BufferKind.TEMP else 0
        return Buffer(self.unique(name), kind, tensor.nbytes + slack)

    def unique(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self.names:
            candidate, number = f"{name}.{number}", number + 1
        self.names.add(candidate)
        return candidate

    def finish(self) -> Program:
        inputs = tuple((i.name, self.views[i]) for i in self.graph.inputs)
        outputs = tuple(map(self.output, range(len(self.graph.outputs))))
        return Program(inputs, outputs, with_lifetimes(self.steps))

    def output(self, position: int) -> tuple[str, View]:
        """Name and view of an output; every output has a buffer of its own."""
        name, node = self.graph.outputs[position]
        view = self.views[node]
        if (state := self.states.get(name)) is not None:
            if view != state:
                self.steps.append(Copy(view, state))
            return name, state
        direct = self.placement.direct_outputs.get(view_source(node))
        if view.buffer.kind is BufferKind.OUTPUT and direct == position:
            return name, view
        target = dense_view(self.buffer(name, BufferKind.OUTPUT, node.type), node.type)
        self.steps.append(Copy(view, target))
        return name, target


_HANDLERS: dict[type[Node], Callable[[_Generator, Node], View]] = {
    Input: _Generator.input,
    Constant: _Generator.constant,
    StoredConstant: _Generator.constant,
    Concat: _Generator.concat,
    Pad: _Generator.pad,
    Reshape: _Generator.reshape,
    Slice: _Generator.slice,
    Transpose: _Generator.transpose,
    Expand: _Generator.expand,
    Loop: _Generator.loop,
}


def _is_turned(node: Node, operand: Node, view: View) -> bool:
    """Whether a MatMul reads an operand by columns, which lie densely and are not long."""
    if not isinstance(node, MatMul) or operand is not node.y or operand is node.x:
        return False
    depth, step = view.shape[-2], view.strides[-2]
    if isinstance(depth, Size) or isinstance(step, Size):
        return False
    return view.type.dtype.is_float and step == 1 and depth <= MOST_TURNED


def reads_slack(node: Node, operand: Node) -> bool:
    """Whether a kernel may read beyond an operand: a Conv reads rows by whole steps and vectors."""
    return isinstance(node, Conv) and operand is node.x and not operand.type.dtype.is_float
