"""Loads and stores of vectors: those with few valid lanes, and of elements that lie apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.vectors import Piece, load, store
from quantglow.codegen.llvm.values import (
    FLOAT,
    I8,
    I16,
    I32,
    Type,
    Value,
    poison,
    splat,
    vector,
    zero,
)
from quantglow.ir.symbolic.size import Dim, Size, decide
from quantglow.ir.types import DType

ELEMENT_NBYTES = {I8: 1, I16: 2, I32: 4, FLOAT: 4}


def load_partial(
    b: Builder, target: Target, element: Type, lanes: int, valid: int | Value, pointer: Value
) -> Value:
    """A vector whose first ``valid`` lanes (or those of a mask) come from memory; no other byte is
    read."""
    if isinstance(valid, str) or valid == lanes or target.isa.has_masks:
        return load(b, element, Piece(0, lanes, valid), pointer)
    result: Value = poison(vector(lanes, element))
    for start, length in _powers(valid):
        part = b.load(vector(length, element), b.at(pointer, start * ELEMENT_NBYTES[element]))
        result = _insert(b, element, lanes, result, part, start, length)
    return result


def store_partial(
    b: Builder,
    target: Target,
    element: Type,
    lanes: int,
    valid: int | Value,
    value: Value,
    pointer: Value,
) -> None:
    """Write the first ``valid`` lanes, or those of a mask; no other byte is written.

    Masks are left for what two plain stores cannot do: a masked store delays later loads of the
    bytes it leaves alone, and LLVM 22 turns a truncation under a mask of one lane into a store of
    the whole int32 lane.
    """
    if (
        isinstance(valid, str)
        or valid == lanes
        or (target.isa.has_masks and len(list(_powers(valid))) > 2)
    ):
        store(b, element, Piece(0, lanes, valid), value, pointer)
        return
    kind = vector(lanes, element)
    for start, length in _powers(valid):
        if length == 1:
            part = b.extract(value, start)
        else:
            part = b.shuffle(kind, value, "poison", range(start, start + length))
        b.store(vector(length, element), part, b.at(pointer, start * ELEMENT_NBYTES[element]))


def _insert(
    b: Builder, element: Type, lanes: int, base: Value, part: Value, start: int, length: int
) -> Value:
    """``base`` with lanes from ``start`` replaced by ``part``."""
    kind = vector(lanes, element)
    if length == 1:
        return b.insert(base, part, start)
    wide = b.shuffle(vector(length, element), part, "poison", [i % length for i in range(lanes)])
    inside = [lanes + i if start <= i < start + length else i for i in range(lanes)]
    return b.shuffle(kind, base, wide, inside)


def _powers(count: int) -> Iterator[tuple[int, int]]:
    """Cut ``count`` lanes in pieces of powers of two, the largest first."""
    start = 0
    while start < count:
        length = 1 << ((count - start).bit_length() - 1)
        yield start, length
        start += length


def load_strided(
    b: Builder, element: Type, itemsize: int, pointer: Value, stride: Dim, piece: Piece
) -> Value:
    """Lanes ``pointer + (start + i) * stride``; nothing beyond the active lanes is read."""
    if decide(stride == itemsize):
        return vectors.load(b, element, piece, b.at(pointer, piece.start * stride))
    if decide(stride == 0):
        return b.broadcast(piece.lanes, element, b.load(element, pointer))
    if piece.lanes == 1:
        return b.load(element, b.at(pointer, piece.start * stride))
    if decide(stride == -itemsize) and isinstance(piece.active, int):
        return _load_reversed(b, element, b.at(pointer, piece.start * stride), itemsize, piece)
    steps = (2 * itemsize, 3 * itemsize, 4 * itemsize)
    if not isinstance(stride, Size) and stride in steps and piece.active == piece.lanes:
        return _load_picked_lanes(
            b, element, b.at(pointer, piece.start * stride), stride // itemsize, piece
        )
    value: Value = zero(vector(piece.lanes, element))
    for lane in range(piece.count):
        scalar = b.load(element, b.at(pointer, (piece.start + lane) * stride))
        value = b.insert(value, scalar, lane)
    return value


def _load_reversed(b: Builder, element: Type, pointer: Value, itemsize: int, piece: Piece) -> Value:
    """The elements from ``pointer`` backwards."""
    last = piece.count - 1
    raw = vectors.load(b, element, replace(piece, start=0), b.at(pointer, -last * itemsize))
    order = [max(last - lane, 0) for lane in range(piece.lanes)]
    return b.shuffle(vector(piece.lanes, element), raw, "poison", order)


def _load_picked_lanes(b: Builder, element: Type, pointer: Value, step: int, piece: Piece) -> Value:
    """Every ``step``-th of the elements from ``pointer``, without reading past the last one."""
    width = (piece.lanes - 1) * step + 1
    kind = vector(width, element)
    return b.shuffle(kind, b.load(kind, pointer), "poison", range(0, width, step))


def store_strided(
    b: Builder,
    element: Type,
    itemsize: int,
    pointer: Value,
    stride: Dim,
    piece: Piece,
    value: Value,
) -> None:
    """Write the active lanes to ``pointer + (start + i) * stride``."""
    if decide(stride == itemsize) or piece.lanes == 1:
        vectors.store(b, element, piece, value, b.at(pointer, piece.start * stride))
        return
    for lane in range(piece.count):
        scalar = b.extract(value, lane)
        b.store(element, scalar, b.at(pointer, (piece.start + lane) * stride))


def store_results(
    b: Builder,
    target: Target,
    dtype: DType,
    pointer: Value,
    stride: Dim,
    group: Sequence[Piece],
    values: Sequence[Value],
) -> None:
    """Write lanes (int32 for integers of up to 32 bits) as ``dtype``; neighboring vectors of bytes
    in one store."""
    full = all(p.active == p.lanes == target.f32_lanes for p in group)
    if dtype.nbytes == 1 and full and len(group) == 4 and decide(stride == 1):
        packed = vectors.pack_bytes(b, target, values, dtype is DType.I8)
        b.store(vector(target.vector_nbytes, I8), packed, b.at(pointer, group[0].start))
        return
    element = vectors.ELEMENTS[dtype]
    for piece, value in zip(group, values, strict=True):
        whole = dtype in (DType.F32, DType.I64)
        narrow = value if whole else vectors.narrow(b, piece.lanes, value, element)
        store_strided(b, element, dtype.nbytes, pointer, stride, piece, narrow)


def load_lanes(b: Builder, dtype: DType, pointer: Value, stride: Dim, piece: Piece) -> Value:
    """Elements of a tensor as float32, int64, or (integers of up to 32 bits) int32 lanes."""
    element = vectors.ELEMENTS[dtype]
    raw = load_strided(b, element, dtype.nbytes, pointer, stride, piece)
    if dtype in (DType.F32, DType.I64):
        return raw
    signed = dtype not in (DType.U8, DType.BOOL)
    return vectors.widen(b, piece.lanes, element, raw, signed)


def load_kind(b: Builder, dtype: DType, pointer: Value, stride: Dim, piece: Piece) -> Value:
    """``load_lanes``, but of bool the bits: any byte other than 0 is true."""
    if dtype is not DType.BOOL:
        return load_lanes(b, dtype, pointer, stride, piece)
    raw = load_strided(b, I8, 1, pointer, stride, piece)
    kind = vector(piece.lanes, I8)
    return b.compare("ne", kind, raw, splat(kind, "0"))


def interleave_vectors(b: Builder, element: Type, lanes: int, parts: Sequence[Value]) -> Value:
    """``parts[0][0], parts[1][0], …, parts[0][1], …`` as one vector."""
    if lanes == 1:
        value = poison(vector(len(parts), element))
        for index, part in enumerate(parts):
            value = b.insert(value, part, index)
        return value
    joined, width = list(parts), lanes
    count = len(parts)
    while len(joined) > 1:
        kind = vector(width, element)
        if len(joined) % 2:
            joined.append(poison(kind))
        pairs = range(0, len(joined), 2)
        joined = [b.shuffle(kind, joined[i], joined[i + 1], range(2 * width)) for i in pairs]
        width *= 2
    order = [part * lanes + lane for lane in range(lanes) for part in range(count)]
    return b.shuffle(vector(width, element), joined[0], "poison", order)


def transpose_square(b: Builder, element: Type, rows: Sequence[Value]) -> list[Value]:
    """Rows of a square as its columns: interleaving the halves log2(n) times."""
    count = len(rows)
    kind, half = vector(count, element), count // 2
    low = [lane // 2 + lane % 2 * count for lane in range(count)]
    high = [half + lane for lane in low]
    current, stages = list(rows), count.bit_length() - 1
    for _ in range(stages):
        pairs = [(current[i], current[i + half]) for i in range(half)]
        current = [b.shuffle(kind, x, y, order) for x, y in pairs for order in (low, high)]
    return current
