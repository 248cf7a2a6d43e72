"""Functions of single elements on whole arrays."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.ops.expression import Expr
from quantglow.ops.native import native_ops


def mapped(function: Expr, x: Array) -> Array:
    """A function of ``$0`` for every element of a float32 array, in exact steps; by native code
    where it is in use.  Both give equal numbers; a zero may have the other sign.
    """
    native = native_ops()
    if native is None or x.dtype != np.float32 or not x.size:
        return np.asarray(function.evaluate([x]), np.float32)
    result = np.empty(x.shape, np.float32)
    native.mapped(function, np.ascontiguousarray(x), result)
    return result
