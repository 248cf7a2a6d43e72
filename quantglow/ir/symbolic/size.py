"""Size: an integer that is an expression of free dimensions, and arithmetic of shapes.

A ``Size`` computes with integers, and with them is a ``Dim``: what shapes, strides and offsets
consist of.  Whether two sizes are equal, or one is smaller, is a ``Condition`` where neither answer
holds for all shapes; ``decide`` answers it by proof or by a guard.  A condition has no truth value,
so that a guard has a place in the code that asks for it by name: ``decide`` and its kin, divisions,
which ask for the sign of the divisor, and what says here that it decides.  ``int`` and whatever
needs a plain integer (``range``, an index, a NumPy array) fix the value by a guard.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import Any, NoReturn, SupportsIndex, cast, overload

import numpy as np
import numpy.typing as npt

from quantglow.ir.symbolic.expression import Expression, number, symbol
from quantglow.ir.symbolic.guards import Guard, Guards, Relation

Array = npt.NDArray[Any]


def undecided(condition: str) -> TypeError:
    """The error of code that takes a condition for an answer."""
    return TypeError(f"whether {condition} depends on the shape: decide() has to be asked")


@dataclass(frozen=True, eq=False)
class Condition:
    """A relation between sizes that holds for some shapes and not for others."""

    guard: Guard
    guards: Guards

    def __bool__(self) -> NoReturn:
        raise undecided(str(self.guard))


class Size:
    """An integer of unknown value."""

    __slots__ = ("expression", "guards")

    def __init__(self, expression: Expression, guards: Guards) -> None:
        self.expression = expression
        self.guards = guards

    @property
    def hint(self) -> int:
        """The value at the shape for which code is made."""
        return self.guards.likely(self.expression)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the free dimensions on which it depends."""
        return self.expression.names

    def _operand(self, other: Dim) -> Expression | None:
        """The expression of another operand; None for what is no integer."""
        if isinstance(other, Size) and other.guards is not self.guards:
            raise ValueError(f"{self} and {other} are sizes of two programs")
        return _expression(other)

    def __add__(self, other: Dim) -> Dim:
        operand = self._operand(other)
        return NotImplemented if operand is None else size(self.expression + operand, self.guards)

    def __sub__(self, other: Dim) -> Dim:
        operand = self._operand(other)
        return NotImplemented if operand is None else size(self.expression - operand, self.guards)

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        operand = self._operand(other)
        return NotImplemented if operand is None else size(self.expression * operand, self.guards)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return size(-self.expression, self.guards)

    def __abs__(self) -> Dim:
        return -self if decide(self < 0) else self

    def __floordiv__(self, other: Dim) -> Dim:
        divisor = _expression(other)
        if divisor is None:
            return NotImplemented
        return _divide(self.expression, divisor, self.guards)

    def __rfloordiv__(self, other: Dim) -> Dim:
        numerator = _expression(other)
        if numerator is None:
            return NotImplemented
        return _divide(numerator, self.expression, self.guards)

    def __mod__(self, other: Dim) -> Dim:
        return self - (self // other) * other

    def __rmod__(self, other: Dim) -> Dim:
        return other - (other // self) * self

    def __divmod__(self, other: Dim) -> tuple[Dim, Dim]:
        whole = self // other
        return whole, self - whole * other

    def __rdivmod__(self, other: Dim) -> tuple[Dim, Dim]:
        whole = other // self
        return whole, other - whole * self

    def __truediv__(self, other: float) -> float:
        return int(self) / other

    def __rtruediv__(self, other: float) -> float:
        ratio: float = other / int(self)
        return ratio

    def _compare(self, other: object, relation: Relation, swap: bool = False) -> Any:
        """The answer where it is the same for all shapes, else the condition."""
        operand = _expression(other)
        if operand is None:
            return NotImplemented
        difference = operand - self.expression if swap else self.expression - operand
        constant = difference.constant
        if constant is not None:
            return relation.holds(constant)
        return Condition(Guard(difference, relation), self.guards)

    def __eq__(self, other: object) -> Any:
        return self._compare(other, Relation.EQUAL)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, Relation.UNEQUAL)

    def __lt__(self, other: Dim) -> bool | Condition:
        return cast(bool | Condition, self._compare(other, Relation.LESS))

    def __ge__(self, other: Dim) -> bool | Condition:
        return cast(bool | Condition, self._compare(other, Relation.NOT_LESS))

    def __gt__(self, other: Dim) -> bool | Condition:
        return cast(bool | Condition, self._compare(other, Relation.LESS, swap=True))

    def __le__(self, other: Dim) -> bool | Condition:
        return cast(bool | Condition, self._compare(other, Relation.NOT_LESS, swap=True))

    def __hash__(self) -> int:
        return hash(self.expression)

    def __bool__(self) -> NoReturn:
        raise undecided(f"{self} is 0")

    def __index__(self) -> int:
        return self.guards.fix(self.expression)

    __int__ = __index__

    def bit_length(self) -> int:
        """As ``int.bit_length``."""
        return int(self).bit_length()

    def __float__(self) -> float:
        return float(int(self))

    def __str__(self) -> str:
        return self.guards.named(self.expression)

    __repr__ = __str__


Dim = int | Size
"""An integer, or an expression of free dimensions."""

Shape = tuple[Dim, ...]

FixedShape = tuple[int, ...]


def fixed(shape: Iterable[Dim]) -> FixedShape:
    """The plain integers of a shape; a guard fixes each that is free."""
    return tuple(map(int, shape))


def decide(condition: bool | Condition) -> bool:
    """Whether a relation of sizes holds: proven for all shapes, or at the hints and then a guard of
    the program."""
    if isinstance(condition, Condition):
        guard = condition.guard
        return condition.guards.decide(guard.expression, guard.relation)
    return condition


def decide_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether shapes, or tuples of shapes and other values, are equal, see ``decide``.

    Elements are compared in their order up to the first that differs, as those of tuples are.
    """
    for a, b in zip(one, other, strict=False):
        if a is b:
            continue
        if isinstance(a, tuple) and isinstance(b, tuple):
            if not decide_equal(a, b):
                return False
        elif not decide(a == b):
            return False
    return len(one) == len(other)


def decide_in(value: Dim, values: Iterable[Dim]) -> bool:
    """Whether a size is one of some, see ``decide``."""
    return any(value is each or decide(value == each) for each in values)


def decide_min(*values: Dim) -> Dim:
    """The smallest of some sizes, see ``decide``; ``minimum`` is without a guard."""
    return reduce(lambda least, value: value if decide(value < least) else least, values)


def decide_max(*values: Dim) -> Dim:
    """The largest of some sizes, see ``decide``; ``maximum`` is without a guard."""
    return reduce(lambda most, value: value if decide(value > most) else most, values)


def prod(values: Iterable[Dim]) -> Dim:
    """The product of sizes: ``math.prod``, which is typed as if the product were plain."""
    return cast(Dim, math.prod(cast(Iterable[SupportsIndex], values)))


def symbols(hints: Mapping[str, int], caution: int = 0) -> tuple[dict[str, Dim], Guards]:
    """A size for each name, and the guards of all.  Hints are at least 2."""
    guards = Guards(hints, caution=caution)
    return {name: size(symbol(name), guards) for name in hints}, guards


def size(expression: Expression, guards: Guards) -> Dim:
    """The integer of a constant expression, else a ``Size``."""
    constant = expression.constant
    return Size(expression, guards) if constant is None else constant


@overload
def likely(value: Dim) -> int: ...
@overload
def likely(value: float) -> float: ...
def likely(value: Dim | float) -> float:
    """The value at the hints: for choices that make code faster and never wrong."""
    return value.hint if isinstance(value, Size) else value


def careful(value: Dim) -> int:
    """The value at the hints, or less: for tiles, which no smaller size may have.

    Programs that were made because others do not serve a size choose tiles for smaller ones, so
    that few programs serve all.
    """
    return max(1, value.hint >> value.guards.caution) if isinstance(value, Size) else value


def is_one(size: Dim) -> bool:
    """Whether a size is 1.  A free size counts as longer, so the graph does not serve 1."""
    if not isinstance(size, Size):
        return size == 1
    for name in size.expression.names:
        size.guards.exclude_one(name)
    return False


def surely_divides(divisor: Dim, value: Dim) -> bool:
    """Whether a value is a multiple for all values of the symbols."""
    remainder = value % divisor
    return not isinstance(remainder, Size) and remainder == 0


def find_guards(values: Iterable[object]) -> Guards | None:
    """The guards of the free sizes among some values; None where none is free."""
    return next((value.guards for value in values if isinstance(value, Size)), None)


@contextmanager
def forgetting_guards(values: Iterable[object]) -> Iterator[None]:
    """A block in which guards of the free sizes among some values are recorded in vain: what is
    decided inside is not used."""
    guards = find_guards(values)
    with nullcontext() if guards is None else guards.forgetting():
        yield


def constant_or_size(value: Dim) -> Dim:
    """The integer itself where a size has one value only."""
    if not isinstance(value, Size):
        return value
    only = value.guards.only(value.expression)
    return value if only is None else only


def symbol_name(value: Dim) -> str | None:
    """The name of the symbol that a size is; None for other sizes."""
    if isinstance(value, Size):
        for name in value.expression.names:
            if value.expression == symbol(name):
                return name
    return None


def symbols_in(value: object) -> frozenset[str]:
    """Names of the symbols on which an attribute depends."""
    if isinstance(value, tuple):
        return frozenset[str]().union(*map(symbols_in, value))
    names: frozenset[str] = getattr(value, "symbols", frozenset())
    return names


def has_sizes(value: object) -> bool:
    """Whether an attribute is, or has inside, an expression of free dimensions."""
    if isinstance(value, tuple | list):
        return any(map(has_sizes, value))
    return isinstance(value, Size)


def is_free(value: object) -> bool:
    """Whether an integer is an expression of free dimensions."""
    return isinstance(value, Size)


def maximum(values: Sequence[Dim]) -> Dim:
    """The largest of some integers, without a guard."""
    guards = find_guards(values)
    if guards is None:
        return max(map(int, values))
    return size(reduce(Expression.maximum, map(to_expression, values)), guards)


def minimum(values: Sequence[Dim]) -> Dim:
    """The smallest of some integers, without a guard."""
    return -maximum([-value for value in values])


def align(value: Dim, multiple: Dim) -> Dim:
    """The smallest multiple that is not below a value."""
    return -(-value // multiple) * multiple


def to_expression(value: Dim) -> Expression:
    """The expression of an integer, free or not."""
    return value.expression if isinstance(value, Size) else number(value)


def _expression(value: object) -> Expression | None:
    if isinstance(value, Size):
        return value.expression
    if type(value) is int:  # most by far
        return number(value)
    if isinstance(value, float | str | bytes | None) or not hasattr(value, "__index__"):
        return None
    return number(operator.index(cast(int, value)))


def _divide(numerator: Expression, divisor: Expression, guards: Guards) -> Dim:
    if guards.decide(divisor, Relation.EQUAL):
        raise ZeroDivisionError("division of a size by 0")
    if guards.decide(divisor, Relation.LESS):
        return size(-numerator // -divisor, guards)
    return size(numerator // divisor, guards)


def integer(value: Any) -> Dim:
    """A Python integer; one that is free stays so."""
    return value if is_free(value) else int(value)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Shape to which shapes broadcast, as in NumPy.  Raises ``ValueError`` where they do not."""
    result = []
    for sizes in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wide = [size for size in sizes if decide(size != 1)]
        if any(decide(size != wide[0]) for size in wide[1:]):
            raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        result.append(integer(wide[0]) if wide else 1)
    return tuple(result[::-1])


def surely_equal(one: Shape, other: Shape) -> bool:
    """Whether two shapes are equal for all values of the symbols; no guard is recorded."""
    return one is other or (
        len(one) == len(other)
        and all(
            a is b or to_expression(a) == to_expression(b) for a, b in zip(one, other, strict=True)
        )
    )


def integers(values: Any) -> Array:
    """An int64 array; one of objects where a value is free."""
    array = np.asarray(values, object)
    if any(map(is_free, array.reshape(-1))):
        return array
    return array.astype(np.int64)


def has_free(array: Array) -> bool:
    """Whether an element of an array is free."""
    return array.dtype == object and any(map(is_free, array.reshape(-1)))
