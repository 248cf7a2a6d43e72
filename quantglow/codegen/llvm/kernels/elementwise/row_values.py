"""Values of an expression by rows: the lanes of one piece of a row, and what rows share.

Parts that are the same in every row, such as factors of channels, are computed once in a call of
the kernel, and read from memory of its own as one operand more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import load_partial
from quantglow.codegen.llvm.kernels.vector.loops import LoopAxis
from quantglow.codegen.llvm.kernels.vector.scalars import LANE_TYPES, Scalars
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.codegen.llvm.values import I8, Value, splat, vector
from quantglow.ir.ops.expression import Expr, arg
from quantglow.ir.ops.functions import ROW_FUNCTIONS, dtype_kind
from quantglow.ir.symbolic.size import Dim, Size, decide, likely, prod, surely_divides
from quantglow.ir.types import DType

ENOUGH_ROWS = 8
"""Minimum number of rows for which it pays to keep parts."""
KEPT_NBYTES = 16 * 1024
"""Maximum size of kept rows, in bytes: they lie on the stack, and stay in the first-level cache."""
ITEM_NBYTES = 4
"""Bytes of a float32 or int32."""
_DTYPES = {"f": DType.F32, "i": DType.I32}


@dataclass(frozen=True)
class RowParts:
    """``expression`` in which operands from ``len(dtypes) - len(parts)`` on are the ``parts`` of
    the original one.  A row of ``axes`` holds ``repeats`` rows of the original.
    """

    expression: Expr
    parts: tuple[Expr, ...]
    dtypes: tuple[DType, ...]
    axes: tuple[LoopAxis, ...]
    repeats: int

    @property
    def row_nbytes(self) -> Dim:
        """Bytes of one part in a row of the original."""
        return self.axes[-1].size // self.repeats * ITEM_NBYTES

    @property
    def memory_nbytes(self) -> int:
        """Size of the memory of one part: its rows, or the most that free rows may need."""
        nbytes = self.repeats * self.row_nbytes
        return KEPT_NBYTES // len(self.parts) if isinstance(nbytes, Size) else nbytes


def row_parts(
    expression: Expr, axes: Sequence[LoopAxis], dtypes: Sequence[DType], step: int
) -> RowParts:
    """``axes`` are those of the result, then of operands of ``dtypes``.  Short rows are joined
    where that gives more whole groups of ``step`` elements.
    """
    plain = RowParts(expression, (), tuple(dtypes), tuple(axes), 1)
    if len(axes) < 2 or likely(prod(axis.size for axis in axes[:-1])) < ENOUGH_ROWS:
        return plain
    strides = [[axis.strides[i + 1] for axis in axes[:-1]] for i in range(len(dtypes))]
    same = {i for i, steps in enumerate(strides) if not any(decide(s != 0) for s in steps)}
    kinds = tuple(map(dtype_kind, dtypes))
    parts = tuple(dict.fromkeys(_largest_invariants(expression, same, kinds)))
    if not parts:
        return plain
    arguments = {part: arg(len(dtypes) + i) for i, part in enumerate(parts)}
    row_expression = _substitute(expression, arguments)
    joined = same.isdisjoint(_operands(row_expression))
    repeats = _repeats(axes, same, len(parts), step) if joined else 1
    if all(part.op == "arg" for part in parts) and repeats == 1:
        return plain
    if decide(repeats * axes[-1].size * len(parts) * ITEM_NBYTES > KEPT_NBYTES):
        return plain
    return RowParts(
        row_expression,
        parts,
        (*dtypes, *(_DTYPES[part.kind(kinds)] for part in parts)),
        _with_parts(axes, len(parts), repeats),
        repeats,
    )


def _largest_invariants(expr: Expr, same: set[int], kinds: tuple[str, ...]) -> Iterator[Expr]:
    """The largest parts that depend on operands in ``same`` and on nothing else."""
    used = set(_operands(expr))
    if used and used <= same and expr.kind(kinds) in _DTYPES:
        yield expr
        return
    for inner in expr.args:
        yield from _largest_invariants(inner, same, kinds)


def _operands(expr: Expr) -> Iterator[int]:
    if expr.op == "arg":
        yield int(expr.value)
    for inner in expr.args:
        yield from _operands(inner)


def _substitute(expr: Expr, replacements: dict[Expr, Expr]) -> Expr:
    if expr in replacements:
        return replacements[expr]
    return Expr(expr.op, tuple(_substitute(inner, replacements) for inner in expr.args), expr.value)


def _repeats(axes: Sequence[LoopAxis], same: set[int], parts: int, step: int) -> int:
    """Number of rows to join: as few as leave the fewest elements beside groups of ``step``."""
    rows, row = axes[-2:]
    moving = [i for i in range(len(row.strides)) if i - 1 not in same]
    length = row.size
    if isinstance(length, Size):
        return 1
    if any(decide(rows.strides[i] != length * row.strides[i]) for i in moving):
        return 1
    most = KEPT_NBYTES // (parts * length * ITEM_NBYTES)
    most = min(most, likely(rows.size), step)
    counts = [n for n in range(1, most + 1) if surely_divides(n, rows.size)]
    return min(counts or [1], key=lambda n: (n * length % step / n, n))


def _with_parts(axes: Sequence[LoopAxis], parts: int, repeats: int) -> tuple[LoopAxis, ...]:
    """The axes with strides of the parts, and ``repeats`` rows joined."""
    *outer, row = axes
    remaining = [LoopAxis(a.size, (*a.strides, *[0] * parts)) for a in outer]
    last = LoopAxis(row.size * repeats, (*row.strides, *[ITEM_NBYTES] * parts))
    if repeats > 1:
        rows = remaining.pop()
        if isinstance(rows.size, Size) or rows.size > repeats:
            strides = tuple(stride * repeats for stride in rows.strides)
            remaining.append(LoopAxis(rows.size // repeats, strides))
    return (*remaining, last)


@dataclass
class RowValues(Scalars):
    """Expressions of one row on ``valid`` of ``lanes`` elements.

    ``operands`` are pointers to the first of these elements; where the stride is 0, to the only
    element of the row.  ``shared`` has the lanes of what is the same in all of the row.
    """

    strides: Sequence[Dim] = ()
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
        if not decide(self.strides[index] != 0) or self.lanes == 1:
            raw = self.b.load(element, pointer)
            raw = self.b.broadcast(self.lanes, element, raw)
        else:
            raw = load_partial(self.b, self.target, element, self.lanes, self.valid, pointer)
        if dtype is DType.BOOL:
            kind = vector(self.lanes, I8)
            return self.b.compare("ne", kind, raw, splat(kind, "0"))
        if dtype is DType.F32:
            return raw
        return vectors.widen(self.b, self.lanes, element, raw, dtype is not DType.U8)


@dataclass
class Invariants:
    """Values that are the same in all of a row, computed once: sums, maxima, functions of them."""

    row: RowValues
    strides: Sequence[Dim]
    lanes: int
    shared: dict[Expr, Value] = field(default_factory=dict)

    def is_constant(self, expr: Expr) -> bool:
        """Whether a row has one value of this expression."""
        if expr.op == "arg":
            return not decide(self.strides[int(expr.value)] != 0)
        return expr.op in ROW_FUNCTIONS or all(map(self.is_constant, expr.args))

    def record(self, reduction: Expr, value: Value) -> None:
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


def kept_values(stages: Sequence[Expr], invariants: Invariants) -> list[set[Expr]]:
    """For each stage but the last, the largest parts that later ones need again."""
    saves: list[set[Expr]] = []
    for index, stage in enumerate(stages[:-1]):
        before = set[Expr]().union(*saves)
        later = {e for s in stages[index + 1 :] for e in _varying(s, invariants, before)}
        saves.append(set(_largest_shared(stage, invariants, before, later)))
    return saves


def _varying(stage: Expr, invariants: Invariants, saved: set[Expr]) -> Iterator[Expr]:
    """The parts of a pass that differ from element to element, kept ones as a whole."""
    if invariants.is_constant(stage) or stage in saved:
        return
    yield stage
    for inner in stage.args:
        yield from _varying(inner, invariants, saved)


def _largest_shared(
    stage: Expr, invariants: Invariants, saved: set[Expr], later: set[Expr]
) -> Iterator[Expr]:
    """The largest parts of a pass that ``later`` ones have too; floats that are no operands."""
    if invariants.is_constant(stage) or stage in saved:
        return
    if stage in later and stage.args and invariants.row.kind_of(stage) == "f":
        yield stage
        return
    for inner in stage.args:
        yield from _largest_shared(inner, invariants, saved, later)
