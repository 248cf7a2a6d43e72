"""Arrays, and values of other frameworks, recognized by names of types without an import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def box(value: object) -> Array:
    """An array without axes that holds a sequence, an optional or a map, as graphs have them."""
    boxes = np.empty(1, np.object_)
    boxes[0] = value
    return boxes.reshape(())


def unbox(array: Array) -> Any:
    """The value in an array that ``box`` made."""
    return array[()]


def leaves(value: Any) -> Iterator[Array]:
    """The arrays in a value, which may be a sequence, an optional or a map."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield np.asarray(value)


def content(array: Array) -> bytes | memoryview:
    """The bytes of the elements in order, for digests; texts in UTF-8, each behind its length."""
    if array.dtype.kind == "O":
        texts = [str(element).encode() for element in array.reshape(-1)]
        return b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def _is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is of the class ``name`` that ``module`` defines, or of a subclass."""
    kinds = type(value).__mro__
    return any(k.__name__ == name and k.__module__ == module for k in kinds)


def is_torch_tensor(value: Any) -> bool:
    """Whether a value is a ``torch.Tensor``."""
    return _is_a(value, "torch", "Tensor")


def is_torch_module(value: Any) -> bool:
    """Whether a value is a ``torch.nn.Module``."""
    return _is_a(value, "torch.nn.modules.module", "Module")


def is_exported_program(value: Any) -> bool:
    """Whether a value is a ``torch.export.ExportedProgram``."""
    return _is_a(value, "torch.export.exported_program", "ExportedProgram")


def is_estimator(value: Any) -> bool:
    """Whether a value is an estimator or pipeline of scikit-learn."""
    return _is_a(value, "sklearn.base", "BaseEstimator")


def array_of_tensor(tensor: Any) -> Array:
    """The elements of a ``torch.Tensor``, without a copy where they are in the processor's memory.

    bfloat16, which NumPy has not, is that of ``ml_dtypes``.
    """
    held = tensor.detach().cpu()
    if str(held.dtype) != "torch.bfloat16":
        return np.asarray(held.numpy())
    bits = held.view(sys.modules["torch"].int16).numpy()
    return np.asarray(bits.view(import_module("ml_dtypes").bfloat16))
