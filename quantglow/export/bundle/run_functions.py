"""Functions that run a program, as LLVM IR text: one call after the other, without a table.

::

    int NAME_run(void *arena, const void *const *inputs, void *const *outputs);

Everything that changes is in the arena, in the outputs and on the stack.

::

    int NAME_run_part(..., int part, int parts, void (*barrier)(void *user), void *user);

Several threads of the caller run a program together.  Each computes a part of the items of a
kernel; ``barrier`` lets them wait for each other.  A kernel with little work is computed by the
first one alone.  Items may overlap in their last tiles, where two threads write equal bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.call_profile import call_name
from quantglow.codegen.llvm.emitted import EmittedProgram, MemoryRegion, Pointer
from quantglow.codegen.llvm.table_walk import ENTRY_NBYTES, LOOP_WORDS, MOVING_WORDS
from quantglow.codegen.llvm.values import I1, I8, I32, I64, PTR, Operand, Value
from quantglow.export.bundle.constants import Placement, Weights
from quantglow.support.classes import Concise, cached_property

SLOT_NBYTES = 8
"""Bytes of an argument of a kernel; a pointer of 32 bits is its lower half."""

OK, NULL, MISALIGNED, OUT_OF_RANGE, REFUSED, UNSUPPORTED = range(6)
"""Results of a run."""

Moved = Mapping[tuple[int, int], Value]
"""Row and position of a pointer that moves in a loop -> bytes by which it has moved."""

LEAST_WORK = 250_000
"""Minimum estimated operations of a kernel that threads share: the time of about one barrier."""

ARGUMENTS = "i32 %part, i32 %parts, ptr %barrier, ptr %user"


ARGS, ARENA, CHECKS = (Value.of(f"%{name}", PTR) for name in ("args", "arena", "checks"))
"""Pointers: to the arguments of a kernel, to the arena, and to indices that were out of range."""


@dataclass(eq=False, repr=False)
class RunFunction(Concise):
    """The function ``name`` that runs a program.

    ``kernels``: the function of each row.  ``clear``: the one of ``program_object.clearing``.
    ``arena_align``: alignment of the arena, in bytes.
    ``is_observed``: it takes two arguments more, ``void observer(void *user, int call, int phase)``
    and ``user``, and calls the observer before (phase 0) and after (1) each kernel.
    """

    name: str
    program: EmittedProgram
    kernels: Sequence[str]
    clear: str
    weights: Weights
    weights_name: str
    arena_align: int
    is_observed: bool
    labels: list[str] = field(default_factory=list)
    b: Builder = field(default_factory=Builder)

    def text(self) -> str:
        """``define i32 @name(...)``; kernels and weights are declared elsewhere."""
        b = self.b
        b.start_block("entry")
        self._check_callers_memory()
        permission = self._permission
        if permission:
            asked = b.emit(I64, f"call i64 @{self._permission_name}()")
            self._refuse(REFUSED, [b.compare("ne", I64, asked, "0")])
        self._clear()
        for number in range(self.program.count):
            self._row(number, {})
        self._catch_up()
        self._return()
        lines = [*b.lines[:1], *self._rooms, *b.rooms, *b.lines[1:]]
        section = self.program.target.object_format.section(f".text.{self.name}")
        head = f"define i32 @{self.name}({self.parameters}) nounwind{section[1:]} {{"
        return "\n".join([permission, head, *lines, "}", ""])

    @property
    def _permission_name(self) -> str:
        return f"{self.name}_permission"

    @property
    def _permission(self) -> str:
        """A function that asks for registers that the operating system gives on request only."""
        target = self.program.target
        tiles = target.isa.tiles
        return "" if tiles is None else tiles.permission(self._permission_name, target.triple)

    @property
    def parameters(self) -> str:
        """The arguments, with their types."""
        names = ["arena", "inputs", "outputs"]
        if self.weights.placement is Placement.BIN:
            names.insert(1, "weights")
        if self.is_observed:
            names += ["observer", "user"]
        return ", ".join(f"ptr %{name}" for name in names)

    @property
    def _rooms(self) -> Iterator[str]:
        """Memory on the stack: arguments of one kernel, and indices that were out of range."""
        slots = max((len(row.pointers) for row in self.program.rows), default=0)
        yield f"  %args = alloca [{slots} x i64], align {SLOT_NBYTES}"
        if count := len(self.program.indexings):
            yield f"  %checks = alloca [{count} x i64], align {SLOT_NBYTES}"
            yield f"  store [{count} x i64] zeroinitializer, ptr %checks, align {SLOT_NBYTES}"

    # -- memory of the caller

    @cached_property
    def _ends(self) -> dict[MemoryRegion, list[Value]]:
        """Addresses of inputs and outputs."""
        return {
            place: [self.b.load(PTR, self._element(array, index)) for index in range(len(ports))]
            for place, array, ports in (
                (MemoryRegion.INPUT, "%inputs", self.program.inputs),
                (MemoryRegion.OUTPUT, "%outputs", self.program.outputs),
            )
        }

    def _element(self, array: Operand, index: int) -> Value:
        return self.b.emit(PTR, f"getelementptr ptr, ptr {array}, i64 {index}")

    def _check_callers_memory(self) -> None:
        """Return an error for null pointers and for memory that is not aligned."""
        b = self.b
        pointers = ["%arena"] * bool(self.program.arena_nbytes) + ["%inputs", "%outputs"]
        if self.weights.placement is Placement.BIN:
            pointers.insert(0, "%weights")
        self._refuse(NULL, [b.compare("eq", PTR, p, "null") for p in pointers])
        views = [v for ports in (self.program.inputs, self.program.outputs) for _, v in ports]
        ends = [pointer for pointers in self._ends.values() for pointer in pointers]
        self._refuse(NULL, [b.compare("eq", PTR, p, "null") for p in ends])
        aligned = [(p, self.arena_align) for p in pointers if p in ("%arena", "%weights")]
        aligned += [(p, v.type.dtype.nbytes) for p, v in zip(ends, views, strict=True)]
        self._refuse(MISALIGNED, [self._is_misaligned(p, nbytes) for p, nbytes in aligned])

    def _is_misaligned(self, pointer: Operand, nbytes: int) -> Value:
        address = self.b.cast("ptrtoint", PTR, pointer, I64)
        return self.b.compare("ne", I64, self.b.op("and", I64, address, str(nbytes - 1)), "0")

    def _refuse(self, result: int, conditions: Sequence[Value]) -> None:
        """Return ``result`` if one of the conditions holds."""
        b = self.b
        if conditions:
            holds = conditions[0]
            for condition in conditions[1:]:
                holds = b.op("or", I1, holds, condition)
            with b.when(holds):
                b.do(f"ret i32 {result}")
                b.start_block(b.fresh("never"))

    def _clear(self) -> None:
        """Zeros where kernels read what nobody wrote."""
        if self.program.unwritten:
            self.b.do(f"call void @{self.clear}(ptr %arena)")

    # -- calls

    def _row(self, number: int, moved: Moved) -> None:
        if self.program.rows[number].body:
            self._loop(number)
        else:
            self._kernel(number, moved)

    def _kernel(self, number: int, moved: Moved) -> None:
        """Set the arguments of a kernel, and call it for all of its items."""
        b, row = self.b, self.program.rows[number]
        for position, pointer in enumerate(row.pointers):
            slot = b.at(ARGS, SLOT_NBYTES * position)
            if pointer.place is MemoryRegion.SIZE:
                b.store(I64, str(pointer.offset_bytes), slot, SLOT_NBYTES)
            else:
                address = b.at(self._address(pointer), moved.get((number, position), 0))
                b.store(PTR, address, slot, SLOT_NBYTES)
        self._observe(0)
        self._call(number)
        self._observe(1)
        self.labels.append(call_name(row.step))

    def _call(self, number: int) -> None:
        """Call a kernel whose arguments are set."""
        items = self.program.rows[number].items
        self.b.do(f"call void @{self.kernels[number]}(ptr %args, i64 0, i64 {items})")

    def _catch_up(self) -> None:
        """Wait until all that is read next is written."""

    def _observe(self, phase: int) -> None:
        if self.is_observed:
            self.b.do(f"call void %observer(ptr %user, i32 {len(self.labels)}, i32 {phase})")

    def _address(self, pointer: Pointer) -> Value:
        b = self.b
        match pointer.place:
            case MemoryRegion.ARENA:
                return b.at(ARENA, pointer.offset_bytes)
            case MemoryRegion.CHECK:
                return b.at(CHECKS, pointer.offset_bytes)
            case MemoryRegion.CONSTANT:
                first = self.weights.offset_bytes(pointer.index)
                return b.at(self._weights, first + pointer.offset_bytes)
            case MemoryRegion.INPUT | MemoryRegion.OUTPUT:
                return b.at(self._ends[pointer.place][pointer.index], pointer.offset_bytes)
        raise AssertionError(f"{pointer.place} is no memory")

    @property
    def _weights(self) -> Value:
        is_given = self.weights.placement is Placement.BIN
        return Value.of("%weights" if is_given else f"@{self.weights_name}", PTR)

    # -- loops

    def _loop(self, number: int) -> None:
        """The calls of a body once in each trip, while the condition holds."""
        b, pointers = self.b, self.program.rows[number].pointers
        trips, first, count, _, condition = pointers[:LOOP_WORDS]
        begin = first.offset_bytes // ENTRY_NBYTES
        label, trip = b.fresh("loop"), b.room(I64)
        b.store(I64, "0", trip, SLOT_NBYTES)
        self._catch_up()
        b.do(f"br label %{label}.head")
        b.start_block(f"{label}.head")
        at = b.load(I64, trip, SLOT_NBYTES)
        more = b.compare("slt", I64, at, str(trips.offset_bytes))
        b.do(f"br i1 {more}, label %{label}.asked, label %{label}.done")
        b.start_block(f"{label}.asked")
        if condition.place is not MemoryRegion.SIZE:
            b.do(f"br i1 {self._holds(condition)}, label %{label}.body, label %{label}.done")
            b.start_block(f"{label}.body")
        moved = {place: b.mul(at, nbytes) for place, nbytes in self._strides(pointers)}
        for row in range(begin, begin + count.offset_bytes):
            self._row(row, moved)
        self._catch_up()
        b.store(I64, b.add(at, 1), trip, SLOT_NBYTES)
        b.do(f"br label %{label}.head")
        b.start_block(f"{label}.done")

    def _holds(self, condition: Pointer) -> Value:
        """Whether the condition of a loop holds."""
        return self.b.compare("ne", I8, self.b.load(I8, self._address(condition)), "0")

    def _strides(self, pointers: Sequence[Pointer]) -> Iterator[tuple[tuple[int, int], int]]:
        """Row and position of each pointer that moves in a loop, and its bytes in a trip."""
        for at in range(LOOP_WORDS, len(pointers), MOVING_WORDS):
            _, stride, argument = pointers[at : at + MOVING_WORDS]
            position = int(argument.offset_bytes) // SLOT_NBYTES
            row = bisect_right(self._first, position) - 1
            yield (row, position - self._first[row]), int(stride.offset_bytes)

    @cached_property
    def _first(self) -> list[int]:
        """Position of the first pointer of each row among those of all rows."""
        counts = (len(row.pointers) for row in self.program.rows)
        return list(accumulate(counts, initial=0))[:-1]

    # -- result

    def _return(self) -> None:
        b, code = self.b, "0"
        for index in range(len(self.program.indexings)):
            value = b.load(I64, b.at(CHECKS, SLOT_NBYTES * index), SLOT_NBYTES)
            code = value if code == "0" else b.op("or", I64, code, value)
        if code != "0":
            self._refuse(OUT_OF_RANGE, [b.compare("ne", I64, code, "0")])
        b.do(f"ret i32 {OK}")


@dataclass(eq=False, repr=False)
class PartFunction(RunFunction):
    """``NAME_run_part``; ``is_behind``: only the first thread computed since the last barrier."""

    is_behind: bool = False

    @property
    def parameters(self) -> str:
        """The arguments, with their types."""
        return f"{super().parameters}, {ARGUMENTS}"

    def _clear(self) -> None:
        if self.program.unwritten:
            with self.b.when(self._is_first):
                super()._clear()
            self.is_behind = True

    def _call(self, number: int) -> None:
        row, b = self.program.rows[number], self.b
        if row.items == 1 or row.work < LEAST_WORK:
            with b.when(self._is_first):
                super()._call(number)
            self.is_behind = True
            return
        self._catch_up()
        items = int(row.items)
        first = self._border(Value.of("%part", I32), items)
        end = self._border(self._next, items)
        b.do(f"call void @{self.kernels[number]}(ptr %args, i64 {first}, i64 {end})")
        self._wait()

    def _catch_up(self) -> None:
        if self.is_behind:
            self._wait()
            self.is_behind = False

    def _holds(self, condition: Pointer) -> Value:
        """A thread must not change the condition before all have read it."""
        holds = super()._holds(condition)
        if condition.place is not MemoryRegion.SIZE:
            self._wait()
        return holds

    def _wait(self) -> None:
        self.b.do("call void %barrier(ptr %user)")

    @property
    def _is_first(self) -> Value:
        return self.b.compare("eq", I32, "%part", "0")

    @property
    def _next(self) -> Value:
        return self.b.op("add", I32, "%part", "1")

    def _border(self, part: Value, items: int) -> Value:
        """The first item of a part: ``items * part // parts``."""
        b = self.b
        product = b.op("mul", I64, b.cast("zext", I32, part, I64), str(items))
        return b.op("udiv", I64, product, b.cast("zext", I32, "%parts", I64))
