"""Arrays of a saved model, losslessly in few bytes.

=========  ========================================================================================
packed     small arrays share one member, each as planes of its elements' bytes: the header,
           directory entry and hash of a member have some 500 bytes, more than most biases, whose
           upper bytes are similar
halves     float32 is written as float16 if that holds all of its values
deltas     the difference to an earlier array, if most of it is 0: the weights of a recurrence's
           steps are rounded separately
fourier    the matrix of a Fourier transform is computed from its stored turns and window by exact
           operations, so that it is the same on every machine
=========  ========================================================================================
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from quantglow.runtime.saved.members import FREE_NBYTES, member_nbytes
from quantglow.support.arrays import Array
from quantglow.support.fourier import FourierMatrix, Windowed, recognize
from quantglow.support.pages import PIECE_NBYTES, Content, Data, JoinedBytes, iterate_pieces
from quantglow.support.processes.threads import run_undisturbed

PACKED = "constants/packed.bin"
SMALL_NBYTES = 1 << 16
FIRST = 64
"""Number of elements that are compared before the whole array."""

MOST_CHANGED = 0.5
"""Maximum share of the elements in which an array differs from the one it is written against."""

BASES = 4
"""Number of earlier arrays of the same type and shape that an array is compared with."""

LEAST_FOURIER_NBYTES = 1 << 14
"""Minimum size of a matrix that is stored as a Fourier transform, in bytes."""

KINDS = "biuf"
"""Kinds of element types that packed arrays may have."""

Kind = tuple[np.dtype[Any], tuple[int, ...]]


@dataclass(frozen=True)
class Fourier:
    """A matrix of a Fourier transform: its shape, and the numbers of its turns and its window."""

    shape: tuple[int, ...]
    matrix: FourierMatrix
    turns: int
    window: int

    def to_json(self) -> list[Any]:
        """The entry of a manifest."""
        return [self.shape, astuple(self.matrix), self.turns, self.window]

    @staticmethod
    def of(shape: Sequence[int], matrix: Sequence[Any], turns: int, window: int) -> Fourier:
        """The entry from the result of ``to_json``.  Raises ``TypeError`` or ``ValueError``."""
        n, samples, bins, (inputs, outputs), direction, groups = matrix
        sizes = map(int, (n, samples, bins, direction, groups, inputs, outputs))
        n, samples, bins, direction, groups, inputs, outputs = sizes
        fourier = FourierMatrix(n, samples, bins, (inputs, outputs), direction, groups)
        return Fourier(tuple(map(int, shape)), fourier, int(turns), int(window))

    def array(self, arrays: Mapping[int, Array]) -> Array:
        """The matrix.  Raises ``KeyError`` or ``ValueError``."""
        table = np.asarray(arrays[self.turns], np.float64)
        window = np.asarray(arrays[self.window], np.float64)
        if table.shape != (self.matrix.n, 2) or window.shape != (self.matrix.samples,):
            raise ValueError(f"turns {table.shape} and window {window.shape} of {self.matrix}")
        elements = Windowed(self.matrix, window).elements(table[:, 0] + 1j * table[:, 1])
        return elements.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Written:
    """An array as the file has it: of another type, or as the difference to a ``base``.

    Its bytes are computed where they are read: a model's weights are not copied.
    """

    array: Array
    dtype: np.dtype[Any]
    base: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, which is that of the array."""
        return self.array.shape

    @property
    def elements(self) -> Array:
        """All elements [size]."""
        return self._elements(slice(None))

    def __len__(self) -> int:
        """Bytes of its elements."""
        return self.array.size * self.dtype.itemsize

    def __getitem__(self, section: slice) -> Data:
        start, stop, _ = section.indices(len(self))
        first, end = start // self.dtype.itemsize, -(-stop // self.dtype.itemsize)
        skipped = start - first * self.dtype.itemsize
        data = self._elements(slice(first, end)).view(np.uint8).data
        return data[skipped : skipped + max(0, stop - start)]

    def _elements(self, positions: slice) -> Array:
        elements = self.array.reshape(-1)[positions]
        if self.base is not None:
            return _difference(elements, self.base.reshape(-1)[positions])
        return elements.astype(self.dtype, copy=False)


