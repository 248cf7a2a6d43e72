"""The function by which several threads of the caller run a program together.

::

    int NAME_run_part(..., int part, int parts, void (*barrier)(void *user), void *user);

Each thread computes a part of the items of a kernel; ``barrier`` lets them wait for each other.  A
kernel with little work is computed by the first one alone.  Items may overlap in their last tiles,
where two threads write equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.aot.run_function import RunFunction
from quantglow.backends.llvm.builder import I64, Value
from quantglow.backends.llvm.emitted import Place, Pointer

LEAST_WORK = 250_000
"""Minimum estimated operations of a kernel that threads share: the time of about one barrier."""

ARGUMENTS = "i32 %part, i32 %parts, ptr %barrier, ptr %user"


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
        first, end = self._border("%part", row.items), self._border(self._next, row.items)
        b.do(f"call void @{self.kernels[number]}(ptr %args, i64 {first}, i64 {end})")
        self._wait()

    def _catch_up(self) -> None:
        if self.is_behind:
            self._wait()
            self.is_behind = False

    def _holds(self, condition: Pointer) -> Value:
        """A thread must not change the condition before all have read it."""
        found = super()._holds(condition)
        if condition.place is not Place.SIZE:
            self._wait()
        return found

    def _wait(self) -> None:
        self.b.do("call void %barrier(ptr %user)")

    @property
    def _is_first(self) -> Value:
        return self.b.compare("eq", "i32", "%part", "0")

    @property
    def _next(self) -> Value:
        return self.b.op("add", "i32", "%part", "1")

    def _border(self, part: Value, items: int) -> Value:
        """The first item of a part: ``items * part // parts``."""
        b = self.b
        product = b.op("mul", I64, b.cast("zext", "i32", part, I64), str(items))
        return b.op("udiv", I64, product, b.cast("zext", "i32", "%parts", I64))
