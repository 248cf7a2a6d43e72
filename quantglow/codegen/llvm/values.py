"""Types and values of LLVM IR: texts that know what they stand for.

Both are strings, so that an instruction is joined of its operands as they are; ``str.join`` takes
them faster than an f-string does, which copies each one.  Nothing reads a type out of a text: a
type is made of its parts, and a value is made with its type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Self, TypeVar, cast

import numpy as np

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


def _cache(function: AnyFunction) -> AnyFunction:
    """``functools.cache``, of which type checkers see the parameters."""
    return cast(AnyFunction, cache(function))


class Type(str):
    """An LLVM type.

    ``lanes``     elements of a vector; 1 for a scalar
    ``element``   the type of one of them; a scalar is its own element
    ``nbits``     bits of an element; 0 where the target decides (pointers), or for none
    ``is_float``  whether an element is a floating-point number
    ``mask``      the type of a truth value for each element
    ``suffix``    its name in the names of intrinsics
    """

    __slots__ = ("element", "is_float", "lanes", "mask", "nbits", "suffix")

    element: Type
    is_float: bool
    lanes: int
    mask: Type
    nbits: int
    suffix: str

    def with_element(self, element: Type) -> Type:
        """The type of as many other elements."""
        return vector(self.lanes, element)


class Value(str):
    """The text of a value, as instructions name it, and its ``type``."""

    __slots__ = ("type",)

    type: Type

    @classmethod
    def of(cls, text: str, kind: Type) -> Self:
        """A value; not ``__new__``, which would make the most frequent call in ``Builder.emit``
        several times as slow."""
        value = cls(text)
        value.type = kind
        return value


class ConstantValue(Value):
    """A value that LLVM knows: no instruction computes it."""

    __slots__ = ()


Operand = str
"""A value, or the text of a literal, whose type the instruction names."""


def _scalar(text: str, nbits: int = 0, is_float: bool = False) -> Type:
    kind = Type(text)
    kind.mask = kind if text == "i1" else I1
    kind.element, kind.lanes, kind.nbits, kind.is_float = kind, 1, nbits, is_float
    kind.suffix = f"f{nbits}" if is_float else text
    return kind


I1 = _scalar("i1", 1)
I8, I16, I32, I64 = (_scalar(f"i{nbits}", nbits) for nbits in (8, 16, 32, 64))
HALF, FLOAT = _scalar("half", 16, is_float=True), _scalar("float", 32, is_float=True)
DOUBLE = _scalar("double", 64, is_float=True)
_OF_BITS = {kind.nbits: kind for kind in (I8, I16, I32, I64)}
PTR, VOID = _scalar("ptr"), _scalar("void")

TRUE = ConstantValue.of("true", I1)
ABSENT = ConstantValue.of("", VOID)
"""Stands for an operand that a kernel has not; it is false."""


def bits_type(nbits: int) -> Type:
    """The integers of 8, 16, 32 or 64 bits."""
    return _OF_BITS[nbits]


@_cache
def vector(lanes: int, element: Type) -> Type:
    """The type of ``lanes`` elements; the element itself for one lane."""
    return element if lanes == 1 else proper_vector(lanes, element)


@_cache
def proper_vector(lanes: int, element: Type) -> Type:
    """A vector, even of one lane."""
    kind = Type(f"<{lanes} x {element}>")
    kind.element, kind.lanes = element, lanes
    kind.mask = kind if element == I1 else proper_vector(lanes, I1)
    kind.nbits, kind.is_float = element.nbits, element.is_float
    kind.suffix = f"v{lanes}{element.suffix}"
    return kind


def f32(value: float) -> Value:
    """A float32 literal: LLVM wants the bits of the equal double."""
    bits = struct.unpack("<Q", struct.pack("<d", float(np.float32(value))))[0]
    return ConstantValue.of(f"0x{bits:016X}", FLOAT)


def integer(number: int, kind: Type = I32) -> Value:
    """An integer literal."""
    return ConstantValue.of(str(number), kind)


def lanes_of_bits(bits: Iterable[bool]) -> Value:
    """A truth value for each lane."""
    texts = [f"i1 {int(bit)}" for bit in bits]
    return ConstantValue.of(f"<{', '.join(texts)}>", vector(len(texts), I1))


@_cache
def splat(kind: Type, literal: Operand) -> Value:
    """A literal in every lane of a type; the literal itself for scalars."""
    if kind.lanes == 1:
        return ConstantValue.of(literal, kind)
    return ConstantValue.of(f"splat ({kind.element} {literal})", kind)


@_cache
def poison(kind: Type) -> Value:
    """A value that is nothing in particular, to insert elements into."""
    return ConstantValue.of("poison", kind)


@_cache
def zero(kind: Type) -> Value:
    """Zero in every lane of a vector."""
    return ConstantValue.of("zeroinitializer", kind)
