"""Integer expressions of symbols, in canonical form.

An expression is a polynomial with integer coefficients over atoms.  An atom is a ``Symbol``, a
``Quotient`` (rounded down) or a ``Maximum``.  Remainders and minima are written with these two, so
equality of forms proves equality of values; different forms prove nothing.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Union

Bounds = tuple[int, int]
"""Smallest and largest value."""

Atom = Union["Symbol", "Quotient", "Maximum"]
Monomial = tuple[Atom, ...]
"""A product of atoms, in the order of their texts; () is 1."""

Terms = tuple[tuple[Monomial, int], ...]

Values = Mapping[str, int]
"""The value of each symbol."""


SMALLEST = 2
"""Minimum value of a symbol: axes of 1 change the structure of a program."""
LARGEST = 2**24
USUAL = 8
"""A size that stands for all above 1: recurrences of fewer steps are not loops."""
MOST_RESULTS = 2**14
"""Results of each operation that are kept: programs compute few again and again."""


@dataclass(frozen=True)
class Symbol:
    """A free dimension from 2 to ``LARGEST``."""

    name: str

    @property
    def bounds(self) -> Bounds:
        return SMALLEST, LARGEST

    @property
    def names(self) -> frozenset[str]:
        return frozenset([self.name])

    def at(self, values: Values) -> int:
        return values[self.name]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """``numerator`` divided by a positive ``divisor``, rounded down."""

    numerator: Expression
    divisor: Expression

    @property
    def bounds(self) -> Bounds:
        (low, high), (least, most) = self.numerator.bounds, self.divisor.bounds
        ends = [n // d for n in (low, high) for d in (max(least, 1), max(most, 1))]
        return min(ends), max(ends)

    @property
    def names(self) -> frozenset[str]:
        return self.numerator.names | self.divisor.names

    def at(self, values: Values) -> int:
        return self.numerator.at(values) // self.divisor.at(values)

    def __str__(self) -> str:
        return f"floor({self.numerator},{self.divisor})"


@dataclass(frozen=True)
class Maximum:
    """The larger of two expressions, which stand in the order of their texts."""

    first: Expression
    second: Expression

    @property
    def bounds(self) -> Bounds:
        (low, high), (other_low, other_high) = self.first.bounds, self.second.bounds
        return max(low, other_low), max(high, other_high)

    @property
    def names(self) -> frozenset[str]:
        return self.first.names | self.second.names

    def at(self, values: Values) -> int:
        return max(self.first.at(values), self.second.at(values))

    def __str__(self) -> str:
        return f"max({self.first},{self.second})"


def atom_operands(atom: Atom) -> tuple[Expression, ...]:
    """The expressions inside of an atom."""
    match atom:
        case Quotient(numerator, divisor):
            return numerator, divisor
        case Maximum(first, second):
            return first, second
    return ()


class Expression:
    """A sum of integer multiples of monomials.  Make them by arithmetic from ``symbol``."""

    __slots__ = ("_bounds", "_hash", "_text", "constant", "terms")

    terms: Terms
    """Monomials with coefficients other than 0, the largest monomial first."""
    constant: int | None
    """The value if it has no symbols, else None."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        first, factor = terms[0] if terms else ((), 0)
        self.constant = None if first else factor
        # Twice the factors, for Python hashes -1 as -2: sizes of one hash would be compared where
        # they are keys, and whether they are equal depends on the shape.
        self._hash = hash(tuple((monomial, 2 * factor) for monomial, factor in terms))
        self._bounds: Bounds | None = None
        self._text: str | None = None

    def __reduce__(self) -> tuple[type[Expression], tuple[Terms]]:
        """For other processes, where the same text has another hash."""
        return Expression, (self.terms,)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether the forms are equal."""
        return self is other or (
            isinstance(other, Expression)
            and self._hash == other._hash
            and self.terms == other.terms
        )

    @property
    def bounds(self) -> Bounds:
        """An interval that contains all values."""
        if self._bounds is None:
            low = high = 0
            for monomial, coefficient in self.terms:
                least, most = scale(_product_bounds(monomial), coefficient)
                low, high = low + least, high + most
            # The sum of intervals forgets that terms share atoms: only as H * (W - 1) is H*W - H
            # known not to be negative.  Both intervals hold, so their intersection does.
            if common := _common_factor(self.terms):
                cofactor = _collect((_without(m, common), c) for m, c in self.terms)
                ends = _bound_product(_product_bounds(common), cofactor.bounds)
                low, high = max(low, ends[0]), min(high, ends[1])
            self._bounds = low, high
        return self._bounds

    @property
    def names(self) -> frozenset[str]:
        """The symbols."""
        return frozenset[str]().union(*(atom.names for m, _ in self.terms for atom in m))

    def at(self, values: Values) -> int:
        """The value for values of all symbols."""
        return sum(
            coefficient * math.prod(atom.at(values) for atom in monomial)
            for monomial, coefficient in self.terms
        )

    def __add__(self, other: Expression) -> Expression:
        return _sum(self, other)

    def __neg__(self) -> Expression:
        return Expression(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Expression) -> Expression:
        return _difference(self, other)

    def __mul__(self, other: Expression) -> Expression:
        return _product(self, other)

    def __floordiv__(self, divisor: Expression) -> Expression:
        """Rounded down.  The divisor must be positive."""
        return _quotient(self, divisor)

    def __mod__(self, divisor: Expression) -> Expression:
        """The remainder of ``//``."""
        return self - divisor * (self // divisor)

    def maximum(self, other: Expression) -> Expression:
        """The larger of both."""
        low, high = (self - other).bounds
        if low >= 0:
            return self
        if high <= 0:
            return other
        first, second = sorted((self, other), key=str)
        return _of_atom(Maximum(first, second))

    def __str__(self) -> str:
        """``384*T+H*W-1``, without spaces."""
        if self._text is None:
            self._text = "".join(map(_term_text, self.terms)).removeprefix("+") or "0"
        return self._text

    def __repr__(self) -> str:
        return str(self)


def symbol(name: str) -> Expression:
    """The expression of one symbol."""
    return _of_atom(Symbol(name))


@lru_cache(MOST_RESULTS)
def number(value: int) -> Expression:
    """A constant expression."""
    return Expression((((), value),) if value else ())


def _of_atom(atom: Atom) -> Expression:
    return Expression((((atom,), 1),))


@lru_cache(MOST_RESULTS)
def _sum(one: Expression, other: Expression) -> Expression:
    return _collect((*one.terms, *other.terms))


@lru_cache(MOST_RESULTS)
def _difference(one: Expression, other: Expression) -> Expression:
    return one + -other


@lru_cache(MOST_RESULTS)
def _product(one: Expression, other: Expression) -> Expression:
    return _collect((_sort((*m, *n)), c * d) for m, c in one.terms for n, d in other.terms)


@lru_cache(MOST_RESULTS)
def _quotient(dividend: Expression, divisor: Expression) -> Expression:
    if not divisor.terms:
        raise ZeroDivisionError("division of a size by 0")
    if divisor.constant is not None:
        return _divide_by_number(dividend, divisor.constant)
    whole, remainder = _divide(dividend, divisor)
    if not remainder.terms:
        return whole
    if remainder.bounds[0] >= 0 and (divisor - remainder).bounds[0] > 0:
        return whole
    return whole + _of_atom(Quotient(remainder, divisor))


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Expression:
    sums: Counter[Monomial] = Counter()
    for monomial, coefficient in terms:
        sums[monomial] += coefficient
    nonzero = [(monomial, coefficient) for monomial, coefficient in sums.items() if coefficient]
    return Expression(tuple(sorted(nonzero, key=lambda term: _order(term[0]), reverse=True)))


@lru_cache(MOST_RESULTS)
def parts(expression: Expression) -> tuple[Expression, int, int]:
    """``core``, ``factor`` and ``constant`` with ``expression == core * factor + constant``.

    The core's coefficients have no common divisor, and the first is positive.
    """
    variable = [(m, c) for m, c in expression.terms if m]
    constant = sum(c for m, c in expression.terms if not m)
    if not variable:
        return number(0), 1, constant
    factor = math.gcd(*(c for _, c in variable)) * (1 if variable[0][1] > 0 else -1)
    return Expression(tuple((m, c // factor) for m, c in variable)), factor, constant


@cache
def _text(atom: Atom) -> str:
    return str(atom)


def _sort(monomial: Monomial) -> Monomial:
    return tuple(sorted(monomial, key=_text))


def _order(monomial: Monomial) -> tuple[int, list[str]]:
    """Order of monomials: by degree, then by text."""
    return len(monomial), [_text(atom) for atom in monomial]


def _term_text(term: tuple[Monomial, int]) -> str:
    monomial, coefficient = term
    sign = "-" if coefficient < 0 else "+"
    factors = [_text(atom) for atom in monomial]
    if abs(coefficient) != 1 or not factors:
        factors.insert(0, str(abs(coefficient)))
    return sign + "*".join(factors)


def scale(bounds: Bounds, factor: int) -> Bounds:
    """The interval times a number other than 0."""
    ends = [end * factor for end in bounds]
    return min(ends), max(ends)


def _product_bounds(monomial: Monomial) -> Bounds:
    return reduce(_bound_product, (atom.bounds for atom in monomial), (1, 1))


def _bound_product(one: Bounds, other: Bounds) -> Bounds:
    ends = [a * b for a in one for b in other]
    return min(ends), max(ends)


def _common_factor(terms: Terms) -> Monomial:
    """The atoms that all of several terms have: ``H*W - H`` is ``H * (W - 1)``."""
    if len(terms) < 2:
        return ()
    counts = reduce(operator.and_, (Counter(monomial) for monomial, _ in terms))
    return tuple(counts.elements())


def _without(monomial: Monomial, factor: Monomial) -> Monomial:
    """The monomial divided by some of its atoms."""
    return _sort(tuple((Counter(monomial) - Counter(factor)).elements()))


def _divide_by_number(dividend: Expression, divisor: int) -> Expression:
    """Multiples of the divisor are taken out; common factors are cancelled.

    Coefficients keep the remainder nearest to 0, and the first one is positive: ``ceil(T / 16)`` is
    ``floor(T+15, 16)`` however it was written.
    """
    if divisor < 0:
        raise ValueError(f"division of a size by {divisor}")
    remainder = _collect((m, _nearest(c, divisor) if m else c % divisor) for m, c in dividend.terms)
    whole = _collect((m, c // divisor) for m, c in (dividend - remainder).terms)
    # floor(-p / n) == -floor((p + n - 1) / n).
    if remainder.terms and remainder.terms[0][0] and remainder.terms[0][1] < 0:
        return whole - _divide_by_number(number(divisor - 1) - remainder, divisor)
    # floor((g v + c) / (g n)) == floor((v + floor(c / g)) / n), as v is an integer.
    common = math.gcd(divisor, *(c for m, c in remainder.terms if m))
    divisor, remainder = divisor // common, _collect((m, c // common) for m, c in remainder.terms)
    low, high = remainder.bounds
    if low >= 0 and high < divisor:
        return whole
    if divisor == 1:
        return whole + remainder
    # floor((floor(p / k) + a) / n) == floor((p + a k) / (n k)) for positive k and n.
    inner = _lone_quotient(remainder)
    if inner is not None:
        atom, added = inner
        scale = atom.divisor.terms[0][1]
        return whole + _divide_by_number(atom.numerator + number(added * scale), divisor * scale)
    return whole + _of_atom(Quotient(remainder, number(divisor)))


def _nearest(coefficient: int, divisor: int) -> int:
    """The remainder of least size; the positive one of two."""
    remainder = coefficient % divisor
    return remainder - divisor if 2 * remainder > divisor else remainder


def _lone_quotient(expression: Expression) -> tuple[Quotient, int] | None:
    """The parts of ``floor(n, number) + constant``."""
    (monomial, coefficient), *others = expression.terms
    if coefficient != 1 or len(monomial) != 1 or any(m for m, _ in others):
        return None
    atom = monomial[0]
    if not isinstance(atom, Quotient) or atom.divisor.constant is None:
        return None
    return atom, sum(c for _, c in others)


def _divide(dividend: Expression, divisor: Expression) -> tuple[Expression, Expression]:
    """Quotient and remainder of polynomials: leading terms are divided while that is exact."""
    whole, remainder = number(0), number(0)
    lead, factor = divisor.terms[0]
    while dividend.terms:
        monomial, coefficient = dividend.terms[0]
        missing = Counter(monomial)
        missing.subtract(lead)
        if coefficient % factor or min(missing.values()) < 0:
            first = Expression((dividend.terms[0],))
            dividend, remainder = dividend - first, remainder + first
            continue
        step = Expression(((_sort(tuple(missing.elements())), coefficient // factor),))
        dividend, whole = dividend - step * divisor, whole + step
    return whole, remainder
