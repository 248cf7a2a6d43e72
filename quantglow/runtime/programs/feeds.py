"""Arguments of ``run``: descriptions of inputs and outputs, names of outputs, checked arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.ir.graph.signature import Port, PortDim, numpy_type
from quantglow.support.arguments import strings
from quantglow.support.arrays import Array, array_of_tensor, is_torch_tensor
from quantglow.support.errors import InputError

FITTING = {"b": "b", "i": "iuf", "u": "iuf", "f": "f"}
"""Kinds of the types that Python's numbers may become, by the kind that NumPy gives them."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as onnxruntime's ``NodeArg`` describes it."""

    name: str
    shape: list[PortDim]
    type: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements.  Raises ``InputError`` for values that are not numeric
        tensors.
        """
        element = self.type.removeprefix("tensor(").removesuffix(")")
        try:
            return numpy_type({"float": "float32", "double": "float64"}.get(element, element))
        except TypeError:
            raise InputError(f"{self.name!r} is {self.type}, which no array holds") from None

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor: no sequence, optional or map."""
        return self.type.startswith("tensor(")

    @property
    def is_numeric(self) -> bool:
        """Whether it is a tensor of numbers."""
        return self.is_tensor and self.type != "tensor(string)"

    @staticmethod
    def of_node(node: Any) -> TensorInfo:
        """The text of onnxruntime's ``NodeArg``."""
        return TensorInfo(node.name, node.shape, node.type)

    @staticmethod
    def of(port: Port) -> TensorInfo:
        """The text of an input or output of a graph."""
        return TensorInfo(port.name, list(port.dims or ()), port.onnx_type)


def choose_outputs(output_names: Sequence[str] | None, all_names: list[str]) -> list[str]:
    """The outputs to return; None, or no name, stands for all.  Raises ``InputError`` for unknown
    names.
    """
    names = list(strings(output_names, "output_names")) or all_names
    if unknown := [name for name in names if name not in all_names]:
        raise InputError(f"unknown output(s) {unknown}; the model has {all_names}")
    return names


def check_mapping(feeds: object) -> None:
    """Raise ``InputError`` for feeds that are not a mapping."""
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"feeds must map input names to arrays, got {type(feeds).__name__}. "
            "Remedy: run(None, {name: array}), or call the model with arrays"
        )


def feeds_by_name(
    names: list[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Feeds of a call with arrays by position and by name, or in one mapping.  Raises
    ``InputError``.
    """
    if len(arrays) == 1 and isinstance(arrays[0], Mapping):
        names, arrays = list(arrays[0].keys()), list(arrays[0].values())
    if len(arrays) > len(names):
        raise InputError(f"{len(arrays)} arrays given, the model takes {len(names)}: {names}")
    feeds = dict(zip(names, arrays, strict=False))
    if twice := sorted(feeds.keys() & named.keys()):
        raise InputError(f"input(s) {twice} given both by position and by name")
    return {**feeds, **named}


def check_feeds(
    feeds: Mapping[str, Any], inputs: Callable[[], Iterable[TensorInfo]]
) -> dict[str, Any]:
    """Feeds as arrays, by name: the one door of all that has ``run``.  ``inputs`` is asked where
    there is anything else.  Raises ``InputError``.
    """
    check_mapping(feeds)
    if all(type(value) is np.ndarray for value in feeds.values()):
        return dict(feeds)
    infos = {info.name: info for info in inputs()}
    return {name: _feed(name, value, infos.get(name)) for name, value in feeds.items()}


def _feed(name: str, value: Any, info: TensorInfo | None) -> Any:
    """A feed as an array; a list of tensors where the input is a sequence, None where it is
    optional.
    """
    if info is not None and info.is_tensor:
        return _as_array(name, value, info)
    if isinstance(value, list):
        return [_feed(name, item, None) for item in value]
    return value if value is None else _as_array(name, value)


def _as_array(name: str, value: Any, info: TensorInfo | None = None) -> Array:
    """A feed as an array; of a ``torch.Tensor`` without a copy.  Raises ``InputError``."""
    if not isinstance(value, np.ndarray) and is_torch_tensor(value):
        return array_of_tensor(value)
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            f"input {name!r} is a masked array, whose hidden values would count. "
            "Remedy: give its filled(number)."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"input {name!r} is not an array: {str(error).rstrip('.')}. "
            "Remedy: give a numpy.ndarray, or nested lists of equal lengths."
        ) from None
    is_plain = type(value) in (list, tuple, bool, int, float)  # a np.float64 is a float, too
    return _as_declared(array, info) if is_plain and info is not None else array


def _as_declared(array: Array, info: TensorInfo) -> Array:
    """Numbers of Python in the type of an input, as onnxruntime takes them; those of another kind,
    which a check of types refuses, as they are.  Raises ``InputError`` for numbers beyond the type.
    """
    if not info.is_numeric or (array.size and array.dtype.kind not in FITTING):
        return array
    dtype = info.dtype
    kind = "f" if dtype.kind == "V" else dtype.kind  # bfloat16
    if array.size and kind not in FITTING[array.dtype.kind]:
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        is_lost = (
            np.isfinite(array) & ~np.isfinite(converted) if kind == "f" else converted != array
        )
    if is_lost.any():
        raise InputError(
            f"input {info.name!r} holds {array[is_lost][0]}, which {dtype} cannot hold. "
            "Remedy: give numbers in the range of the type."
        )
    return converted