@dataclass
class ArrayStore:
    """Arrays to be written, each once; ``numbers`` are keyed by hashes of ``.npy`` bytes."""

    numbers: dict[bytes, int] = field(default_factory=dict)
    written: dict[int, Written] = field(default_factory=dict)
    halves: list[int] = field(default_factory=list)
    deltas: dict[int, int] = field(default_factory=dict)
    fourier: dict[int, Fourier] = field(default_factory=dict)
    recent: defaultdict[Kind, deque[tuple[int, Array]]] = field(
        default_factory=lambda: defaultdict(partial(deque, maxlen=BASES))
    )

    def number_of(self, array: Array) -> int:
        """The number of an array; it is added if it is new."""
        array = np.asarray(array, order="C")
        key = _hash_array(array)
        if key not in self.numbers:
            self.numbers[key] = number = len(self.numbers)
            if (fourier := self._fourier(array)) is not None:
                self.fourier[number] = fourier
            else:
                self.written[number] = self._form(array, number)
        return self.numbers[key]

    def _fourier(self, array: Array) -> Fourier | None:
        """The Fourier transform of an array, if a reader can compute exactly this array from it."""
        nbytes = sum(4 * recognized.matrix.size for recognized in self.fourier.values())
        if array.nbytes < LEAST_FOURIER_NBYTES or nbytes + array.nbytes > FREE_NBYTES:
            return None
        if (recognized := recognize(array)) is None:
            return None
        windowed, table = recognized
        window, narrow = windowed.window, windowed.window.astype(np.float32)
        numbers = (
            self.number_of(np.stack([table.real, table.imag], axis=1)),
            self.number_of(narrow if (narrow == window).all() else window),
        )
        return Fourier(array.shape, windowed.matrix, *numbers)

    def _form(self, array: Array, number: int) -> Written:
        """The form of a new array in the file."""
        if _fits_half(array):
            self.halves.append(number)
            return Written(array, np.dtype(np.float16))
        bases = self.recent[array.dtype, array.shape]
        changed = [np.count_nonzero(_bits(array) != _bits(other)) for _, other in bases]
        base: Array | None = None
        if changed and min(changed) < MOST_CHANGED * array.size:
            self.deltas[number], base = bases[changed.index(min(changed))]
        bases.append((number, array))
        return Written(array, array.dtype, base)

    def members(self) -> dict[str, Content]:
        """Names and contents of the members."""
        small = [_planes(form.elements) for form in self.written.values() if _is_small(form)]
        large = {n: form for n, form in self.written.items() if not _is_small(form)}
        members: dict[str, Content]
        members = {member_name(number): _npy_parts(form) for number, form in large.items()}
        return {PACKED: b"".join(small), **members} if small else members

    @property
    def nbytes(self) -> int:
        """Size of the members in a file; for long ones an estimate."""
        return int(sum(map(member_nbytes, self.members().values())))

    def manifest(self) -> dict[str, Any]:
        """Numbers of the arrays in each form, and the types of those without a header."""
        small = ((n, form) for n, form in self.written.items() if _is_small(form))
        return {
            "packed": [(n, form.dtype.newbyteorder("<").str, form.shape) for n, form in small],
            "halves": self.halves,
            "deltas": [*self.deltas.items()],
            "fourier": [(number, *fourier.to_json()) for number, fourier in self.fourier.items()],
        }


def stored_nbytes(arrays: Iterable[Array]) -> int:
    """Bytes that a file has of arrays, each once."""
    store = ArrayStore()
    for array in {id(array): array for array in arrays}.values():
        store.number_of(array)
    return store.nbytes


