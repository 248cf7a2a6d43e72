"""Declared float types of inputs and outputs that are computed as float32.

Arrays are converted where they enter and leave a compiled model; graphs, profiles and programs know
float32 only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from quantglow.errors import InputError
from quantglow.foreign_types import Array
from quantglow.graph.signature import DECLARED, Port

BFLOAT16 = "bfloat16"


def numpy_type(declared: str) -> np.dtype[Any]:
    """The NumPy type of a declared float type, by its name.  Raises ``InputError``."""
    if declared != BFLOAT16:
        return np.dtype(declared)
    try:
        kind: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
        return kind
    except ImportError:
        raise InputError(
            "the model declares bfloat16, which NumPy does not have. Remedy: pip install ml_dtypes"
        ) from None


def entering(ports: Sequence[Port], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Feeds in the declared types, as float32.

    Raises ``InputError`` for other types, and for float64 values that float32 cannot hold.
    """
    found = dict(feeds)
    for port in ports:
        if port.declared and port.name in found:
            found[port.name] = _entering(port, found[port.name])
    return found


def _entering(port: Port, array: Array) -> Array:
    wanted = numpy_type(port.declared)
    if wanted.kind == "V" and array.dtype == np.dtype("V2"):
        array = array.view(wanted)  # .npy files keep bfloat16 as this type
    if array.dtype != wanted:
        raise InputError(
            f"input {port.name!r} must be {wanted}, got {array.dtype}. "
            f"Remedy: cast it with .astype({wanted.type.__module__}.{wanted})"
        )
    converted = as_float32(array)
    if (at := first_lost(array, converted)) is not None:
        raise InputError(
            f"input {port.name!r} holds {array[at]} at {list(at)}, which float32 cannot hold, and "
            "quantglow computes in float32. Remedy: scale the model's values."
        )
    return converted


def leaving(ports: Sequence[Port], arrays: Sequence[Array]) -> list[Array]:
    """Outputs in the declared types: rounded, and infinite if they are too large for the type."""
    pairs = zip(ports, arrays, strict=True)
    return [as_declared(port, array) for port, array in pairs]


def declared_feeds(ports: Sequence[Port], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Feeds of any float type, converted to the types that the model declares."""
    return {port.name: as_declared(port, feeds[port.name]) for port in ports}


def as_declared(port: Port, array: Array) -> Array:
    """An array of any float type, converted to the type that the model declares."""
    if not port.declared:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(numpy_type(port.declared), copy=False)


def as_float32(array: Array) -> Array:
    """Floats as float32; infinite if they are too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32, copy=False)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether values of the type are computed as float32: it is float32 or one of ``DECLARED``."""
    return dtype == np.float32 or dtype.name in DECLARED


def first_lost(before: Array, after: Array) -> tuple[int, ...] | None:
    """Position of the first finite value that a conversion made infinite."""
    if np.isfinite(after).all():
        return None
    lost = np.argwhere(np.isfinite(before) & ~np.isfinite(after))
    return tuple(int(i) for i in lost[0]) if len(lost) else None
