"""Rows of a depthwise convolution's input interleaved element by element, for dot products.

A stack of four rows of bytes (two of 16-bit words) becomes vectors whose lanes hold the elements
of all its rows of one channel, in ``channel_order``.  Rows as wide as a vector are interleaved
within the groups that packs interleave, with every instruction set.  Rows half as wide lie two in a
vector and are gathered by permutations of bytes across it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.isa.interface import InstructionSet
from quantglow.backends.llvm.kernels.contraction.channel_order import channel_order


@dataclass(frozen=True)
class Stack:
    """Rows of an input that fill ``vectors`` vectors when interleaved.

    ``order``: which row is at each position.
    """

    rows: Sequence[Value]
    vectors: int
    order: Sequence[int]

    @property
    def depth(self) -> int:
        """Rows of a full stack."""
        return len(self.order)


def interleave(b: Builder, isa: InstructionSet, stack: Stack, wanted: Sequence[int]) -> list[Value]:
    """The ``wanted`` vectors of a stack."""
    depth = stack.depth
    if stack.vectors < depth:
        return [_gathered(b, isa, stack, index) for index in wanted]
    loaded = [_as_bytes(b, isa, row, depth) for row in stack.rows]
    rows = [loaded[index] for index in stack.order]
    if depth == 2:
        return [_zip(b, isa, rows[0], rows[1], 2, half) for half in wanted]
    found: list[Value] = []
    for half in (0, 1):
        vectors = [g for g in (2 * half, 2 * half + 1) if g in wanted]
        if vectors:
            upper = _zip(b, isa, rows[0], rows[1], 1, half)
            lower = _zip(b, isa, rows[2], rows[3], 1, half)
            found += [_zip(b, isa, upper, lower, 2, g % 2) for g in vectors]
    return found


def _as_bytes(b: Builder, isa: InstructionSet, row: Value, depth: int) -> Value:
    if depth == STEP_NBYTES:
        return row
    nbytes = isa.vector_nbytes
    return b.cast("bitcast", vector(nbytes // 2, "i16"), row, vector(nbytes, "i8"))


def _gathered(b: Builder, isa: InstructionSet, stack: Stack, index: int) -> Value:
    """Vector ``index`` of a stack of byte rows of half a vector each."""
    count, rows = isa.vector_nbytes, stack.rows
    half, whole = vector(count // 2, "i8"), vector(count, "i8")
    padded = [*rows, "poison"]
    pairs = [
        b.shuffle(half, padded[i], padded[i + 1], range(count)) for i in range(0, len(rows), 2)
    ]
    channels = channel_order(isa, stack.vectors, stack.vectors)[index]
    order = [(count // 2) * row + int(channel) for channel in channels for row in stack.order]
    return b.shuffle(whole, pairs[0], [*pairs, "poison"][1], order)


def _zip(b: Builder, isa: InstructionSet, x: Value, y: Value, size: int, half: int) -> Value:
    """Interleave the low (0) or high (1) halves of groups, by ``size`` bytes."""
    whole, count = vector(isa.vector_nbytes, "i8"), isa.vector_nbytes // size
    kind = vector(count, f"i{8 * size}")
    if size > 1:
        x, y = (b.cast("bitcast", whole, v, kind) for v in (x, y))
    in_group = isa.group_nbytes // size
    mask = [
        lane + half * (in_group // 2) + i + other
        for lane in range(0, count, in_group)
        for i in range(in_group // 2)
        for other in (0, count)
    ]
    mixed = b.shuffle(kind, x, y, mask)
    return b.cast("bitcast", kind, mixed, whole) if size > 1 else mixed