@dataclass(frozen=True)
class ArrayForms:
    """Numbers of a file's arrays that are not one plain ``.npy`` member each, by form."""

    packed: Mapping[int, Kind] = field(default_factory=dict)
    halves: frozenset[int] = frozenset()
    deltas: Mapping[int, int] = field(default_factory=dict)
    fourier: Mapping[int, Fourier] = field(default_factory=dict)

    @staticmethod
    def of(manifest: Mapping[str, Any]) -> ArrayForms:
        """The forms in a manifest.  Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        packed = {int(n): _array_kind(dtype, shape) for n, dtype, shape in manifest["packed"]}
        deltas = {int(n): int(base) for n, base in manifest["deltas"]}
        fourier = {int(n): Fourier.of(*fields) for n, *fields in manifest["fourier"]}
        return ArrayForms(packed, frozenset(map(int, manifest["halves"])), deltas, fourier)

    @property
    def made_nbytes(self) -> int:
        """Size of the arrays that are computed anew, in bytes."""
        return sum(4 * fourier.matrix.size for fourier in self.fourier.values())

    def stored(self, numbers: Collection[int]) -> set[int]:
        """Numbers of the stored arrays that some arrays are made from."""
        sources = ((fourier.turns, fourier.window) for fourier in self.fourier.values())
        return {*numbers, *itertools.chain.from_iterable(sources)} - self.fourier.keys()

    def members(self, numbers: Collection[int]) -> set[str]:
        """Members that hold some arrays."""
        names = {member_name(number) for number in self.stored(numbers) - self.packed.keys()}
        return {PACKED, *names} if self.packed else names

    def unpacked(self, data: bytes) -> dict[int, Array]:
        """The small arrays.  Raises ``ValueError``."""
        arrays, start = {}, 0
        for number, (dtype, shape) in self.packed.items():
            end = start + math.prod(shape) * dtype.itemsize
            arrays[number] = _from_planes(data[start:end], dtype, shape)
            start = end
        if start != len(data):
            raise ValueError(f"{PACKED!r} has {len(data)} bytes, its arrays {start}")
        return arrays

    def widen(self, number: int, array: Array) -> Array:
        """An array of the file, as float32 if it is written as float16."""
        return array.astype(np.float32) if number in self.halves else array

    def arrays(self, wide: Mapping[int, Array]) -> dict[int, Array]:
        """The arrays from ``widened`` ones.  Raises ``KeyError`` or ``ValueError``."""
        arrays: dict[int, Array] = {}
        for number, array in sorted(wide.items()):
            if number in self.deltas:  # found has earlier arrays only
                array = _restore(array, arrays[self.deltas[number]])
            arrays[number] = array
        return arrays | {number: fourier.array(arrays) for number, fourier in self.fourier.items()}


def _array_kind(dtype: str, shape: Sequence[int]) -> Kind:
    """A type and a shape from a manifest.  Raises ``TypeError`` or ``ValueError``."""
    kind, sizes = np.dtype(str(dtype)), tuple(map(int, shape))
    if kind.kind not in KINDS or min(sizes, default=0) < 0:
        raise ValueError(f"an array is {dtype} {shape}")
    return kind, sizes


def _is_small(form: Written) -> bool:
    """Whether an array is packed with others."""
    return len(form) < SMALL_NBYTES


def _planes(array: Array) -> bytes:
    """The first bytes of all elements, then the second ones, and so on."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.frombuffer(little.tobytes(), np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _from_planes(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The array from the result of ``planes``.  Raises ``ValueError``."""
    rows = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1 if data else 0)
    return np.frombuffer(rows.T.tobytes(), dtype).reshape(shape)


def _fits_half(array: Array) -> bool:
    """Whether an array is float32 and float16 has all of its values."""
    flat, step = array.reshape(-1), PIECE_NBYTES // 4
    pieces = (slice(FIRST), *(slice(i, i + step) for i in range(0, flat.size, step)))
    with np.errstate(all="ignore"):
        return array.dtype == np.float32 and all(
            flat[piece].astype(np.float16).astype(np.float32).tobytes() == flat[piece].tobytes()
            for piece in pieces
        )


def _difference(array: Array, base: Array) -> Array:
    """The array less another one of its type and shape, element by element as integers."""
    return (_bits(array) - _bits(base)).view(array.dtype)


def _restore(delta: Array, base: Array) -> Array:
    """The array whose ``difference`` to a base is known.  Raises ``ValueError``."""
    if (delta.dtype, delta.shape) != (base.dtype, base.shape):
        raise ValueError(f"the base of a {delta.dtype} {delta.shape} is {base.dtype} {base.shape}")
    return (_bits(delta) + _bits(base)).view(delta.dtype)


def _bits(array: Array) -> Array:
    """The elements as unsigned integers, which wrap around."""
    return np.asarray(array, order="C").view(f"u{array.dtype.itemsize}")


def npy(array: Array) -> bytes:
    """The bytes of a ``.npy`` file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def _npy_parts(form: Written) -> JoinedBytes:
    """The same bytes, those of the elements where they are read."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(form.dtype)
    description = {"descr": descr, "fortran_order": False, "shape": form.shape}
    np.lib.format.write_array_header_1_0(header, description)
    return JoinedBytes((header.getvalue(), form))


def _hash_array(array: Array) -> bytes:
    """A hash of the ``.npy`` bytes."""
    digest = hashlib.sha256()
    for piece in iterate_pieces(_npy_parts(Written(array, array.dtype))):
        digest.update(piece)
    return digest.digest()


def from_npy(data: bytes) -> Array:
    """The array in the bytes of a ``.npy`` file, not copied if ``_npy_parts`` wrote it.  Raises
    ``ValueError``.
    """
    if not data.startswith(np.lib.format.magic(1, 0)):
        return run_undisturbed(
            lambda: np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        )
    (shape, is_fortran, dtype), start = run_undisturbed(lambda: _npy_header(data))
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded: they are pickles")
    if min(shape, default=0) < 0:
        raise ValueError(f"an array is {dtype} {shape}")
    flat = np.frombuffer(data, dtype, math.prod(shape), start)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _npy_header(data: bytes) -> tuple[tuple[tuple[int, ...], bool, np.dtype[Any]], int]:
    """The header of a ``.npy`` file of version 1, and where its elements begin."""
    file = io.BytesIO(data)
    file.seek(np.lib.format.MAGIC_LEN)
    return np.lib.format.read_array_header_1_0(file), file.tell()


def member_name(number: int) -> str:
    """The member that holds one array."""
    return f"constants/{number}.npy"
