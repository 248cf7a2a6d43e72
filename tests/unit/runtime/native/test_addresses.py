"""The address of an array is that of its first element, whatever its type and layout."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from quantglow.runtime.native.buffers import aligned_address
from quantglow.support.arrays import Array


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "whole": lambda a: a,
    "empty": lambda a: a[:0],
    "read-only": read_only,
    "a part": lambda a: a[1:, 1:],
    "turned": lambda a: a.T,
    "backwards": lambda a: a[::-1],
    "without axes": lambda a: a[0, 0, ...],
}


@pytest.mark.parametrize("kind", [np.float32, np.bool_, np.float16, ">f4", ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_address_is_that_of_the_first_element(layout: str, kind: type) -> None:
    array = LAYOUTS[layout](np.zeros((3, 4), kind))
    assert aligned_address(array) == array.ctypes.data
