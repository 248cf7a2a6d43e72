"""Kinds of elements: what an operator takes, declared by it, and what no file may bring.

An operator has ``takes``, from the name of a field to its kinds: of an operand, or of an
``ElementType`` among the attributes.  Nodes are checked when they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from types import MappingProxyType

from quantglow.types import DType, ElementType, TensorType


class Kind(Flag):
    """A kind of elements; codes are integers with quantization parameters."""

    FLOAT = auto()
    BOOL = auto()
    INTEGER = auto()
    LONG = auto()
    BYTE = auto()
    SHORT = auto()
    WIDE = auto()
    CHANNELS = auto()
    WIDE_CHANNELS = auto()


WORDS = {
    Kind.FLOAT: "float",
    Kind.BOOL: "bool",
    Kind.INTEGER: "integers of up to 32 bits",
    Kind.LONG: "int64",
    Kind.BYTE: "8-bit codes",
    Kind.SHORT: "int16 codes",
    Kind.WIDE: "int32 codes",
    Kind.CHANNELS: "codes with a scale for each channel",
    Kind.WIDE_CHANNELS: "int32 codes with a scale for each channel",
}

CODES = Kind.BYTE | Kind.SHORT
"""Codes that are computed with: they have one scale."""

REALS = Kind.FLOAT | CODES
INDICES = Kind.INTEGER | Kind.LONG
NUMBERS = REALS | INDICES | Kind.WIDE | Kind.CHANNELS | Kind.WIDE_CHANNELS

_PLAIN = {DType.F32: Kind.FLOAT, DType.BOOL: Kind.BOOL, DType.I64: Kind.LONG}
_SMALL = (DType.I8, DType.U8, DType.I16)
_CODES = {DType.I8: Kind.BYTE, DType.U8: Kind.BYTE, DType.I16: Kind.SHORT, DType.I32: Kind.WIDE}

NOTHING = Kind(0)


def taking(**kinds: Kind) -> Mapping[str, Kind]:
    """A declaration of ``takes``."""
    return MappingProxyType(kinds)


def kind_of(element: ElementType | TensorType) -> Kind:
    """The kind of a type; ``NOTHING`` for quantization parameters of what is no code."""
    if element.quant is None:
        return _PLAIN.get(element.dtype, Kind.INTEGER)
    if element.quant.axis is None:
        return _CODES.get(element.dtype, NOTHING)
    if element.dtype is DType.I32:
        return Kind.WIDE_CHANNELS
    return Kind.CHANNELS if element.dtype in _SMALL else NOTHING


def words(kinds: Kind) -> str:
    """Kinds in the words of messages."""
    return " or ".join(text for kind, text in WORDS.items() if kind in kinds)
