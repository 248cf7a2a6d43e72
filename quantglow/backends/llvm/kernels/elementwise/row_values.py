"""The lanes of an expression in one piece of a row, and values that all of the row shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quantglow.backends.llvm.builder import Value, splat, vector
from quantglow.backends.llvm.kernels.vector import vectors
from quantglow.backends.llvm.kernels.vector.partial import load_partial
from quantglow.backends.llvm.kernels.vector.scalars import LANE_TYPES, Scalars
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.ops.expression import Expr
from quantglow.ops.functions import ROW_FUNCTIONS
from quantglow.types import DType


@dataclass
class RowValues(Scalars):
    """Expressions of one row on ``valid`` of ``lanes`` elements.

    ``operands`` are pointers to the first of these elements; where the stride is 0, to the only
    element of the row.  ``shared`` has the lanes of what is the same in all of the row.
    """

    strides: Sequence[int] = ()
    valid: int | Value = 0
    shared: dict[Expr, Value] = field(default_factory=dict)

    def value(self, expr: Expr) -> Value:
        if expr in self.shared:
            return self.shared[expr]
        return super().value(expr)

    def _leaf(self, expr: Expr) -> Value:
        if expr.op != "arg":
            return super()._leaf(expr)
        index = int(expr.value)
        dtype, pointer = self.dtypes[index], self.operands[index]
        element = ELEMENTS[dtype]
        if not self.strides[index] or self.lanes == 1:
            raw = self.b.load(element, pointer)
            raw = self.b.broadcast(self.lanes, element, raw)
        else:
            raw = load_partial(self.b, self.target, element, self.lanes, self.valid, pointer)
        if dtype is DType.BOOL:
            kind = vector(self.lanes, "i8")
            return self.b.compare("ne", kind, raw, splat(kind, "0"))
        if dtype is DType.F32:
            return raw
        return vectors.widen(self.b, self.lanes, element, raw, dtype is not DType.U8)


@dataclass
class Invariants:
    """Values that are the same in all of a row, computed once: sums, maxima, functions of them."""

    row: RowValues
    strides: Sequence[int]
    lanes: int
    shared: dict[Expr, Value] = field(default_factory=dict)

    def is_constant(self, expr: Expr) -> bool:
        """Whether a row has one value of this expression."""
        if expr.op == "arg":
            return not self.strides[int(expr.value)]
        return expr.op in ROW_FUNCTIONS or all(map(self.is_constant, expr.args))

    def found(self, reduction: Expr, value: Value) -> None:
        """Note the value of a sum or maximum."""
        self.row.done[reduction] = value

    def prepare(self, expr: Expr) -> None:
        """Compute and broadcast the invariant parts of an expression."""
        for part in self.parts(expr):
            if part not in self.shared:
                value = self.row.value(part)
                element = LANE_TYPES[self.row.kind_of(part)]
                self.shared[part] = self.row.b.broadcast(self.lanes, element, value)

    def parts(self, expr: Expr) -> Iterator[Expr]:
        """The largest invariant parts that are no literals."""
        if not self.is_constant(expr):
            for inner in expr.args:
                yield from self.parts(inner)
        elif expr.args or expr.op == "arg":
            yield expr


def kept_values(stages: Sequence[Expr], known: Invariants) -> list[set[Expr]]:
    """For each stage but the last, the largest parts that later ones need again."""
    saves: list[set[Expr]] = []
    for index, stage in enumerate(stages[:-1]):
        before = set[Expr]().union(*saves)
        later = {e for s in stages[index + 1 :] for e in _varying(s, known, before)}
        saves.append(set(_largest_shared(stage, known, before, later)))
    return saves


def _varying(stage: Expr, known: Invariants, kept: set[Expr]) -> Iterator[Expr]:
    """The parts of a pass that differ from element to element, kept ones as a whole."""
    if known.is_constant(stage) or stage in kept:
        return
    yield stage
    for inner in stage.args:
        yield from _varying(inner, known, kept)


def _largest_shared(
    stage: Expr, known: Invariants, kept: set[Expr], later: set[Expr]
) -> Iterator[Expr]:
    """The largest parts of a pass that ``later`` ones have too; floats that are no operands."""
    if known.is_constant(stage) or stage in kept:
        return
    if stage in later and stage.args and known.row.kind_of(stage) == "f":
        yield stage
        return
    for inner in stage.args:
        yield from _largest_shared(inner, known, kept, later)
