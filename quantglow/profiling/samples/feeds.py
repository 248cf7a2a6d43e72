"""Calibration data in every usual form, checked and cut into feeds of the model.

``samples_at`` chooses the reader of a path: a file of arrays, a table, or a folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.ir.graph.signature import (
    Port,
    PortDim,
    Signature,
    as_declared,
    as_float32,
    as_strings,
    is_float,
)
from quantglow.ir.types import DType
from quantglow.profiling.samples import files as array_files
from quantglow.profiling.samples import images
from quantglow.profiling.samples.files import (
    Feeds,
    Located,
    SampleTable,
    Unnamed,
    as_array,
    without_labels,
)
from quantglow.support.arrays import Array, content
from quantglow.support.errors import CalibrationError, InputError
from quantglow.support.files import cause

TABLES = (".csv", ".parquet")

READERS: dict[str, Callable[[Path, tuple[str, ...]], Iterable[Any]]] = {
    ".csv": SampleTable,
    ".npy": lambda path, names: [array_files.one_array(path)],
    ".parquet": SampleTable,
}
"""Readers by suffix; a file with any other suffix is one of named arrays."""

__all__ = [
    "Feeds",
    "Located",
    "SamplePlace",
    "batch_sizes",
    "first_feeds",
    "is_one",
    "read_feeds",
    "samples_in",
]


def read_feeds(
    data: Any, signature: Signature, called: str = "the calibration data"
) -> Iterator[Located]:
    """Feeds of one model batch each, from samples that hold one or several.

    A batch has the size of the inputs' first axes, or 1 if all of these are free.  If some of them
    are free, or no rank is known, each sample is fed uncut.

    ``data`` is an iterable of samples, an object with ``get_next()`` (onnxruntime's
    CalibrationDataReader), a path (see ``samples_at``), or one sample.  A sample is a dict from
    input name to array, a tuple or list of arrays in the order of the inputs, or one array; labels
    are left out.  It may lack the axis of the batch.  Feeds are copies: an iterator may fill the
    same arrays again.  ``called`` is how errors call the data.  Raises ``CalibrationError``.
    """
    whole = data_name(data, called) if is_one(data) else ""
    sizes, names = batch_sizes(signature), input_names(signature)
    for index, element in enumerate(samples_in(data, names)):
        sample, _ = without_labels(element, names)
        origin = sample.place if isinstance(sample, Located | Unnamed) else ""
        place = SamplePlace(index, origin, whole)
        values = sample.values if isinstance(sample, Unnamed) else sample
        arrays = _by_name(values, names, place)
        checked = {
            port.name: _check(arrays[port.name], port, sizes.get(port.name), place)
            for port in signature.inputs
        }
        _check_symbols(checked, {} if signature.has_free_batch else sizes, signature, place)
        yield from _batches(checked, sizes, place)


@dataclass(frozen=True)
class SamplePlace:
    """Place of an element of the user's data.

    ``origin`` is the place of the sample that it was cut from; ``whole`` is the name of the data if
    it is one array (or one for each input) that holds all samples.
    """

    index: int
    origin: str = ""
    whole: str = ""

    def __str__(self) -> str:
        return self.origin or self.whole or f"sample {self.index}"

    def of_batch(self, batch: int, size: int, count: int) -> str:
        """The place of one of ``count`` batches of ``size`` rows in the element."""
        if self.origin or count == 1:
            return str(self)
        first = batch * size
        rows = f"{first}" if size == 1 else f"{first} to {first + size - 1}"
        if self.whole:
            return f"sample{'s' if size > 1 else ''} {rows}"
        return f"{self}, row{'s' if size > 1 else ''} {rows}"


def is_one(data: Any) -> bool:
    """Whether the data is one array, or one for each input, that holds all samples."""
    if isinstance(data, str | os.PathLike):
        return not _is_streamed(data)
    return isinstance(data, np.ndarray | Mapping)


def data_name(data: Any, called: str) -> str:
    """How errors call data: by its path if it has one, or as it is ``called``."""
    return repr(os.fspath(data)) if isinstance(data, str | os.PathLike) else called


def input_names(signature: Signature) -> list[str]:
    """The names of the inputs."""
    return [port.name for port in signature.inputs]


def first_feeds(data: Any, signature: Signature) -> tuple[Feeds | None, Any]:
    """The first feeds, and data that still contains them; None if there are none that fit."""
    with suppress(CalibrationError):
        samples = samples_in(data, input_names(signature))
        iterator = iter(samples)
        for sample in iterator:
            data = chain([sample], iterator) if iterator is samples else data
            return next(read_feeds([sample], signature), None), data
    return None, data


def batch_sizes(signature: Signature) -> dict[str, int]:
    """Size of a batch along the first axis of each input; empty if samples are not cut."""
    if signature.has_free_batch:
        return {port.name: 1 for port in signature.inputs}
    ports = [port for port in signature.inputs if port.dims != ()]
    if any(port.dims is None or not isinstance(port.dims[0], int) for port in ports):
        return {}
    return {port.name: int(port.dims[0] or 0) for port in ports if port.dims}


def _check_symbols(
    arrays: Feeds, sizes: Mapping[str, int], signature: Signature, place: SamplePlace
) -> None:
    """Raise ``CalibrationError`` if a symbol has two sizes; ``sizes`` are those of batches."""
    if not signature.is_free:
        return
    shapes = {name: array.shape for name, array in arrays.items()}
    shapes |= {name: (size, *shapes[name][1:]) for name, size in sizes.items()}
    try:
        signature.check(shapes)
    except InputError as error:
        raise CalibrationError(f"{place} does not fit the model: {error}") from None


def samples_in(data: Any, names: Sequence[str]) -> Iterable[Any]:
    """The samples as given by the user, one or several batches each, for inputs of some names."""
    if data is None:
        raise CalibrationError(
            "calibration data is missing. Remedy: pass an iterable of samples, a "
            "CalibrationDataReader, or the path of a file or folder."
        )
    if isinstance(data, str | os.PathLike):
        return samples_at(data, names)
    if hasattr(data, "get_next"):
        return _read_by(data)
    if isinstance(data, np.ndarray | Mapping):
        return [data]
    if isinstance(data, Iterable):
        return data
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise CalibrationError(
            f"calibration data of type {type(data).__name__} cannot be iterated. "
            "Remedy: pass a list of samples."
        )
    return _Items(data)


@dataclass(frozen=True)
class _Items:
    """The samples of a dataset that has them by number, as those of ``torch.utils.data``."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[i] for i in range(len(self)))


