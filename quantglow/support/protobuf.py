"""Messages of protobuf as bytes: their fields, read and written without a copy of the payloads.

A message is a sequence of fields, each a number with its kind and a payload; a field of one message
that comes in pieces is the sum of them (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields."""

FIXED_NBYTES = {FIXED64: 8, FIXED32: 4}
"""Bytes of a payload, by its kind."""

MOST_VARINT_NBYTES = 10


def fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """The number of each field of a message, all its bytes, and its payload.

    Raises ``ValueError`` for bytes that are not a message, and for groups, which ONNX does not use.
    """
    at = 0
    while at < len(message):
        start = at
        key, at = varint(message, at)
        kind, nbytes = key & 7, FIXED_NBYTES.get(key & 7)
        if kind == BYTES:
            nbytes, at = varint(message, at)
        elif kind == VARINT:
            nbytes = varint(message, at)[1] - at
        if nbytes is None or at + nbytes > len(message):
            raise ValueError(f"no field at byte {start} of {len(message)}")
        yield key >> 3, message[start : at + nbytes], message[at : at + nbytes]
        at += nbytes


def varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends.  Raises ``ValueError``."""
    if at < len(message) and message[at] < 128:  # most numbers have one byte
        return message[at], at + 1
    value = 0
    for place, byte in enumerate(message[at : at + MOST_VARINT_NBYTES]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError(f"no number at byte {at} of {len(message)}")


def head(number: int, nbytes: int) -> bytes:
    """The beginning of a field of so many bytes."""
    return as_varint(number << 3 | BYTES) + as_varint(nbytes)


def as_varint(value: int) -> bytes:
    """The bytes of a number, seven bits in each, the lowest first."""
    # Source: the encoding of Protocol Buffers, "Base 128 Varints".
    number, groups = value, bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])
