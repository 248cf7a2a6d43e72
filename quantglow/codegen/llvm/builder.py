"""A small builder of LLVM IR text.

Values are strings (``%7`` or literals).  Pointers are byte addresses: offsets count bytes.
Text is faster to make than ``llvmlite.ir`` objects, and it is what the kernel cache is keyed by.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from quantglow.ir.symbolic.size import is_free

Value = str
I64 = "i64"
ITEMS = ("%begin", "%end")
"""The work items of a kernel."""


@cache
def vector(lanes: int, element: str) -> str:
    """The type of ``lanes`` elements; the element itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def f32(value: float) -> Value:
    """A float32 literal: LLVM wants the bits of the equal double."""
    bits = struct.unpack("<Q", struct.pack("<d", float(np.float32(value))))[0]
    return f"0x{bits:016X}"


def splat(kind: str, literal: Value) -> Value:
    """A literal in every lane of ``kind``; the literal itself for scalar kinds."""
    if not kind.startswith("<"):
        return literal
    element = kind[kind.index("x ") + 2 : -1]
    return f"splat ({element} {literal})"


@cache
def _mask(lanes: tuple[int, ...]) -> Value:
    """The literal of a shuffle's lanes."""
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


@dataclass
class Loop:
    """A loop under construction: its index and the values it carries."""

    label: str
    index: Value
    carried: list[Value]
    kinds: list[str]
    patch: int
    limit: Value
    entry: str
    init: list[Value]


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
    index: str = I64

    # -- text

    def fresh(self, prefix: str = "%v") -> Value:
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, text: str) -> Value:
        """A new value computed by ``text``."""
        # Not by way of fresh: most of the time of making kernels is spent here.
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """An instruction without result."""
        self.lines.append(f"  {text}")

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def call(self, name: str, result: str, *args: tuple[str, Value]) -> Value:
        """Call an intrinsic or external function; it is declared once."""
        if name not in self.declarations:
            kinds = ", ".join(kind for kind, _ in args)
            self.declarations[name] = f"declare {result} @{name}({kinds})"
        text = f"call {result} @{name}({', '.join([f'{k} {v}' for k, v in args])})"
        if result == "void":
            self.do(text)
            return ""
        return self.emit(text)

    # -- memory

    def at(self, pointer: Value, offset: Value | int) -> Value:
        """``pointer + offset`` bytes."""
        if not is_free(offset) and offset in (0, "0"):
            return pointer
        return self.emit(f"getelementptr i8, ptr {pointer}, {self.index} {offset}")

    def opaque(self, pointer: Value) -> Value:
        """The same pointer, of origin unknown to LLVM.

        Loop strength reduction studies every address of an unrolled loop at great length; from an
        opaque base all of them are the base plus a literal, which is what we want.
        """
        return self.emit(f'call ptr asm "", "=r,0"(ptr {pointer})')

    def load(self, kind: str, pointer: Value, align: int = 1) -> Value:
        return self.emit(f"load {kind}, ptr {pointer}, align {self._aligned(kind, align)}")

    def room(self, kind: str) -> Value:
        """The address of memory on the stack for one value, set aside once at the entry."""
        name = self.fresh()
        self.rooms.append(f"  {name} = alloca {kind}")
        return name

    def prefetch(self, pointer: Value) -> None:
        """Bring a line towards the second-level cache; never faults."""
        kinds = (("ptr", pointer), ("i32", "0"), ("i32", "2"), ("i32", "1"))
        self.call("llvm.prefetch.p0", "void", *kinds)

    def store(self, kind: str, value: Value, pointer: Value, align: int = 1) -> None:
        self.do(f"store {kind} {value}, ptr {pointer}, align {self._aligned(kind, align)}")

    def _aligned(self, kind: str, align: int) -> int:
        """Alignment in bytes: float32 lie at multiples of four in every buffer.  Small processors
        load what may lie elsewhere byte by byte, or by way of integer registers; others do not
        care."""
        return max(align, 4) if self.index == "i32" and "float" in kind else align

    # -- arithmetic

    def op(self, name: str, kind: str, a: Value, b: Value) -> Value:
        """A two-operand instruction such as ``add`` or ``fmul``."""
        return self.emit(f"{name} {kind} {a}, {b}")

    def add(self, a: Value, b: Value | int) -> Value:
        """Addition of indices; adding zero costs nothing."""
        if not is_free(b) and b in (0, "0"):
            return a
        if a == "0":
            return str(b)
        return self.op("add", self.index, a, str(b))

    def mul(self, a: Value, b: Value | int) -> Value:
        """Multiplication of indices; by one, or of zero, costs nothing."""
        if a == "0" or (not is_free(b) and b in (1, "1")):
            return a
        return self.op("mul", self.index, a, str(b))

    def divide(self, a: Value, b: int) -> tuple[Value, Value]:
        """Quotient and remainder of an unsigned index by a literal."""
        if not is_free(b) and b == 1:
            return a, "0"
        quotient = self.op("udiv", self.index, a, str(b))
        return quotient, self.op("sub", self.index, a, self.mul(quotient, b))

    def cast(self, name: str, source: str, value: Value, target: str) -> Value:
        return self.emit(f"{name} {source} {value} to {target}")

    def compare(self, predicate: str, kind: str, a: Value, b: Value) -> Value:
        """``icmp`` or, for predicates of floats (``olt`` …), ``fcmp``."""
        floats = predicate[0] == "o" or predicate in ("une", "uno", "ueq")
        return self.emit(f"{'fcmp' if floats else 'icmp'} {predicate} {kind} {a}, {b}")

    def select(self, kind: str, condition: Value, a: Value, b: Value) -> Value:
        lanes = kind[1 : kind.index(" ")] if kind.startswith("<") else ""
        mask = f"<{lanes} x i1>" if lanes else "i1"
        return self.emit(f"select {mask} {condition}, {kind} {a}, {kind} {b}")

    def broadcast(self, lanes: int, element: str, scalar: Value) -> Value:
        """A scalar in every lane."""
        if lanes == 1:
            return scalar
        kind = vector(lanes, element)
        first = self.emit(f"insertelement {kind} poison, {element} {scalar}, i32 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.emit(f"shufflevector {kind} {first}, {kind} poison, {mask}")

    def shuffle(self, kind: str, a: Value, b: Value, mask: Sequence[int]) -> Value:
        """``shufflevector`` of two vectors of one kind."""
        return self.emit(f"shufflevector {kind} {a}, {kind} {b}, {_mask(tuple(mask))}")

    # -- indices

    def load_index(self, pointer: Value) -> Value:
        """An index that is an int64 in memory."""
        return self.as_index(I64, self.load(I64, pointer, align=8))

    def as_index(self, kind: str, value: Value, extend: str = "sext") -> Value:
        """An integer of another type that is an index."""
        return self._resized(kind, value, self.index, extend)

    def as_int(self, index: Value) -> Value:
        """An index, known to fit, as i32."""
        return self._resized(self.index, index, "i32", "sext")

    def as_long(self, index: Value) -> Value:
        """An index as i64."""
        return self._resized(self.index, index, I64, "sext")

    def _resized(self, source: str, value: Value, target: str, extend: str) -> Value:
        if source == target:
            return value
        wider = int(target[1:]) > int(source[1:])
        return self.cast(extend if wider else "trunc", source, value, target)

    # -- control

    @contextmanager
    def loop(self, begin: Value | int, end: Value | int, step: int = 1) -> Iterator[Value]:
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
        index = self.fresh()
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

    def begin_loop(self, count: int, carried: Sequence[tuple[str, Value]]) -> Loop:
        """``count`` > 0 iterations of a loop that carries values; close with ``end_loop``."""
        assert count > 0
        label = self.fresh("loop") + ".body"
        entry = self.block
        self.do(f"br label %{label}")
        self.start_block(label)
        index = self.fresh()
        kinds = [kind for kind, _ in carried]
        names = [self.fresh() for _ in carried]
        patch = len(self.lines)
        self.lines.append("")
        return Loop(label, index, names, kinds, patch, str(count), entry, [v for _, v in carried])

    def end_loop(self, loop: Loop, values: Sequence[Value]) -> list[Value]:
        """Close a loop; the values it carries after the last iteration."""
        following = self.add(loop.index, 1)
        self._set_phis(loop, following, values)
        again = self.compare("slt", self.index, following, loop.limit)
        done = self.fresh("loop") + ".done"
        self.do(f"br i1 {again}, label %{loop.label}, label %{done}")
        self.start_block(done)
        return list(values)

    def begin_while(self, count: Value, carried: Sequence[tuple[str, Value]]) -> Loop:
        """``count`` iterations, perhaps none; close with ``end_while``."""
        label = self.fresh("loop")
        entry = self.block
        self.do(f"br label %{label}.head")
        self.start_block(f"{label}.head")
        index = self.fresh()
        kinds = [kind for kind, _ in carried]
        names = [self.fresh() for _ in carried]
        patch = len(self.lines)
        self.lines.append("")
        more = self.compare("slt", self.index, index, count)
        self.do(f"br i1 {more}, label %{label}.body, label %{label}.done")
        self.start_block(f"{label}.body")
        return Loop(label, index, names, kinds, patch, count, entry, [v for _, v in carried])

    def end_while(self, loop: Loop, values: Sequence[Value]) -> list[Value]:
        """Close the loop; the values it carries after the last iteration."""
        self._set_phis(loop, self.add(loop.index, 1), values)
        self.do(f"br label %{loop.label}.head")
        self.start_block(f"{loop.label}.done")
        return loop.carried

    def begin_times(self, count: int, carried: Sequence[tuple[str, Value]]) -> Loop:
        """``count`` iterations: > 0, or perhaps none if free; close with ``end_times``."""
        if is_free(count):
            return self.begin_while(str(count), carried)
        return self.begin_loop(count, carried)

    def end_times(self, loop: Loop, count: int, values: Sequence[Value]) -> list[Value]:
        """Close the loop; the values it carries after the last iteration."""
        if is_free(count):
            return self.end_while(loop, values)
        return self.end_loop(loop, values)

    def _set_phis(self, loop: Loop, following: Value, values: Sequence[Value]) -> None:
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
    def when(self, condition: Value) -> Iterator[None]:
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
        condition: Value,
        otherwise: Sequence[tuple[str, Value]],
        body: Callable[[], Sequence[Value]],
    ) -> list[Value]:
        """The values of ``body`` if the i1 ``condition`` holds, else those given with types."""
        before = self.block
        with self.when(condition):
            values = body()
            after = self.block
        return [
            self.emit(f"phi {kind} [ {value}, %{after} ], [ {other}, %{before} ]")
            for (kind, other), value in zip(otherwise, values, strict=True)
        ]

    # -- the whole

    def kernel(self, arguments: int) -> list[Value]:
        """Open ``void @kernel(ptr %args, i64 %begin, i64 %end)``; load its pointers.

        Narrower indices have the same interface.
        """
        self.start_block("entry")
        if self.index != I64:
            for name in ITEMS:
                self.do(f"{name} = trunc i64 {name}.given to {self.index}")
        return [
            self.load("ptr", self.at("%args", 8 * index), align=8) for index in range(arguments)
        ]

    def finish(self) -> str:
        """The module text."""
        self.do("ret void")
        items = ", ".join(f"i64 {n if self.index == I64 else n + '.given'}" for n in ITEMS)
        head = f"define void @kernel(ptr noalias readonly %args, {items}) nounwind {{"
        declared = "\n".join(sorted(self.declarations.values()))
        body = "\n".join([self.lines[0], *self.rooms, *self.lines[1:]])
        return f"{declared}\n\n{head}\n{body}\n}}\n"
