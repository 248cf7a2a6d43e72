"""Calibration data in the shapes people have it, as feeds of the model.  Everything is checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from quantglow.errors import CalibrationError, InputError
from quantglow.files import cause, read_arrays
from quantglow.graph.signature import Dim, Port, Signature
from quantglow.types import Array

Feeds = dict[str, Array]


def feeds_of(data: Any, signature: Signature) -> Iterator[Feeds]:
    """Feeds of one model batch each, from samples that hold one or several.

    A batch has the size of the inputs' first axes, and is one where all of them are free.  Of a
    model with other free dimensions only, each sample is fed as it is.

    ``data``: an iterable of samples, an object with ``get_next()`` (onnxruntime's
    CalibrationDataReader), the path of an ``.npz`` file with an array for each input, or one
    sample.  A sample: dict input name -> array, a tuple or list of arrays in the order of the
    inputs, or one array.  Raises ``CalibrationError``.
    """
    for index, sample in enumerate(_samples(data)):
        arrays = _by_name(sample, [port.name for port in signature.inputs], index)
        sizes = batch_sizes(signature)
        checked = {
            port.name: _checked(arrays[port.name], port, sizes.get(port.name), index)
            for port in signature.inputs
        }
        _check_symbols(checked, signature, index)
        yield from _batches(checked, sizes, index)


def first_of(data: Any, signature: Signature) -> tuple[Feeds | None, Any]:
    """The first feeds, None if there are none, and data that still has them.

    Raises ``CalibrationError``.
    """
    samples = _samples(data)
    iterator = iter(samples)
    for sample in iterator:
        again = chain([sample], iterator) if iterator is samples else data
        return next(feeds_of([sample], signature), None), again
    return None, data


def batch_sizes(signature: Signature) -> dict[str, int]:
    """For each input the size of a batch along its first axis; empty if samples stay whole."""
    if signature.has_free_batch:
        return {port.name: 1 for port in signature.inputs}
    if signature.is_free:
        return {}
    return {port.name: int(port.dims[0] or 0) for port in signature.inputs if port.dims}


def _check_symbols(arrays: Feeds, signature: Signature, index: int) -> None:
    """Raise ``CalibrationError`` where a symbol has two sizes."""
    if not signature.is_free:
        return
    try:
        signature.check({name: array.shape for name, array in arrays.items()})
    except InputError as error:
        raise CalibrationError(f"sample {index} does not fit the model: {error}") from None


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
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"cannot read calibration data {os.fspath(path)!r}: {cause(error)}. "
            "Remedy: write it with numpy.savez, one array for each input."
        ) from error


def _by_name(sample: Any, names: list[str], index: int) -> Mapping[str, Any]:
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


def _checked(value: Any, port: Port, batch: int | None, index: int) -> Array:
    """The array in the input's element type; its first axis may hold several batches."""
    array, wanted = np.asarray(value), port.dtype.numpy
    if array.dtype == np.float64 and port.dtype.is_float:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    if array.dtype != wanted:
        raise _unfit(port, index, f"elements of {wanted}", str(array.dtype), "cast it")
    is_whole = batch is None or isinstance(port.dims and port.dims[0], str | None)
    expected = f"shape {port}" + ("" if is_whole else " or a multiple of its first axis")
    if not _fits(array.shape, port.dims, whole=batch is None):
        raise _unfit(port, index, expected, str(array.shape), "preprocess as for the model")
    if batch is not None and array.ndim and not len(array):
        raise CalibrationError(
            f"sample {index} holds no data: input {port.name!r} has shape {array.shape}. "
            "Remedy: give one sample or more along the first axis."
        )
    if batch is not None and (not batch or len(array) % batch):
        remedy = f"give batches of {batch} (or a multiple), or import the model at another batch"
        raise _unfit(port, index, expected, str(array.shape), remedy)
    if port.dtype.is_float and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        raise CalibrationError(
            f"sample {index} has {len(bad)} NaN or Inf value(s) in input {port.name!r}, the first "
            f"at {bad[0].tolist()}. Remedy: look at the preprocessing, or leave the sample out."
        )
    return array


def _fits(shape: tuple[int, ...], dims: tuple[Dim, ...] | None, whole: bool) -> bool:
    """Whether the fixed sizes are these; the first may hold several batches."""
    if dims is None:
        return True
    pairs = list(zip(shape, dims, strict=False))[0 if whole else 1 :]
    return len(shape) == len(dims) and all(s == d for s, d in pairs if isinstance(d, int))


def _unfit(port: Port, index: int, expected: str, got: str, remedy: str) -> CalibrationError:
    return CalibrationError(
        f"sample {index} does not fit input {port.name!r}: expected {expected}, got {got}. "
        f"Remedy: {remedy}."
    )


def _batches(arrays: Feeds, sizes: Mapping[str, int], index: int) -> Iterator[Feeds]:
    """The arrays cut along their first axes into batches of these sizes."""
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
