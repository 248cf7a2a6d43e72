"""A small builder of LLVM IR text.

Values have a type and a text (``%v7`` or a constant); literals are plain texts, whose type the
instruction names.  Pointers are byte addresses: offsets count bytes.  Text is faster to make than
``llvmlite.ir`` objects, and it is what the kernel cache is keyed by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from quantglow.codegen.llvm.values import (
    FLOAT,
    I32,
    I64,
    PTR,
    VOID,
    ConstantValue,
    Operand,
    Type,
    Value,
    poison,
    vector,
)
from quantglow.ir.symbolic.size import Dim, Size, decide

Argument = tuple[str, Operand]
"""An argument of a call: its type, perhaps with attributes such as ``align 4``, and the operand."""

Index = Operand | Dim
"""An index, or a number that becomes one: a free size is an operand of the kernel."""

Carried = tuple[Type, Operand]
"""A value that a loop carries: its type, and what it is before the first iteration."""

ITEMS = ("%begin", "%end")
"""The work items of a kernel."""
FLOAT_NBYTES = 4
"""Bytes of a float32, which are its alignment, too."""


@cache
def _first_lane(lanes: int) -> str:
    """The last operands of a shuffle that broadcasts the first lane."""
    return f" poison, <{lanes} x i32> zeroinitializer"


@cache
def _mask(lanes: tuple[int, ...]) -> Operand:
    """The literal of a shuffle's lanes."""
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


@dataclass
class OpenLoop:
    """A loop under construction: its index and the values it carries."""

    label: str
    index: Value
    carried: list[Value]
    kinds: list[Type]
    patch: int
    limit: Operand
    entry: str
    init: list[Operand]


