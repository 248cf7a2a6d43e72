"""Rows of a depthwise convolution's input interleaved element by element, for dot products.

A stack of four rows of bytes (two of 16-bit words) becomes vectors whose lanes hold the elements
of all its rows of one channel, in ``channel_order``.  Rows as wide as a vector are interleaved
within 128-bit lanes, on every level.  Rows half as wide lie two in a vector and are gathered by
permutations of bytes across it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.kernels.contraction.dot import STEP_NBYTES, DotProduct
from quantglow.backends.llvm.kernels.contraction.epilogue import channel_order
from quantglow.backends.llvm.kernels.depthwise.plan import LANE_NBYTES


def interleave(
    b: Builder, dot: DotProduct, rows: list[Value], run: int, depth: int, wanted: Sequence[int]
) -> list[Value]:
    """The ``wanted`` of the ``run`` vectors of a stack of up to ``depth`` rows; what stands for
    rows that are not there is arbitrary."""
    if run < depth:
        return [_gathered(b, dot, rows, run, index) for index in wanted]
    rows = [_as_bytes(b, dot, row, depth) for row in rows]
    rows += [rows[0]] * (depth - len(rows))
    if depth == 2:
        return [_zip(b, dot, rows[0], rows[1], 2, half) for half in wanted]
    found: list[Value] = []
    for half in (0, 1):
        vectors = [g for g in (2 * half, 2 * half + 1) if g in wanted]
        if vectors:
            upper = _zip(b, dot, rows[0], rows[1], 1, half)
            lower = _zip(b, dot, rows[2], rows[3], 1, half)
            found += [_zip(b, dot, upper, lower, 2, g % 2) for g in vectors]
    return found


def _as_bytes(b: Builder, dot: DotProduct, row: Value, depth: int) -> Value:
    return row if depth == STEP_NBYTES else b.cast("bitcast", dot.words_kind, row, dot.bytes_kind)


def _gathered(b: Builder, dot: DotProduct, rows: list[Value], run: int, index: int) -> Value:
    """Vector ``index`` of a stack of byte rows of half a vector each."""
    count = dot.lanes * STEP_NBYTES
    half, whole = vector(count // 2, "i8"), vector(count, "i8")
    padded = [*rows, "poison"]
    pairs = [
        b.shuffle(half, padded[i], padded[i + 1], range(count)) for i in range(0, len(rows), 2)
    ]
    channels = channel_order(dot.lanes, run, run)[index]
    order = [
        (count // 2) * (row if row < len(rows) else 0) + int(channel)
        for channel in channels
        for row in range(STEP_NBYTES)
    ]
    return b.shuffle(whole, pairs[0], [*pairs, "poison"][1], order)


def _zip(b: Builder, dot: DotProduct, x: Value, y: Value, size: int, half: int) -> Value:
    """Interleave the low (0) or high (1) halves of 128-bit lanes, by ``size`` bytes."""
    count = dot.lanes * STEP_NBYTES // size
    kind = vector(count, f"i{8 * size}")
    if size > 1:
        x, y = (b.cast("bitcast", dot.bytes_kind, v, kind) for v in (x, y))
    per_lane = LANE_NBYTES // size
    mask = [
        lane + half * (per_lane // 2) + i + other
        for lane in range(0, count, per_lane)
        for i in range(per_lane // 2)
        for other in (0, count)
    ]
    mixed = b.shuffle(kind, x, y, mask)
    return b.cast("bitcast", kind, mixed, dot.bytes_kind) if size > 1 else mixed
