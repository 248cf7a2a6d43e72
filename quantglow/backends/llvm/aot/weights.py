"""The constants of a program as one block of memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import numpy as np

from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.concise import Concise
from quantglow.foreign_types import Array
from quantglow.lazy import cached_property
from quantglow.memory.arena_order import ALIGNMENT


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

    ``positions``: for each constant of a program, which of ``constants`` it is.
    """

    constants: tuple[Array, ...]
    placement: Placement
    slack_nbytes: int
    positions: tuple[int, ...]

    @cached_property
    def _ends(self) -> list[int]:
        """Offset of each constant, then that of the end, in bytes."""
        return list(accumulate((_aligned(c.nbytes) for c in self.constants), initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self._ends[-1] + self.slack_nbytes

    def offset_bytes(self, index: int) -> int:
        """Offset of a constant of the program."""
        return self._ends[self.positions[index]]

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


def weights_of(programs: Sequence[EmittedProgram], placement: Placement) -> list[Weights]:
    """The weights of each program: one block for all, which has equal constants once."""
    slack_nbytes = max(program.target.isa.slack_nbytes for program in programs)
    known: dict[bytes, int] = {}
    constants: list[Array] = []
    positions: list[tuple[int, ...]] = []
    for program in programs:
        own = []
        for constant in program.constants:
            key = hashlib.sha256(np.ascontiguousarray(constant).tobytes()).digest()
            if known.setdefault(key, len(constants)) == len(constants):
                constants.append(constant)
            own.append(known[key])
        positions.append(tuple(own))
    return [Weights(tuple(constants), placement, slack_nbytes, own) for own in positions]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