def _read_by(reader: Any) -> Iterator[Any]:
    """The samples of a CalibrationDataReader."""
    while (sample := reader.get_next()) is not None:
        yield sample


def _by_name(sample: Any, names: list[str], place: SamplePlace) -> Mapping[str, Any]:
    if isinstance(sample, Mapping):
        missing, unknown = set(names) - sample.keys(), sample.keys() - set(names)
        if missing or unknown:
            raise CalibrationError(
                f"{place} has inputs {sorted(map(str, sample))}, the model takes {names}. "
                "Remedy: name the arrays as the model's inputs."
            )
        return sample
    arrays = sample if isinstance(sample, tuple | list) else [sample]
    if len(arrays) != len(names):
        if arrays and all(isinstance(value, int | float) for value in arrays):
            raise CalibrationError(
                f"{place} is a list of {len(arrays)} number(s), where a list has an array for each "
                "input. Remedy: give the samples as an array, numpy.asarray(samples, "
                "numpy.float32)."
            )
        raise CalibrationError(
            f"{place} has {len(arrays)} array(s), the model takes {len(names)}: {names}. "
            "Remedy: leave out labels, and give one array for each input in this order."
        )
    return dict(zip(names, arrays, strict=True))


def _check(value: Any, port: Port, batch: int | None, place: SamplePlace) -> Array:
    """The array in the input's element type; its first axis may hold several batches.

    Floats of any type are converted as at run time: to the declared type, then to float32.
    """
    raw, dtype = _with_batch(_array(value, port, place), port), port.dtype.numpy
    is_converted = port.dtype.is_float and is_float(raw.dtype)
    array = as_float32(as_declared(port, raw)) if is_converted else raw
    if port.dtype is DType.STRING and (array := as_strings(raw)).dtype != dtype:
        raise _unfit(port, place, "strings", str(array.dtype), "give an array of strings")
    if array.dtype != dtype:
        raise _unfit(port, place, f"elements of {dtype}", str(array.dtype), "cast it")
    is_whole = batch is None or isinstance(port.dims and port.dims[0], str | None)
    expected = f"shape {port}" + ("" if is_whole else " or a multiple of its first axis")
    if not _fits(array.shape, port.dims, whole=batch is None):
        raise _unfit(port, place, expected, str(array.shape), "preprocess as for the model")
    if batch is not None and array.ndim and not len(array):
        raise CalibrationError(
            f"{place} holds no data: input {port.name!r} has shape {array.shape}. "
            "Remedy: give one sample or more along the first axis."
        )
    if batch is not None and (not batch or len(array) % batch):
        remedy = f"give batches of {batch} (or a multiple), or import the model at another batch"
        raise _unfit(port, place, expected, str(array.shape), remedy)
    if port.dtype.is_float and not np.isfinite(array).all():
        raise _not_finite(array, raw, port, batch if array.ndim else None, place)
    return array


def _array(value: Any, port: Port, place: SamplePlace) -> Array:
    """An array of a tensor or of nested lists, whose numbers get the input's type if it holds them.

    Raises ``CalibrationError``.
    """
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise CalibrationError(
            f"{place} gives no array for input {port.name!r}: {reason}. "
            "Remedy: give numbers in nested lists of equal lengths, or an array."
        ) from error
    is_listed = isinstance(value, list | tuple | int | float)
    if not is_listed or array.dtype.kind not in "iuf" or array.dtype == port.dtype.numpy:
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(port.dtype.numpy)
    return converted if port.dtype.is_float or np.array_equal(converted, array) else array


