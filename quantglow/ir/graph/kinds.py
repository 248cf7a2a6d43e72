"""Facts that operators declare: traits, and the kinds of elements that they take.

A ``Trait`` is a law that passes and later stages ask for.  An operator has ``takes``, from the name
of a field to its kinds: of an operand, or of an ``ElementType`` among the attributes.  Nodes are
checked when they are made, those of files, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, Flag, auto
from types import MappingProxyType

from quantglow.ir.types import DType, ElementType, TensorType

_SMALL = (DType.I8, DType.U8, DType.I16)


class Trait(Enum):
    """A fact that holds for the nodes of an operator; its text is the law.

    The facts up to ``VIEW`` are mathematics and are tested as such.  The others say how the
    quantizer treats the operator.
    """

    ELEMENTWISE = "each result depends only on the elements of the operands at its own place"
    MOVES = "each result is a number of an operand, or one that the node brings"
    REARRANGES = "each result is an element of the only operand, and none is taken twice"
    CHOOSES = "rising functions of single elements may be applied before or after the operator"
    KEEPS_ZERO = "the result is 0 if all operands are 0"
    VIEW = "the result needs no memory of its own: it is the operand's, with other strides"

    PASSES_SPECIALS = "infinities and NaN of the operands show in the result as they are"
    KEEPS_QUANTIZATION = "the integer form has the quantization parameters of its operands"
    EXACT_STEPS = "the float form takes cheap IEEE operations only, so that any machine agrees"
    LIGHT = "the operator is too cheap to pay for conversions from and to float"
    FUNCTION = "the float form takes a function of many operations for each element"
    SERVES_READERS = "the operator is quantized for the sake of its readers only"
    FINISHES = "behind the last matrix product, the operator stays float with the result"


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

_CODES = {DType.I8: Kind.BYTE, DType.U8: Kind.BYTE, DType.I16: Kind.SHORT, DType.I32: Kind.WIDE}

NOTHING = Kind(0)


def taking(**kinds: Kind) -> Mapping[str, Kind]:
    """A declaration of ``takes``."""
    return MappingProxyType(kinds)


def element_kind(element: ElementType | TensorType) -> Kind:
    """The kind of a type; ``NOTHING`` for parameters of elements that are not codes, and for Python
    objects."""
    if element.dtype.is_object:
        return NOTHING
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
