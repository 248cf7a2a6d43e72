"""The low-level IR: instructions over typed views of buffers.  ``text`` reads its text.

An instruction reads ``@in`` operands, fully writes ``@out`` operands and partly writes
``@inout`` operands.  Buffers are bytes; a view gives them a tensor type and strides.  Nothing is
in SSA form: memory is explicit, so that sharing and planning are passes over the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from quantglow.ir.graph.attributes import encode
from quantglow.ir.graph.graph import as_it_is, text_attributes
from quantglow.ir.graph.node import Node
from quantglow.ir.program.strides import dense_strides, reshape_strides
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_equal, decide_max, decide_min
from quantglow.ir.types import ElementType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property

Spelling = Callable[[TensorType], str]
"""How a text writes types."""

PLAIN_NAME = re.compile(r"[\w./-]+(?::[\w./-]+)*")
"""Names of buffers that need no quotes."""


class BufferKind(StrEnum):
    """Owner of the memory of a buffer.  A state is the caller's, who keeps it from call to call: an
    input that is also an output, with more rows."""

    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    TEMP = "temp"


@dataclass(frozen=True, eq=False, repr=False)
class Buffer(Concise):
    """A piece of memory of ``nbytes`` bytes.  Constants carry their ``value``."""

    name: str
    kind: BufferKind
    nbytes: Dim
    value: Array | None = None

    def __str__(self) -> str:
        return f"%{self.name if PLAIN_NAME.fullmatch(self.name) else repr(self.name)}"

    def declaration(self, shown: Callable[[object], object]) -> str:
        """``kind %name (nbytes)``, and for a constant what is ``shown`` of its array."""
        value = "" if self.value is None else f" = {encode(shown(self.value))}"
        return f"{self.kind} {self} ({self.nbytes} bytes){value}"


@dataclass(frozen=True, repr=False)
class View(Concise):
    """A tensor inside a buffer: element (i, j, …) lies at ``offset + i*strides[0] + …``.

    Strides and offset count elements; a stride may be 0 (broadcast) or negative.  ``advance``:
    elements by which the view moves in each trip of the innermost loop around it.
    """

    buffer: Buffer
    type: TensorType
    strides: Shape
    offset: Dim = 0
    advance: Dim = 0

    def __eq__(self, other: object) -> bool:
        """Whether the views are the same, as far as free sizes go by ``decide``."""
        if self is other:
            return True
        if not isinstance(other, View):
            return NotImplemented
        place = (*self.strides, self.offset, self.advance)
        return (
            self.buffer == other.buffer
            and self.type == other.type
            and decide_equal(place, (*other.strides, other.offset, other.advance))
        )

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @cached_property
    def contiguous(self) -> bool:
        """Row-major without gaps."""
        return all(
            decide(d == 1) or decide(s == c)
            for d, s, c in zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        )

    @property
    def dense_rows(self) -> bool:
        """Neighbors along the last axis are neighbors in memory."""
        return not self.shape or decide(self.shape[-1] == 1) or decide(self.strides[-1] == 1)

    def is_at(self, other: View) -> bool:
        """Whether each element lies where that of another view of this type does."""
        pairs = zip(self.shape, self.strides, other.strides, strict=True)
        return (
            self.buffer is other.buffer
            and self.type == other.type
            and decide(self.offset == other.offset)
            and decide(self.advance == other.advance)
            and all(decide(size == 1) or decide(one == two) for size, one, two in pairs)
        )

    @property
    def offset_bytes(self) -> Dim:
        return self.offset * self.type.dtype.nbytes

    def extent_bytes(self) -> tuple[Dim, Dim]:
        """First byte, and one past the last byte, that the view touches; an empty one touches
        none, wherever it lies."""
        if self.type.is_empty:
            return 0, 0
        spans = [(d - 1) * s for d, s in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(decide_min(s, 0) for s in spans)
        high = self.offset + sum(decide_max(s, 0) for s in spans) + 1
        return low * self.type.dtype.nbytes, high * self.type.dtype.nbytes

    def sub(self, starts: Shape, sizes: Shape, steps: Shape | None = None) -> View:
        """The box of ``sizes`` elements from ``starts``, every ``steps``-th."""
        steps = steps or (1,) * len(starts)
        offset = self.offset + sum(a * s for a, s in zip(starts, self.strides, strict=True))
        strides = tuple(s * k for s, k in zip(self.strides, steps, strict=True))
        return View(self.buffer, self.type.with_shape(sizes), strides, offset, self.advance)

    def permute(self, perm: tuple[int, ...]) -> View:
        shape = tuple(self.shape[p] for p in perm)
        strides = tuple(self.strides[p] for p in perm)
        return replace(self, type=self.type.with_shape(shape), strides=strides)

    def expanded(self, shape: Shape) -> View:
        """Broadcast to ``shape`` with zero strides."""
        missing = len(shape) - len(self.shape)
        strides = [0] * missing + [
            0 if decide(d == 1) and decide(t != 1) else s
            for d, s, t in zip(self.shape, self.strides, shape[missing:], strict=True)
        ]
        return replace(self, type=self.type.with_shape(shape), strides=tuple(strides))

    def reshaped(self, shape: Shape) -> View | None:
        """The same elements under another shape, or None where strides do not allow a view."""
        strides = reshape_strides(self.shape, self.strides, shape)
        if strides is None:
            return None
        return View(self.buffer, self.type.with_shape(shape), strides, self.offset, self.advance)

    def element(self) -> View:
        """Element 0 of axis 0, which moves on along this axis with each trip of a loop."""
        kind = self.type.with_shape(self.shape[1:])
        return View(self.buffer, kind, self.strides[1:], self.offset, self.strides[0])

    def at_trip(self, trip: int) -> View:
        """The place of the view in a trip of the loop around it."""
        return replace(self, offset=self.offset + trip * self.advance, advance=0)

    def text(self, spell: Spelling) -> str:
        """``%buffer[offset:strides+advance]: type``, without the brackets where the view is plain,
        without the advance where it stays in its place.
        """
        is_still = not decide(self.advance != 0)
        is_dense = decide_equal(self.strides, dense_strides(self.shape))
        plain = is_dense and decide(self.offset == 0) and is_still
        moves = "" if is_still else f"+{self.advance}"
        where = "" if plain else f"[{self.offset}:{','.join(map(str, self.strides))}{moves}]"
        return f"{self.buffer}{where}: {spell(self.type)}"

    def __str__(self) -> str:
        return self.text(str)


@dataclass(frozen=True, eq=False, repr=False)
class Instruction(Concise):
    """One step of a program."""

    @property
    def ins(self) -> tuple[View, ...]:
        """``@in`` operands."""
        return ()

    @property
    def outs(self) -> tuple[View, ...]:
        """``@out`` operands."""
        return ()

    @property
    def inouts(self) -> tuple[View, ...]:
        """``@inout`` operands."""
        return ()

    @property
    def views(self) -> tuple[View, ...]:
        return self.ins + self.outs + self.inouts

    @property
    def steps(self) -> tuple[Instruction, ...]:
        """Instructions that this one runs."""
        return ()

    def mapped(self, change: Callable[[View], View]) -> Instruction:
        """The same instruction on changed views."""
        return self

    @property
    def mnemonic(self) -> str:
        return type(self).__name__.lower()

    @property
    def attributes(self) -> dict[str, object]:
        """Attributes that the text shows besides operands."""
        return {}

    @property
    def labels(self) -> Iterable[str]:
        """Label that the text writes before each of ``ins``."""
        return ("",) * len(self.ins)

    def text(self, spell: Spelling) -> str:
        """``mnemonic @out view, @inout view, @in view {attributes}``"""
        operands = [f"@out {view.text(spell)}" for view in self.outs]
        operands += [f"@inout {view.text(spell)}" for view in self.inouts]
        labeled = zip(self.labels, self.ins, strict=True)
        operands += [f"@in {label}{view.text(spell)}" for label, view in labeled]
        shown = ", ".join(f"{key}={encode(value)}" for key, value in self.attributes.items())
        return f"{self.mnemonic} {', '.join(operands)}" + (f" {{{shown}}}" if shown else "")

    def __str__(self) -> str:
        return self.text(str)


@dataclass(frozen=True, eq=False, repr=False)
class Alloc(Instruction):
    """The life of a buffer begins; its contents are undefined."""

    buffer: Buffer

    def text(self, spell: Spelling) -> str:
        return f"alloc {self.buffer} ({self.buffer.nbytes} bytes)"


@dataclass(frozen=True, eq=False, repr=False)
class Dealloc(Instruction):
    """The life of a buffer ends."""

    buffer: Buffer

    def text(self, spell: Spelling) -> str:
        return f"dealloc {self.buffer}"


@dataclass(frozen=True, eq=False, repr=False)
class Copy(Instruction):
    """``dst[...] = src``"""

    src: View
    dst: View

    @property
    def ins(self) -> tuple[View, ...]:
        return (self.src,)

    @property
    def outs(self) -> tuple[View, ...]:
        return (self.dst,)

    def mapped(self, change: Callable[[View], View]) -> Instruction:
        return Copy(change(self.src), change(self.dst))


@dataclass(frozen=True, eq=False, repr=False)
class Fill(Instruction):
    """Write ``value`` to the elements of ``dst`` outside the box ``interior`` (starts, sizes)."""

    dst: View
    value: float | int
    interior: tuple[Shape, Shape]

    @property
    def inouts(self) -> tuple[View, ...]:
        return (self.dst,)

    @property
    def attributes(self) -> dict[str, object]:
        return {"value": self.value, "interior": self.interior}

    def mapped(self, change: Callable[[View], View]) -> Instruction:
        return replace(self, dst=change(self.dst))

    def boxes(self) -> Iterator[View]:
        """Disjoint views that together cover what is filled."""
        starts, sizes = self.interior
        inner_starts: list[Dim] = [0] * len(starts)
        inner_sizes = list(self.dst.shape)
        for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            after = inner_sizes[axis] - start - size
            for begin, length in ((0, start), (start + size, after)):
                if decide(length != 0):
                    box_starts, box_sizes = list(inner_starts), list(inner_sizes)
                    box_starts[axis], box_sizes[axis] = begin, length
                    yield self.dst.sub(tuple(box_starts), tuple(box_sizes))
            inner_starts[axis], inner_sizes[axis] = start, size


@dataclass(frozen=True, eq=False, repr=False)
class Compute(Instruction):
    """``output = op(inputs)``.  ``op`` is a primitive whose operands have the views' types."""

    op: Node
    inputs: tuple[View, ...]
    output: View

    @property
    def ins(self) -> tuple[View, ...]:
        return self.inputs

    @property
    def outs(self) -> tuple[View, ...]:
        return (self.output,)

    @property
    def mnemonic(self) -> str:
        return self.op.op

    @property
    def labels(self) -> Iterable[str]:
        """The operand fields of the op: ``x=``, ``w=``, …"""
        return (f"{name}=" for name in self.op.operand_labels)

    @property
    def attributes(self) -> dict[str, object]:
        shown = {key: value for key, value in text_attributes(self.op).items() if key != "out"}
        return {"name": self.op.name, **shown}

    def mapped(self, change: Callable[[View], View]) -> Instruction:
        return Compute(self.op, tuple(map(change, self.inputs)), change(self.output))


