"""Vectors of which only the first lanes are valid: the last channels of a row."""

from __future__ import annotations

from collections.abc import Iterator

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.vectors import Piece, load, store

ELEMENT_NBYTES = {"i8": 1, "i16": 2, "i32": 4, "float": 4}


def load_partial(
    b: Builder, target: Target, element: str, lanes: int, valid: int | Value, pointer: Value
) -> Value:
    """A vector whose first ``valid`` lanes (or those of a mask) come from memory; no other byte is
    read."""
    if isinstance(valid, str) or valid == lanes or target.isa.has_masks:
        return load(b, element, Piece(0, lanes, valid), pointer)
    result = "poison"
    for start, length in _powers(valid):
        part = b.load(vector(length, element), b.at(pointer, start * ELEMENT_NBYTES[element]))
        result = _insert(b, element, lanes, result, part, start, length)
    return result


def store_partial(
    b: Builder,
    target: Target,
    element: str,
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
            part = b.emit(f"extractelement {kind} {value}, i32 {start}")
        else:
            part = b.shuffle(kind, value, "poison", range(start, start + length))
        b.store(vector(length, element), part, b.at(pointer, start * ELEMENT_NBYTES[element]))


def _insert(
    b: Builder, element: str, lanes: int, base: Value, part: Value, start: int, length: int
) -> Value:
    """``base`` with lanes from ``start`` replaced by ``part``."""
    kind = vector(lanes, element)
    if length == 1:
        return b.emit(f"insertelement {kind} {base}, {element} {part}, i32 {start}")
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
