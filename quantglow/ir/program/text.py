"""Reading programs from the text that ``str(program)`` writes.  The text is not trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import quantglow.ir.ops  # noqa: F401 - registers the operators that programs name
from quantglow.ir.graph.attributes import ArrayMark, Dense, parse_call
from quantglow.ir.graph.node import OPS, Constant, Input, Node, operand_fields
from quantglow.ir.graph.text import STRING, build, failure, marked_array, unquote
from quantglow.ir.program.program import (
    PLAIN_NAME,
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Copy,
    Dealloc,
    Fill,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.ir.program.strides import dense_strides
from quantglow.ir.program.verify import verify_program
from quantglow.ir.symbolic.size import decide, decide_equal
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError, FileFormatError

_BUFFER = rf"%(?:{STRING}|{PLAIN_NAME.pattern})"
_VIEW = rf"({_BUFFER})(?:\[(-?\d+):([-\d,]*)(?:\+(-?\d+))?\])?: (\w+)(?:<([^>]*)>)?\[([\dx]*)\]"
_ELEMENT = re.compile(r"element <([^>]*)> = (.*)")
_DECLARATION = re.compile(rf"(constant|input|output|state) ({_BUFFER}) \((\d+) bytes\)(?: = (.*))?")
_BORDER = re.compile(rf"(feed|result) ({STRING}) = {_VIEW}")
_LIFE = re.compile(rf" *\d+  (alloc|dealloc) ({_BUFFER})(?: \((\d+) bytes\))?")
_STEP = re.compile(r" *\d+((?:\.\d+)*)  (\w+) ")
_OPERAND = re.compile(rf"(?:, )?@(out|inout|in) (?:(\w+)=)?{_VIEW}")
_ATTRIBUTES = re.compile(r" ?\{(.*)\}")


def text_constants(program: Program) -> dict[str, Array]:
    """The arrays that the text refers to, by the names of their buffers."""
    return {b.name: b.value for b in program.buffers if b.value is not None}


def parse_program(text: str, constants: Mapping[str, Array]) -> Program:
    """The verified program that ``str`` wrote; the operands of its ops are leaves.

    Raises ``FileFormatError``, naming the line, on text that is not a valid program.
    """
    lines = text.split("\n")
    if lines[0] != "program":
        raise FileFormatError("line 1: expected 'program'; this is not the text of a program")
    reader = _ProgramReader(constants)
    for number, line in enumerate(lines[1:], 2):
        try:
            if line.strip():
                reader.read(line)
        except (ValueError, RecursionError) as error:
            raise failure(number, line, error) from None
    program = Program(tuple(reader.inputs), tuple(reader.outputs), tuple(reader.steps))
    try:
        verify_program(program)
    except BackendError as error:
        raise FileFormatError(f"the program is faulty: {error}\nRemedy: save it again.") from None
    return program


@dataclass
class _ProgramReader:
    """Definitions of the lines read so far.  Its methods raise ``ValueError``."""

    constants: Mapping[str, Array]
    elements: dict[str, ElementType] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    inputs: list[tuple[str, View]] = field(default_factory=list)
    outputs: list[tuple[str, View]] = field(default_factory=list)
    steps: list[Instruction] = field(default_factory=list)

    def read(self, line: str) -> None:
        if match := _ELEMENT.fullmatch(line):
            self.elements[match[1]] = _of_class(ElementType, match[2])
        elif match := _DECLARATION.fullmatch(line):
            self.declare(match[2], BufferKind(match[1]), int(match[3]), match[4])
        elif match := _BORDER.fullmatch(line):
            border = self.inputs if match[1] == "feed" else self.outputs
            border.append((unquote(match[2]), self.view(*match.groups()[2:])))
        elif match := _LIFE.fullmatch(line):
            self.steps.append(self.life(match[1], match[2], match[3]))
        elif match := _STEP.match(line):
            self.add(match[1].count("."), self.step(match[2], line[match.end() :]))
        else:
            raise ValueError("not a line of a program")

    def declare(self, text: str, kind: BufferKind, nbytes: int, mark: str | None) -> Buffer:
        name, value = _buffer_name(text), None
        if name in self.buffers:
            raise ValueError(f"buffer {text} is declared twice")
        if kind is BufferKind.CONSTANT:
            value = marked_array(name, _array_text(mark or ""), self.constants)
            if value.nbytes != nbytes:
                raise ValueError(f"constant {text} has {value.nbytes} bytes, not {nbytes}")
        self.buffers[name] = Buffer(name, kind, nbytes, value)
        return self.buffers[name]

    def life(self, kind: str, buffer: str, nbytes: str | None) -> Instruction:
        if kind == "dealloc":
            return Dealloc(self.buffer(buffer))
        if nbytes is None:
            raise ValueError("alloc needs a number of bytes")
        return Alloc(self.declare(buffer, BufferKind.TEMP, int(nbytes), None))

    def buffer(self, text: str) -> Buffer:
        name = _buffer_name(text)
        if name not in self.buffers:
            raise ValueError(f"buffer {text} is not defined above")
        return self.buffers[name]

    def view(
        self,
        buffer: str,
        offset: str | None,
        strides: str,
        advance: str | None,
        dtype: str,
        quant: str,
        shape: str,
    ) -> View:
        dims = tuple(int(d) for d in shape.split("x") if d)
        kind = TensorType(DType(dtype), dims, self.quant(DType(dtype), quant))
        if offset is None:
            return View(self.buffer(buffer), kind, dense_strides(dims))
        steps = tuple(int(s) for s in strides.split(",") if s)
        if len(steps) != len(dims):
            raise ValueError(f"{len(steps)} strides for shape {shape}")
        return View(self.buffer(buffer), kind, steps, int(offset), int(advance or 0))

    def quant(self, dtype: DType, text: str | None) -> QuantParams | None:
        if text is None:
            return None
        if text in self.elements and self.elements[text].dtype is dtype:
            return self.elements[text].quant
        scale, _, zero_point = text.partition(",")
        return QuantParams.per_tensor(float(scale), int(zero_point))

    def add(self, depth: int, step: Instruction) -> None:
        """Append a step to the program, or to the last of its loops that is so deep."""
        if depth:
            self.steps[-1:] = append(tuple(self.steps[-1:]), depth, step)
        else:
            self.steps.append(step)

    def step(self, mnemonic: str, text: str) -> Instruction:
        views: dict[str, list[tuple[str, View]]] = {"out": [], "inout": [], "in": []}
        end = 0
        while match := _OPERAND.match(text, end):
            views[match[1]].append((match[2], self.view(*match.groups()[2:])))
            end = match.end()
        attributes = _attributes(text[end:])
        counts = tuple(map(len, views.values()))
        if mnemonic == "copy" and counts == (1, 0, 1) and not attributes:
            return Copy(views["in"][0][1], views["out"][0][1])
        if mnemonic == "fill" and counts == (0, 1, 0):
            return _fill(views["inout"][0][1], attributes)
        if mnemonic == "repeat" and counts[:2] == (0, 0) and counts[2] < 2:
            return _repeat([view for _, view in views["in"]], attributes)
        if mnemonic in OPS and counts[:2] == (1, 0):
            return _compute(OPS[mnemonic], views["out"][0][1], views["in"], attributes)
        raise ValueError(f"there is no instruction {mnemonic!r} with such operands")


def append(
    steps: tuple[Instruction, ...], depth: int, step: Instruction
) -> tuple[Instruction, ...]:
    """Steps with one more at the end of the last loop, or of a loop in it."""
    if not depth:
        return (*steps, step)
    if not steps or not isinstance(loop := steps[-1], Repeat):
        raise ValueError("the line before is no loop")
    return (*steps[:-1], replace(loop, body=append(loop.body, depth - 1, step)))


def _buffer_name(text: str) -> str:
    return unquote(text[1:]) if text[1] in "'\"" else text[1:]


def _parse_value(text: str) -> Any:
    return parse_call(f"Line(value={text})")[1]["value"]


def _of_class(cls: type[Any], text: str) -> Any:
    value = _parse_value(text)
    if not isinstance(value, cls):
        raise ValueError(f"expected {cls.__name__}(…)")
    return value


def _array_text(text: str) -> ArrayMark | Dense:
    value = _parse_value(text)
    if not isinstance(value, ArrayMark | Dense):
        raise ValueError("expected ArrayMark(…) or Dense(…)")
    return value


def _attributes(text: str) -> dict[str, Any]:
    if not text:
        return {}
    match = _ATTRIBUTES.fullmatch(text)
    if match is None:
        raise ValueError(f"unexpected {text[:40]!r}")
    return parse_call(f"Attributes({match[1]})")[1]


def _fill(dst: View, attributes: dict[str, Any]) -> Fill:
    """A fill whose interior is a box inside ``dst``."""
    match attributes.get("value"), attributes.get("interior"):
        case ((bool() | int() | float()) as value, ((*starts,), (*sizes,)) as interior):
            boxes = zip(starts, sizes, dst.shape, strict=True)
            if all(
                type(a) is type(n) is int and 0 <= a <= a + n and decide(a + n <= d)
                for a, n, d in boxes
            ):
                return Fill(dst, value, interior)
    raise ValueError("fill needs a number, and an interior inside its view")


def _repeat(condition: list[View], attributes: dict[str, Any]) -> Repeat:
    match attributes:
        case {"name": str() as name, "trips": int() as trips} if trips >= 0:
            if all(v.type.dtype is DType.BOOL and v.type.is_single for v in condition):
                return Repeat(name, trips, (), *condition)
    raise ValueError("repeat needs a name, a number of trips, and at most one condition")


def _compute(
    cls: type[Node], output: View, inputs: list[tuple[str, View]], attributes: dict[str, Any]
) -> Compute:
    leaves = {view: _leaf(view) for _, view in inputs}
    values: dict[str, Any] = {key: value for key, value in attributes.items() if key != "name"}
    for label in operand_fields(cls):
        operands = tuple(leaves[view] for name, view in inputs if name == label)
        if cls.__annotations__[label] == "tuple[Node, ...]":
            values[label] = operands
        elif operands:
            values[label] = operands[0]
    hint = cls.__annotations__.get("out")
    if hint == "ElementType" or (hint is not None and output.type.quant is not None):
        values["out"] = output.type.element
    op = build(cls, str(attributes.get("name", "")), values)
    if op.operands != tuple(leaves[view] for _, view in inputs):
        raise ValueError(f"the operands do not fit {cls.__name__}")
    return Compute(op, tuple(view for _, view in inputs), output)


def _leaf(view: View) -> Node:
    """A stand-in for the node that computed the view: the array of a constant, else its type."""
    value, kind = view.buffer.value, view.type
    whole = decide(view.offset == 0) and decide_equal(view.strides, dense_strides(view.shape))
    if (
        value is None
        or not whole
        or (str(DType.of(value)), value.shape) != (kind.dtype, view.type.fixed_shape)
    ):
        return Input(name=view.buffer.name, tensor=kind)
    element = None if kind.quant is None else kind.element
    return Constant(name=view.buffer.name, value=value, element=element)
