"""Kinds of elements: what an operator takes, declared by it, and what no file may bring.

An operator has ``takes``, from the name of a field to its kinds: of an operand, or of an
``ElementType`` among the attributes.  Nodes are checked when they are made.  ``check_stated`` is
for nodes that are read from a text, which states types that nothing has computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Flag, auto
from types import MappingProxyType
from typing import TYPE_CHECKING

from quantglow.errors import FileFormatError
from quantglow.symbolic.size import is_free, likely
from quantglow.types import DType, ElementType, TensorType

if TYPE_CHECKING:
    from quantglow.graph.node import Node


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
MOST_ELEMENTS = 2**31
"""Maximum number of elements of a value in a text, and maximum size of its axes."""

MOST_TABLE_ENTRIES = 2**26
"""Maximum number of entries of the tables of a node in a text."""


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


def check_kinds(node: Node) -> None:
    """Raise ``TypeRuleError`` if a field is of another kind than the operator takes."""
    for name, kinds in node.takes.items():
        value = getattr(node, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each is None:
                continue
            if not kind_of(each if isinstance(each, ElementType) else each.type) & kinds:
                raise node.refuse(f"{name} must be {words(kinds)}")


def check_stated(node: Node) -> None:
    """Raise ``TypeRuleError`` for parameters that do not fit the shape, and for sizes that no
    program has: tables are made of them before anything else asks."""
    if node.table_entries > MOST_TABLE_ENTRIES:
        raise node.refuse(f"its tables would have more than {MOST_TABLE_ENTRIES} entries")
    shape, quant = node.type.shape, node.type.quant
    sizes = [max(1, likely(size)) for size in shape]
    if math.prod(sizes) > MOST_ELEMENTS:
        raise node.refuse(f"a value has {MOST_ELEMENTS} elements at most, not {node.type}")
    if not kind_of(node.type):
        raise node.refuse(f"{node.type.dtype} has no quantization parameters")
    if quant is None or quant.axis is None:
        return
    axis = quant.axis
    if not 0 <= axis < len(shape) or is_free(shape[axis]) or shape[axis] != len(quant.scales):
        raise node.refuse(f"{len(quant.scales)} scales do not fit axis {axis}")


def check_stored(nodes: Iterable[Node]) -> None:
    """Raise ``FileFormatError`` for operands that programs are made of and that a graph computes.

    Saved graphs have Constants there; lowering may put a change of type in front of them.
    """
    for node in nodes:
        for name in node.stored_operands:
            operand = getattr(node, name)
            if operand is not None and operand.op != "Constant":
                raise FileFormatError(
                    f"{node!r}: {name} must be a Constant. Remedy: save the model again."
                )
