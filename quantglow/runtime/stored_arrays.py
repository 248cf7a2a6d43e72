"""Arrays of a saved model, in as few bytes as give them back exactly.

=========  ========================================================================================
packed     small arrays follow each other in one member, each as planes of its elements' bytes: a
           member's header, entry in the directory of the archive and hash have some 500 bytes,
           more than most biases, whose upper bytes are much alike
halves     float32 is written as float16 where that has all of its values
deltas     the difference to an earlier array, where most of it is 0: the steps of a recurrence have
           weights that were rounded apart
=========  ========================================================================================
"""

from __future__ import annotations

import io
import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from quantglow.types import Array

PACKED = "constants/packed.bin"
SMALL_NBYTES = 1 << 16
FIRST = 64
"""Elements that are tried before all of an array."""

MOST_CHANGED = 0.5
"""Maximum share of the elements in which an array differs from the one it is written against."""

BASES = 4
"""Earlier arrays of the same type and shape that an array is compared with."""

KINDS = "biuf"
"""Kinds of element types that packed arrays may have."""

Kind = tuple[np.dtype[Any], tuple[int, ...]]


@dataclass
class ArrayStore:
    """Arrays to be written, each once.  ``numbers``: by ``.npy`` bytes; ``written``: what stands
    for them in the file.
    """

    numbers: dict[bytes, int] = field(default_factory=dict)
    written: list[Array] = field(default_factory=list)
    halves: list[int] = field(default_factory=list)
    deltas: dict[int, int] = field(default_factory=dict)
    recent: defaultdict[Kind, deque[tuple[int, Array]]] = field(
        default_factory=lambda: defaultdict(partial(deque, maxlen=BASES))
    )

    def number_of(self, array: Array) -> int:
        """The number of an array; it is added if it is new."""
        array = np.asarray(array, order="C")
        data = npy(array)
        if data not in self.numbers:
            self.numbers[data] = number = len(self.numbers)
            self.written.append(self._form(array, number))
        return self.numbers[data]

    def _form(self, array: Array, number: int) -> Array:
        """What is written of a new array."""
        if fits_half(array):
            self.halves.append(number)
            return array.astype(np.float16)
        bases = self.recent[array.dtype, array.shape]
        changed = [np.count_nonzero(bits(array) != bits(other)) for _, other in bases]
        form = array
        if changed and min(changed) < MOST_CHANGED * array.size:
            self.deltas[number], base = bases[changed.index(min(changed))]
            form = difference(array, base)
        bases.append((number, array))
        return form

    def members(self) -> dict[str, bytes]:
        """Names and contents of the members."""
        packed = b"".join(planes(array) for array in self.written if is_small(array))
        large = ((n, array) for n, array in enumerate(self.written) if not is_small(array))
        found = {member_of(number): npy(array) for number, array in large}
        return {PACKED: packed, **found} if any(map(is_small, self.written)) else found

    def manifest(self) -> dict[str, Any]:
        """Which arrays are written in other forms, and the types of those without a header."""
        small = ((n, array) for n, array in enumerate(self.written) if is_small(array))
        packed = [(n, array.dtype.newbyteorder("<").str, array.shape) for n, array in small]
        return {"packed": packed, "halves": self.halves, "deltas": [*self.deltas.items()]}


@dataclass(frozen=True)
class Forms:
    """Which arrays of a file are written in other forms than one ``.npy`` member each."""

    packed: Mapping[int, Kind] = field(default_factory=dict)
    halves: frozenset[int] = frozenset()
    deltas: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(manifest: Mapping[str, Any]) -> Forms:
        """Those in a manifest.  Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        packed = {int(n): kind_of(dtype, shape) for n, dtype, shape in manifest["packed"]}
        deltas = {int(n): int(base) for n, base in manifest["deltas"]}
        return Forms(packed, frozenset(map(int, manifest["halves"])), deltas)

    def members(self, numbers: Collection[int]) -> set[str]:
        """The members that hold the arrays of these numbers."""
        own = {member_of(number) for number in numbers if number not in self.packed}
        return {PACKED, *own} if self.packed else own

    def unpacked(self, data: bytes) -> dict[int, Array]:
        """The small arrays.  Raises ``ValueError``."""
        found, start = {}, 0
        for number, (dtype, shape) in self.packed.items():
            end = start + math.prod(shape) * dtype.itemsize
            found[number] = from_planes(data[start:end], dtype, shape)
            start = end
        if start != len(data):
            raise ValueError(f"{PACKED!r} has {len(data)} bytes, its arrays {start}")
        return found

    def arrays(self, written: Mapping[int, Array]) -> dict[int, Array]:
        """The arrays from what is written of them.  Raises ``KeyError`` or ``ValueError``."""
        found: dict[int, Array] = {}
        for number, array in sorted(written.items()):
            if number in self.halves:
                array = array.astype(np.float32)
            if number in self.deltas:  # found has only earlier ones
                array = restored(array, found[self.deltas[number]])
            found[number] = array
        return found


def kind_of(dtype: str, shape: Sequence[int]) -> Kind:
    """A type and a shape from a manifest.  Raises ``TypeError`` or ``ValueError``."""
    kind, sizes = np.dtype(str(dtype)), tuple(map(int, shape))
    if kind.kind not in KINDS or min(sizes, default=0) < 0:
        raise ValueError(f"an array is {dtype} {shape}")
    return kind, sizes


def is_small(array: Array) -> bool:
    """Whether an array is written beside others."""
    return array.nbytes < SMALL_NBYTES


def planes(array: Array) -> bytes:
    """The first bytes of all elements, then the second ones, and so on."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.frombuffer(little.tobytes(), np.uint8).reshape(-1, array.itemsize).T.tobytes()


def from_planes(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The array that ``planes`` gave.  Raises ``ValueError``."""
    rows = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1 if data else 0)
    return np.frombuffer(rows.T.tobytes(), dtype).reshape(shape)


def fits_half(array: Array) -> bool:
    """Whether an array is float32 and float16 has all of its values."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.dtype == np.float32 and all(
            part.astype(np.float16).astype(np.float32).tobytes() == part.tobytes()
            for part in (array.reshape(-1)[:FIRST], array)
        )


def difference(array: Array, base: Array) -> Array:
    """The array less another one of its type and shape, element by element as integers."""
    return (bits(array) - bits(base)).view(array.dtype)


def restored(delta: Array, base: Array) -> Array:
    """The array whose ``difference`` to a base is known.  Raises ``ValueError``."""
    if (delta.dtype, delta.shape) != (base.dtype, base.shape):
        raise ValueError(f"the base of a {delta.dtype} {delta.shape} is {base.dtype} {base.shape}")
    return (bits(delta) + bits(base)).view(delta.dtype)


def bits(array: Array) -> Array:
    """The elements as unsigned integers, which wrap around."""
    return np.asarray(array, order="C").view(f"u{array.dtype.itemsize}")


def npy(array: Array) -> bytes:
    """The bytes of a ``.npy`` file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def from_npy(data: bytes) -> Array:
    """The array in the bytes of a ``.npy`` file.  Raises ``ValueError``."""
    array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def member_of(number: int) -> str:
    """The member that holds one array."""
    return f"constants/{number}.npy"