@dataclass(frozen=True, eq=False, repr=False)
class Repeat(Instruction):
    """Run ``body`` ``trips`` times, as long as ``condition`` holds true before a trip.

    ``name`` is that of the operator.  With each trip the views of the body move by their advance;
    those of loops inside belong to these.
    """

    name: str
    trips: Dim
    body: tuple[Instruction, ...]
    condition: View | None = None

    @property
    def ins(self) -> tuple[View, ...]:
        read = tuple(view for step in self.body for view in step.ins)
        return read if self.condition is None else (self.condition, *read)

    @property
    def inouts(self) -> tuple[View, ...]:
        return tuple(view for step in self.body for view in (*step.outs, *step.inouts))

    @property
    def steps(self) -> tuple[Instruction, ...]:
        return self.body

    def mapped(self, change: Callable[[View], View]) -> Instruction:
        condition = None if self.condition is None else change(self.condition)
        body = tuple(step.mapped(change) for step in self.body)
        return replace(self, body=body, condition=condition)

    def text(self, spell: Spelling) -> str:
        """``repeat @in condition {attributes}``; the lines of the body follow."""
        condition = "" if self.condition is None else f"@in {self.condition.text(spell)} "
        return f"repeat {condition}{{name={self.name!r}, trips={self.trips}}}"