def _with_batch(array: Array, port: Port) -> Array:
    """The array, with a first axis of size 1 where it lacks one axis."""
    return array[None] if port.dims is not None and array.ndim + 1 == len(port.dims) else array


def _not_finite(
    array: Array, raw: Array, port: Port, batch: int | None, place: SamplePlace
) -> CalibrationError:
    """The error that names the first batch with NaN or Inf, or with values that became Inf."""
    bad, where = np.argwhere(~np.isfinite(array)), str(place)
    is_lost = np.isfinite(raw[tuple(bad[0])])
    kind = port.declared if port.declared == "float16" else "float32"
    what = f"value(s) too large for {kind}" if is_lost else "NaN or Inf value(s)"
    if batch is not None:
        first = int(bad[0][0]) // batch
        where = place.of_batch(first, batch, len(array) // batch)
        bad = bad[bad[:, 0] // batch == first]
        bad[:, 0] %= batch
    return CalibrationError(
        f"{where} has {len(bad)} {what} in input {port.name!r}, the first "
        f"at {bad[0].tolist()}. Remedy: look at the preprocessing, or leave the sample out."
    )


def _fits(shape: tuple[int, ...], dims: tuple[PortDim, ...] | None, whole: bool) -> bool:
    """Whether an array has these fixed sizes; its first axis may hold several batches."""
    if dims is None:
        return True
    pairs = list(zip(shape, dims, strict=False))[0 if whole else 1 :]
    return len(shape) == len(dims) and all(s == d for s, d in pairs if isinstance(d, int))


def _unfit(
    port: Port, place: SamplePlace, expected: str, got: str, remedy: str
) -> CalibrationError:
    return CalibrationError(
        f"{place} does not fit input {port.name!r}: expected {expected}, got {got}. "
        f"Remedy: {remedy}."
    )


def _batches(arrays: Feeds, sizes: Mapping[str, int], place: SamplePlace) -> Iterator[Located]:
    """Copies of the arrays, cut along their first axes into batches of some sizes."""
    counts = {name: len(arrays[name]) // size for name, size in sizes.items()}
    if len(set(counts.values())) > 1:
        raise CalibrationError(
            f"{place} holds different numbers of batches for its inputs: {counts}. "
            "Remedy: give the same number for each."
        )
    count, size = max(counts.values(), default=1), max(sizes.values(), default=1)
    for i in range(count):
        slices = {
            name: array[i * sizes[name] : (i + 1) * sizes[name]] if name in sizes else array
            for name, array in arrays.items()
        }
        copies = {name: array.copy() for name, array in slices.items()}
        yield Located(copies, place.of_batch(i, size, count))


def samples_at(path: str | os.PathLike[str], names: Sequence[str]) -> Iterable[Any]:
    """The samples of a file or folder, for a model with inputs ``names``.

    Raises ``CalibrationError``.
    """
    if not os.fspath(path):
        raise CalibrationError("the path of the data is empty. Remedy: name a file or folder.")
    place = Path(path)
    if os.path.isdir(place):
        return _samples_of_folder(place)
    if (suffix := place.suffix.lower()) in READERS:
        return READERS[suffix](place, tuple(names))
    return [array_files.open_arrays(path)]


def _is_streamed(path: str | os.PathLike[str]) -> bool:
    """Whether the samples of a path come one by one, and know their places."""
    place = Path(path)
    return place.suffix.lower() in TABLES or os.path.isdir(place)


def _samples_of_folder(folder: Path) -> Iterable[Any]:
    """The array files of a folder.  Raises ``CalibrationError`` for one of images."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise CalibrationError(
            f"cannot read the folder {str(folder)!r}: {cause(error)}. "
            "Remedy: give one that you may read."
        ) from error
    files = tuple(entry for entry in entries if entry.suffix in array_files.SUFFIXES)
    if files:
        return array_files.ArrayFolder(files)
    if any(entry.is_dir() or entry.suffix.lower() in images.SUFFIXES for entry in entries):
        raise CalibrationError(
            f"{str(folder)!r} is no folder of .npy or .npz files; how its images become inputs is "
            "not known. Remedy: quantglow.data.ImageFolder(folder, preprocess), or --preprocess."
        )
    raise CalibrationError(
        f"{str(folder)!r} has no .npy or .npz files. Remedy: write one for each sample."
    )


def hash_feeds(feeds: Mapping[str, Array]) -> bytes:
    """A digest of names, types and contents."""
    digest = hashlib.blake2b(b"held out", digest_size=16)
    for name, array in sorted(feeds.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(content(array))
    return digest.digest()
