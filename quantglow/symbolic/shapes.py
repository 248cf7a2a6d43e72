"""Arithmetic of shapes whose sizes may be free."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from quantglow.symbolic.size import expression_of, is_free

Array = npt.NDArray[Any]

Shape = tuple[int, ...]


def integer(value: Any) -> int:
    """A Python integer; one that is free stays so."""
    return value if is_free(value) else int(value)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """As NumPy's.  Raises ``ValueError`` where they do not broadcast."""
    found = []
    for sizes in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wide = [size for size in sizes if size != 1]
        if any(size != wide[0] for size in wide[1:]):
            raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        found.append(integer(wide[0]) if wide else 1)
    return tuple(found[::-1])


def surely_equal(one: Shape, other: Shape) -> bool:
    """Whether two shapes are equal for all values of the symbols; no guard is recorded."""
    return one is other or (
        len(one) == len(other)
        and all(
            a is b or expression_of(a) == expression_of(b) for a, b in zip(one, other, strict=True)
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
