"""Calibration data in the shapes people have it, as feeds of the model.  Everything is checked."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from quantglow.errors import CalibrationError
from quantglow.graph.node import Input
from quantglow.types import Array

Feeds = dict[str, Array]


def feeds_of(data: Any, inputs: tuple[Input, ...]) -> Iterator[Feeds]:
    """Feeds of one model batch each, from samples that hold one or several.

    ``data``: an iterable of samples, an object with ``get_next()`` (onnxruntime's
    CalibrationDataReader), the path of an ``.npz`` file with an array for each input, or one
    sample.  A sample: dict input name -> array, a tuple or list of arrays in the order of the
    inputs, or one array.  Raises ``CalibrationError``.
    """
    for index, sample in enumerate(_samples(data)):
        arrays = _by_name(sample, inputs, index)
        checked = {i.name: _checked(arrays[i.name], i, index) for i in inputs}
        yield from _batches(checked, inputs, index)


def _samples(data: Any) -> Iterable[Any]:
    if data is None:
        raise CalibrationError(
            "calibration data is missing. Remedy: pass an iterable of samples, a "
            "CalibrationDataReader, or the path of an .npz file."
        )
    if isinstance(data, str | os.PathLike):
        return [_load(data)]
    if hasattr(data, "get_next"):
        return iter(data.get_next, None)
    if isinstance(data, np.ndarray | Mapping):
        return [data]
    if not isinstance(data, Iterable):
        raise CalibrationError(
            f"calibration data of type {type(data).__name__} cannot be iterated. "
            "Remedy: pass a list of samples."
        )
    return data


def _load(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds one array without a name")
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CalibrationError(
            f"cannot read calibration data {os.fspath(path)!r}: {error}. "
            "Remedy: write it with numpy.savez, one array for each input."
        ) from error


def _by_name(sample: Any, inputs: tuple[Input, ...], index: int) -> Mapping[str, Any]:
    names = [i.name for i in inputs]
    if isinstance(sample, Mapping):
        missing, unknown = set(names) - sample.keys(), sample.keys() - set(names)
        if missing or unknown:
            raise CalibrationError(
                f"sample {index} has inputs {sorted(map(str, sample))}, the model takes {names}. "
                "Remedy: name the arrays as the model's inputs."
            )
        return sample
    arrays = sample if isinstance(sample, tuple | list) else [sample]
    if len(arrays) != len(names):
        raise CalibrationError(
            f"sample {index} has {len(arrays)} array(s), the model takes {len(names)}: {names}. "
            "Remedy: leave out labels, and give one array for each input in this order."
        )
    return dict(zip(names, arrays, strict=True))


def _checked(value: Any, node: Input, index: int) -> Array:
    """The array in the input's element type; its first axis may hold several batches."""
    array, kind = np.asarray(value), node.type
    if array.dtype == np.float64 and kind.dtype.is_float:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    if array.dtype != kind.dtype.numpy:
        raise _unfit(node, index, f"elements of {kind.dtype.numpy}", str(array.dtype), "cast it")
    batch = kind.shape[0] if kind.shape else 1
    expected = f"shape {kind.shape}" + (" or a multiple of its first axis" if kind.shape else "")
    if array.ndim != kind.rank or array.shape[1:] != kind.shape[1:]:
        raise _unfit(node, index, expected, str(array.shape), "preprocess as for the model")
    if kind.rank and (not batch or not len(array) or len(array) % batch):
        remedy = f"give batches of {batch} (or a multiple), or import the model at another batch"
        raise _unfit(node, index, expected, str(array.shape), remedy)
    if kind.dtype.is_float and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise CalibrationError(
            f"sample {index} has {bad} NaN or Inf value(s) in input {node.name!r}. "
            "Remedy: look at the preprocessing, or leave the sample out."
        )
    return array


def _unfit(node: Input, index: int, expected: str, got: str, remedy: str) -> CalibrationError:
    return CalibrationError(
        f"sample {index} does not fit input {node.name!r}: expected {expected}, got {got}. "
        f"Remedy: {remedy}."
    )


def _batches(arrays: Feeds, inputs: tuple[Input, ...], index: int) -> Iterator[Feeds]:
    """The arrays cut along their first axes into batches of the model's size."""
    sizes = {i.name: i.type.shape[0] for i in inputs if i.type.shape}
    counts = {name: len(arrays[name]) // size for name, size in sizes.items()}
    if len(set(counts.values())) > 1:
        raise CalibrationError(
            f"sample {index} holds different numbers of batches for its inputs: {counts}. "
            "Remedy: give the same number for each."
        )
    for i in range(max(counts.values(), default=1)):
        yield {
            name: array[i * sizes[name] : (i + 1) * sizes[name]] if name in sizes else array
            for name, array in arrays.items()
        }
