"""Size: an integer that is an expression of free dimensions, and arithmetic of shapes.

A ``Size`` stands where an ``int`` stands in shapes, strides and offsets, and computes with
integers.  Comparisons are decided by proof or by a guard; whatever needs a plain integer
(``range``, an index, a NumPy array) fixes the value by a guard, so no use of it is wrong, only more
special.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from quantglow.ir.symbolic.expression import Expression, number, symbol
from quantglow.ir.symbolic.guards import Guards, Relation

Number = TypeVar("Number", bound=float)

Array = npt.NDArray[Any]

Shape = tuple[int, ...]


class Size:
    """An integer of unknown value; its type for annotations is ``int``."""

    __slots__ = ("expression", "guards")

    def __init__(self, expression: Expression, guards: Guards) -> None:
        self.expression = expression
        self.guards = guards

    @property
    def hint(self) -> int:
        """The value at the shape for which code is made."""
        return self.guards.likely(self.expression)

    def _with(self, other: object, function: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, float):
            return function(float(self), other)
        operand = _expression(other)
        if operand is None:
            return NotImplemented
        self._check(other)
        return size(function(self.expression, operand), self.guards)

    def _check(self, other: object) -> None:
        if isinstance(other, Size) and other.guards is not self.guards:
            raise ValueError(f"{self} and {other} are sizes of two programs")

    def __add__(self, other: object) -> Any:
        return self._with(other, operator.add)

    def __sub__(self, other: object) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: object) -> Any:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: object) -> Any:
        return self._with(other, operator.mul)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> int:
        return size(-self.expression, self.guards)

    def __abs__(self) -> int:
        return -self if self < 0 else cast(int, self)

    def __floordiv__(self, other: object) -> Any:
        divisor = _expression(other)
        if divisor is None:
            return NotImplemented
        return _divide(self.expression, divisor, self.guards)

    def __rfloordiv__(self, other: object) -> Any:
        numerator = _expression(other)
        if numerator is None:
            return NotImplemented
        return _divide(numerator, self.expression, self.guards)

    def __mod__(self, other: object) -> Any:
        return self - (self // other) * other

    def __rmod__(self, other: object) -> Any:
        return other - (other // self) * self

    def __divmod__(self, other: object) -> Any:
        whole = self // other
        return whole, self - whole * other

    def __rdivmod__(self, other: object) -> Any:
        whole = other // self
        return whole, other - whole * self

    def __truediv__(self, other: float) -> float:
        return int(self) / other

    def __rtruediv__(self, other: float) -> float:
        ratio: float = other / int(self)
        return ratio

    def _compare(self, other: object, relation: Relation, swap: bool) -> Any:
        operand = _expression(other)
        if operand is None:
            return NotImplemented
        difference = operand - self.expression if swap else self.expression - operand
        return self.guards.decide(difference, relation)

    def __eq__(self, other: object) -> Any:
        return self._compare(other, Relation.EQUAL, False)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, Relation.UNEQUAL, False)

    def __lt__(self, other: object) -> Any:
        return self._compare(other, Relation.LESS, False)

    def __ge__(self, other: object) -> Any:
        return self._compare(other, Relation.NOT_LESS, False)

    def __gt__(self, other: object) -> Any:
        return self._compare(other, Relation.LESS, True)

    def __le__(self, other: object) -> Any:
        return self._compare(other, Relation.NOT_LESS, True)

    def __hash__(self) -> int:
        return hash(self.expression)

    def __bool__(self) -> bool:
        return self.guards.decide(self.expression, Relation.UNEQUAL)

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


def symbols(hints: Mapping[str, int], caution: int = 0) -> tuple[dict[str, int], Guards]:
    """A size for each name, and the guards of all.  Hints are at least 2."""
    guards = Guards(hints, caution=caution)
    return {name: size(symbol(name), guards) for name in hints}, guards


def size(expression: Expression, guards: Guards) -> int:
    """The integer of a constant expression, else a ``Size``."""
    constant = expression.constant
    return cast(int, Size(expression, guards)) if constant is None else constant


def likely(value: Number) -> Number:
    """The value at the hints: for choices that make code faster and never wrong."""
    return cast(Number, value.hint) if isinstance(value, Size) else value


def careful(value: int) -> int:
    """The value at the hints, or less: for tiles, which no smaller size may have.

    Programs that were made because others do not serve a size choose tiles for smaller ones, so
    that few programs serve all.
    """
    return max(1, value.hint >> value.guards.caution) if isinstance(value, Size) else value


def is_one(size: int) -> bool:
    """Whether a size is 1.  A free size counts as longer, so the graph does not serve 1."""
    if not isinstance(size, Size):
        return size == 1
    for name in size.expression.names:
        size.guards.exclude_one(name)
    return False


def surely_divides(divisor: int, value: int) -> bool:
    """Whether a value is a multiple for all values of the symbols."""
    remainder = value % divisor
    return not is_free(remainder) and remainder == 0


def find_guards(values: Iterable[object]) -> Guards | None:
    """The guards of the free sizes among some values; None where none is free."""
    return next((value.guards for value in values if isinstance(value, Size)), None)


def constant_or_size(value: int) -> int:
    """The integer itself where a size has one value only."""
    if not isinstance(value, Size):
        return value
    only = value.guards.only(value.expression)
    return value if only is None else only


def depends_on(value: object, name: str) -> bool:
    """Whether an attribute may depend on a symbol."""
    if isinstance(value, tuple):
        return any(depends_on(part, name) for part in value)
    if isinstance(value, Size):
        return name in value.expression.names
    return bool(getattr(value, "has_free_sizes", False))


def has_sizes(value: object) -> bool:
    """Whether an attribute is, or has inside, an expression of free dimensions."""
    if isinstance(value, tuple | list):
        return any(map(has_sizes, value))
    return isinstance(value, Size)


def is_free(value: object) -> bool:
    """Whether an integer is an expression of free dimensions."""
    return isinstance(value, Size)


def maximum(values: Sequence[int]) -> int:
    """The largest of some integers, without a guard."""
    guards = next((cast(Size, value).guards for value in values if is_free(value)), None)
    if guards is None:
        return max(values)
    return size(reduce(Expression.maximum, map(to_expression, values)), guards)


def minimum(values: Sequence[int]) -> int:
    """The smallest of some integers, without a guard."""
    return -maximum([-value for value in values])


def align(value: int, multiple: int) -> int:
    """The smallest multiple that is not below a value."""
    return -(-value // multiple) * multiple


def to_expression(value: int) -> Expression:
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


def _divide(numerator: Expression, divisor: Expression, guards: Guards) -> int:
    if guards.decide(divisor, Relation.EQUAL):
        raise ZeroDivisionError("division of a size by 0")
    if guards.decide(divisor, Relation.LESS):
        return size(-numerator // -divisor, guards)
    return size(numerator // divisor, guards)


def integer(value: Any) -> int:
    """A Python integer; one that is free stays so."""
    return value if is_free(value) else int(value)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Shape to which shapes broadcast, as in NumPy.  Raises ``ValueError`` where they do not."""
    result = []
    for sizes in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wide = [size for size in sizes if size != 1]
        if any(size != wide[0] for size in wide[1:]):
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
