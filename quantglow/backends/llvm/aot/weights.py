"""The constants of a program as one block of memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import numpy as np

from quantglow.concise import Concise
from quantglow.lazy import cached_property
from quantglow.memory.planner import ALIGNMENT
from quantglow.types import Array


class Placement(StrEnum):
    """Places of the constants.

    ``OBJECT``  in the object
    ``C``       in an array that C code defines
    ``BIN``     in memory that the caller fills from a file
    """

    OBJECT = "object"
    C = "c"
    BIN = "bin"


@dataclass(frozen=True, eq=False, repr=False)
class Weights(Concise):
    """Constants one after the other, each aligned, and ``slack_nbytes`` zeros that kernels may read
    after the last one.
    """

    constants: tuple[Array, ...]
    placement: Placement
    slack_nbytes: int

    @cached_property
    def _ends(self) -> list[int]:
        """Offset of each constant, then that of the end, in bytes."""
        return list(accumulate((_aligned(c.nbytes) for c in self.constants), initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self._ends[-1] + self.slack_nbytes

    def offset_bytes(self, index: int) -> int:
        """Offset of a constant."""
        return self._ends[index]

    @cached_property
    def marker(self) -> bytes:
        """Bytes in an object that stand at the beginning of the block until it is filled."""
        digest = hashlib.sha256(b"quantglow: the block of weights begins here")
        return digest.digest()[: self.slack_nbytes]

    def pieces(self) -> Iterator[bytes]:
        """The block, piece by piece."""
        for constant in self.constants:
            data = np.ascontiguousarray(constant).tobytes()
            yield data
            yield bytes(_aligned(len(data)) - len(data))
        yield bytes(self.slack_nbytes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