@dataclass
class Builder:
    """One function.

    ``block``: the label of the block that grows.
    ``index``: the type of offsets, sizes and loop counters, as wide as the target's registers.
    """

    lines: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    rooms: list[str] = field(default_factory=list)
    block: str = "entry"
    count: int = 0
    index: Type = I64

    # -- text

    def fresh(self, prefix: str) -> str:
        """A label that no other block has."""
        self.count += 1
        return f"{prefix}{self.count}"

    def _value(self, kind: Type) -> Value:
        """A value whose instruction is not written yet."""
        self.count += 1
        return Value.of(f"%v{self.count}", kind)

    def emit(self, kind: Type, text: str) -> Value:
        """A new value of a type, computed by the instruction ``text``."""
        # Most of the time of making kernels is spent here and in the methods that join texts:
        # ``str.join`` is several times as fast as an f-string of values.
        self.count = count = self.count + 1
        self.lines.append(f"  %v{count} = {text}")
        value = Value(f"%v{count}")
        value.type = kind
        return value

    def do(self, text: str) -> None:
        """An instruction without result."""
        self.lines.append(f"  {text}")

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def call(self, name: str, result: Type, *args: Argument) -> Value:
        """Call an intrinsic or external function; it is declared once."""
        if name not in self.declarations:
            self._declare(name, result, args)
        listed = ", ".join([kind + " " + operand for kind, operand in args])
        return self.emit(result, "".join(("call ", result, " @", name, "(", listed, ")")))

    def do_call(self, name: str, *args: Argument) -> None:
        """Call a function without result; it is declared once."""
        if name not in self.declarations:
            self._declare(name, VOID, args)
        self.do(f"call void @{name}({', '.join([f'{kind} {operand}' for kind, operand in args])})")

    def _declare(self, name: str, result: Type, args: Sequence[Argument]) -> None:
        kinds = ", ".join(kind for kind, _ in args)
        self.declarations[name] = f"declare {result} @{name}({kinds})"

    # -- memory

    def at(self, pointer: Value, offset: Index) -> Value:
        """``pointer + offset`` bytes."""
        text = offset if isinstance(offset, str) else str(offset)
        if text == "0":
            return pointer
        parts = ("getelementptr i8, ptr ", pointer, ", ", self.index, " ", text)
        return self.emit(PTR, "".join(parts))

    def opaque(self, pointer: Value) -> Value:
        """The same pointer, of origin unknown to LLVM.

        Loop strength reduction studies every address of an unrolled loop at great length; from an
        opaque base all of them are the base plus a literal, which is what we want.
        """
        return self.in_register(pointer, "r")

    def in_register(self, value: Value, letter: str, is_used: bool = False) -> Value:
        """The same value out of a register of a class, of origin unknown to LLVM; ``is_used``: LLVM
        must compute it even where nobody reads it."""
        kind, effect = value.type, "sideeffect " if is_used else ""
        return self.emit(kind, f'call {kind} asm {effect}"", "={letter},0"({kind} {value})')

    def load(self, kind: Type, pointer: Value, align: int = 1) -> Value:
        aligned = self._aligned(kind, align)
        return self.emit(kind, "".join(("load ", kind, ", ptr ", pointer, ", align ", aligned)))

    def load_volatile(self, kind: Type, pointer: Value, align: int = 0) -> Value:
        """A load that LLVM neither moves nor leaves out; ``align``: 0 is that of the type."""
        aligned = f", align {align}" if align else ""
        return self.emit(kind, f"load volatile {kind}, ptr {pointer}{aligned}")

    def room(self, kind: str) -> Value:
        """The address of memory on the stack for one value, set aside once at the entry."""
        address = self._value(PTR)
        self.rooms.append(f"  {address} = alloca {kind}")
        return address

    def allocate(self, nbytes: int, align: int) -> Value:
        """The address of bytes on the stack, set aside here: outside of loops."""
        return self.emit(PTR, f"alloca [{nbytes} x i8], align {align}")

    def prefetch(self, pointer: Value) -> None:
        """Bring a line towards the second-level cache; never faults."""
        kinds = ((PTR, pointer), (I32, "0"), (I32, "2"), (I32, "1"))
        self.do_call("llvm.prefetch.p0", *kinds)

    def store(self, kind: Type, value: Operand, pointer: Value, align: int = 1) -> None:
        aligned = self._aligned(kind, align)
        parts = ("  store ", kind, " ", value, ", ptr ", pointer, ", align ", aligned)
        self.lines.append("".join(parts))

    def _aligned(self, kind: Type, align: int) -> str:
        """Alignment in bytes: float32 lie at multiples of four in every buffer.  Small processors
        load what may lie elsewhere byte by byte, or by way of integer registers; others do not
        care."""
        small = self.index == I32 and kind.element == FLOAT
        return str(max(align, FLOAT_NBYTES) if small else align)

    # -- arithmetic

    def op(self, name: str, kind: Type, a: Operand, b: Operand) -> Value:
        """A two-operand instruction such as ``add`` or ``fmul``."""
        return self.emit(kind, "".join((name, " ", kind, " ", a, ", ", b)))

    def negate(self, value: Value) -> Value:
        """``-value`` of floats."""
        return self.emit(value.type, f"fneg {value.type} {value}")

    def freeze(self, value: Value) -> Value:
        """The same value; one and the same for all uses where it is poison."""
        return self.emit(value.type, f"freeze {value.type} {value}")

    def constant(self, number: Index) -> Value:
        """An operand, or a number, as an index."""
        return number if isinstance(number, Value) else ConstantValue.of(str(number), self.index)

    def add(self, a: Operand, b: Index) -> Value:
        """Addition of indices; adding zero costs nothing."""
        text = b if isinstance(b, str) else str(b)
        if text == "0":
            return self.constant(a)
        if a == "0":
            return self.constant(b)
        return self.op("add", self.index, a, text)

    def mul(self, a: Operand, b: Index) -> Value:
        """Multiplication of indices; by one, or of zero, costs nothing."""
        text = b if isinstance(b, str) else str(b)
        if a == "0" or text == "1":
            return self.constant(a)
        return self.op("mul", self.index, a, text)

    def divide(self, a: Operand, b: Dim) -> tuple[Value, Value]:
        """Quotient and remainder of an unsigned index by a literal."""
        if not isinstance(b, Size) and b == 1:
            return self.constant(a), self.constant(0)
        quotient = self.op("udiv", self.index, a, str(b))
        return quotient, self.op("sub", self.index, a, self.mul(quotient, b))

    def cast(self, name: str, source: Type, value: Operand, target: Type) -> Value:
        return self.emit(target, "".join((name, " ", source, " ", value, " to ", target)))

    def compare(self, predicate: str, kind: Type, a: Operand, b: Operand) -> Value:
        """``icmp`` or, for predicates of floats (``olt`` …), ``fcmp``."""
        name = "fcmp " if kind.is_float else "icmp "
        return self.emit(kind.mask, "".join((name, predicate, " ", kind, " ", a, ", ", b)))

    def select(self, kind: Type, condition: Operand, a: Operand, b: Operand) -> Value:
        """``a`` where the condition holds, a truth value for each lane, else ``b``."""
        parts = ("select ", kind.mask, " ", condition, ", ", kind, " ", a, ", ", kind, " ", b)
        return self.emit(kind, "".join(parts))

    def choose(self, kind: Type, condition: Operand, a: Operand, b: Operand) -> Value:
        """``a`` if the condition, one truth value for all lanes, holds, else ``b``."""
        return self.emit(kind, f"select i1 {condition}, {kind} {a}, {kind} {b}")

    # -- lanes

    def extract(self, values: Value, lane: int) -> Value:
        """A lane of a vector."""
        kind = values.type
        parts = ("extractelement ", kind, " ", values, ", i32 ", str(lane))
        return self.emit(kind.element, "".join(parts))

    def insert(self, values: Value, scalar: Operand, lane: int) -> Value:
        """A vector with another value in one lane."""
        kind = values.type
        operands = (" ", values, ", ", kind.element, " ", scalar, ", i32 ", str(lane))
        return self.emit(kind, "".join(("insertelement ", kind, *operands)))

    def broadcast(self, lanes: int, element: Type, scalar: Operand) -> Value:
        """A scalar in every lane."""
        if lanes == 1:
            return scalar if isinstance(scalar, Value) else ConstantValue.of(scalar, element)
        kind = vector(lanes, element)
        first = self.insert(poison(kind), scalar, 0)
        mask = _first_lane(lanes)
        return self.emit(kind, "".join(("shufflevector ", kind, " ", first, ", ", kind, mask)))

    def shuffle(self, kind: Type, a: Operand, b: Operand, mask: Sequence[int]) -> Value:
        """``shufflevector`` of two vectors of one kind."""
        lanes = _mask(tuple(mask))
        parts = ("shufflevector ", kind, " ", a, ", ", kind, " ", b, ", ", lanes)
        return self.emit(vector(len(mask), kind.element), "".join(parts))

    # -- indices

    def load_index(self, pointer: Value) -> Value:
        """An index that is an int64 in memory."""
        return self.as_index(I64, self.load(I64, pointer, align=8))

    def as_index(self, kind: Type, value: Value, extend: str = "sext") -> Value:
        """An integer of another type that is an index."""
        return self._resized(kind, value, self.index, extend)

    def as_int(self, index: Operand) -> Value:
        """An index, known to fit, as i32."""
        return self._resized(self.index, index, I32, "sext")

    def as_long(self, index: Value) -> Value:
        """An index as i64."""
        return self._resized(self.index, index, I64, "sext")

    def _resized(self, source: Type, value: Operand, target: Type, extend: str) -> Value:
        if source == target:
            return value if isinstance(value, Value) else ConstantValue.of(value, target)
        return self.cast(extend if target.nbits > source.nbits else "trunc", source, value, target)

    # -- control

    @contextmanager
    def loop(self, begin: Index, end: Index, step: int = 1) -> Iterator[Value]:
        """``for index in range(begin, end, step)``; nothing runs when the range is empty."""
        label = self.fresh("loop")
        body, done = f"{label}.body", f"{label}.done"
        entry = self.block
        guarded = not (isinstance(begin, int) and isinstance(end, int) and begin < end)
        if guarded:
            some = self.compare("slt", self.index, str(begin), str(end))
            self.do(f"br i1 {some}, label %{body}, label %{done}")
        else:
            self.do(f"br label %{body}")
        self.start_block(body)
        index = self._value(self.index)
        patch = len(self.lines)
        self.lines.append("")
        yield index
        following = self.add(index, step)
        again = self.compare("slt", self.index, following, str(end))
        self.lines[patch] = (
            f"  {index} = phi {self.index} [ {begin}, %{entry} ], [ {following}, %{self.block} ]"
        )
        self.do(f"br i1 {again}, label %{body}, label %{done}")
        self.start_block(done)

    def begin_loop(self, count: Dim, carried: Sequence[Carried]) -> OpenLoop:
        """``count`` > 0 iterations of a loop that carries values; close with ``end_loop``."""
        assert decide(count > 0)
        label = self.fresh("loop") + ".body"
        entry = self.block
        self.do(f"br label %{label}")
        self.start_block(label)
        index = self._value(self.index)
        kinds = [kind for kind, _ in carried]
        names = [self._value(kind) for kind in kinds]
        patch = len(self.lines)
        self.lines.append("")
        return OpenLoop(
            label, index, names, kinds, patch, str(count), entry, [v for _, v in carried]
        )

    def end_loop(self, loop: OpenLoop, values: Sequence[Value]) -> list[Value]:
        """Close a loop; the values it carries after the last iteration."""
        following = self.add(loop.index, 1)
        self._set_phis(loop, following, values)
        again = self.compare("slt", self.index, following, loop.limit)
        done = self.fresh("loop") + ".done"
        self.do(f"br i1 {again}, label %{loop.label}, label %{done}")
        self.start_block(done)
        return list(values)

    def begin_while(self, count: Operand, carried: Sequence[Carried]) -> OpenLoop:
        """``count`` iterations, perhaps none; close with ``end_while``."""
        label = self.fresh("loop")
        entry = self.block
        self.do(f"br label %{label}.head")
        self.start_block(f"{label}.head")
        index = self._value(self.index)
        kinds = [kind for kind, _ in carried]
        names = [self._value(kind) for kind in kinds]
        patch = len(self.lines)
        self.lines.append("")
        more = self.compare("slt", self.index, index, count)
        self.do(f"br i1 {more}, label %{label}.body, label %{label}.done")
        self.start_block(f"{label}.body")
        return OpenLoop(label, index, names, kinds, patch, count, entry, [v for _, v in carried])

    def end_while(self, loop: OpenLoop, values: Sequence[Value]) -> list[Value]:
        """Close the loop; the values it carries after the last iteration."""
        self._set_phis(loop, self.add(loop.index, 1), values)
        self.do(f"br label %{loop.label}.head")
        self.start_block(f"{loop.label}.done")
        return loop.carried

    def begin_times(self, count: Dim, carried: Sequence[Carried]) -> OpenLoop:
        """``count`` iterations: > 0, or perhaps none if free; close with ``end_times``."""
        if isinstance(count, Size):
            return self.begin_while(str(count), carried)
        return self.begin_loop(count, carried)

    def end_times(self, loop: OpenLoop, count: Dim, values: Sequence[Value]) -> list[Value]:
        """Close the loop; the values it carries after the last iteration."""
        if isinstance(count, Size):
            return self.end_while(loop, values)
        return self.end_loop(loop, values)

    def _set_phis(self, loop: OpenLoop, following: Value, values: Sequence[Operand]) -> None:
        """Phis of the values that a loop carries: from before it, and from the end of its body."""
        last = f"[ {following}, %{self.block} ]"
        phis = [f"  {loop.index} = phi {self.index} [ 0, %{loop.entry} ], {last}"]
        for name, kind, init, value in zip(
            loop.carried, loop.kinds, loop.init, values, strict=True
        ):
            phis.append(
                f"  {name} = phi {kind} [ {init}, %{loop.entry} ], [ {value}, %{self.block} ]"
            )
        self.lines[loop.patch] = "\n".join(phis)

    @contextmanager
    def when(self, condition: Operand) -> Iterator[None]:
        """Run the body if the i1 ``condition`` holds."""
        if condition == "true":
            yield
            return
        label = self.fresh("when")
        self.do(f"br i1 {condition}, label %{label}.then, label %{label}.done")
        self.start_block(f"{label}.then")
        yield
        self.do(f"br label %{label}.done")
        self.start_block(f"{label}.done")

    def if_so(
        self,
        condition: Operand,
        otherwise: Sequence[Carried],
        body: Callable[[], Sequence[Value]],
    ) -> list[Value]:
        """The values of ``body`` if the i1 ``condition`` holds, else those given with types."""
        before = self.block
        with self.when(condition):
            values = body()
            after = self.block
        return [
            self.emit(kind, f"phi {kind} [ {value}, %{after} ], [ {other}, %{before} ]")
            for (kind, other), value in zip(otherwise, values, strict=True)
        ]

    # -- the whole

    def kernel(self, count: int) -> list[Value]:
        """Open ``void @kernel(ptr %args, i64 %begin, i64 %end)``; load its ``count`` pointers.

        Narrower indices have the same interface.
        """
        self.start_block("entry")
        if self.index != I64:
            for name in ITEMS:
                self.do(f"{name} = trunc i64 {name}.given to {self.index}")
        arguments = Value.of("%args", PTR)
        return [self.load(PTR, self.at(arguments, 8 * index), align=8) for index in range(count)]

    def finish(self) -> str:
        """The module text."""
        self.do("ret void")
        items = ", ".join(f"i64 {n if self.index == I64 else n + '.given'}" for n in ITEMS)
        head = f"define void @kernel(ptr noalias readonly %args, {items}) nounwind {{"
        declared = "\n".join(sorted(self.declarations.values()))
        body = "\n".join([self.lines[0], *self.rooms, *self.lines[1:]])
        return f"{declared}\n\n{head}\n{body}\n}}\n"