@dataclass(frozen=True, eq=False, repr=False)
class Program(Concise):
    """Instructions in order, and the views that the caller fills and reads."""

    inputs: tuple[tuple[str, View], ...]
    outputs: tuple[tuple[str, View], ...]
    instructions: tuple[Instruction, ...]

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Every buffer, in order of first appearance."""
        buffers = {view.buffer: None for _, view in (*self.inputs, *self.outputs)}
        for instruction in self.instructions:
            if isinstance(instruction, Alloc):
                buffers.setdefault(instruction.buffer)
            buffers.update((view.buffer, None) for view in instruction.views)
        return tuple(buffers)

    def __str__(self) -> str:
        return self.text(as_it_is)

    def text(self, shown: Callable[[object], object]) -> str:
        """One line for each instruction.  ``shown``: what stands there for an array."""
        elements = self._per_axis_elements()

        def spell(kind: TensorType) -> str:
            return str(kind).replace(str(kind.quant), elements.get(kind.element, str(kind.quant)))

        lines = ["program"]
        lines += [f"element <{alias}> = {encode(e)}" for e, alias in elements.items()]
        lines += [b.declaration(shown) for b in self.buffers if b.kind is not BufferKind.TEMP]
        lines += [f"feed {name!r} = {view.text(spell)}" for name, view in self.inputs]
        lines += _number_values(self.instructions, spell)
        lines += [f"result {name!r} = {view.text(spell)}" for name, view in self.outputs]
        return "\n".join(lines) + "\n"

    def _per_axis_elements(self) -> dict[ElementType, str]:
        """Short names for the element types whose parameters are too long to repeat."""
        views = [view for step in self.instructions for view in step.views]
        views += [view for _, view in (*self.inputs, *self.outputs)]
        names: dict[ElementType, str] = {}
        for element in (view.type.element for view in views):
            if element.quant is not None and element.quant.axis is not None:
                names.setdefault(element, f"{element.quant}#{len(names)}")
        return names


def _number_values(steps: Sequence[Instruction], spell: Spelling, outer: str = "") -> Iterator[str]:
    """A line for each instruction with its number; those in loops have that of the loop before."""
    for number, step in enumerate(steps):
        label = f"{outer}.{number}" if outer else f"{number:4d}"
        yield f"{label}  {step.text(spell)}"
        yield from _number_values(step.steps, spell, label)
