"""Convolution of few channels: the bytes that are left of each row of a window share steps.

A row of a window of three channels is 9 (3 x 3) or 21 bytes (7 x 7): the inner loop reads bytes by
fours, so the last step of each row would multiply one byte and three zeros.  Here those last bytes
of up to four rows are gathered for all pixels of a tile at once, by permutations of bytes, and
multiplied in one step: 7 steps instead of 9, 37 instead of 42.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.kernels.contraction.packing import panel_steps
from quantglow.backends.llvm.kernels.contraction.tiling import Tile
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.foreign_types import Array
from quantglow.types import DType

MOST_ROWS = 8
"""Maximum number of rows of a window: their steps are unrolled."""
LEAST_NBYTES = 16
"""Minimum number of bytes of a row read at once."""


@dataclass
class GatheredConvKernel(ConvKernel):
    """Generator of one convolution kernel that gathers the last bytes of rows."""

    @property
    def applies(self) -> bool:
        """Whether rows leave one byte each, the target permutes bytes in an instruction, and what
        is gathered is multiplied more than once."""
        runs = self.geometry.runs
        plain = self.conv.group == 1 and self.step.inputs[0].type.dtype is DType.U8
        rows = runs.outer == 1 < runs.inner <= MOST_ROWS
        one_left = runs.nbytes % STEP_NBYTES == 1 and runs.nbytes > 1
        return self.target.isa.permutes_bytes and plain and rows and one_left and self.vectors > 1

    @property
    def full_steps(self) -> int:
        """Number of whole steps of a row."""
        return self.geometry.runs.nbytes // STEP_NBYTES

    @property
    def gathered_steps(self) -> int:
        """Number of gathered steps of the window."""
        return -(-self.geometry.runs.inner // STEP_NBYTES)

    @property
    def steps_in_all(self) -> int:
        return self.geometry.runs.inner * self.full_steps + self.gathered_steps

    @property
    def vector_steps_nbytes(self) -> int:
        return self.steps_in_all * self.dot.weight_nbytes

    @property
    def pixel_pitch(self) -> int:
        """Bytes from the window of one output pixel to that of the next."""
        return self.geometry.strides[1] * self.geometry.x.column_pitch

    @property
    def total_steps(self) -> int:
        return self.steps_in_all

    @property
    def most_columns(self) -> int:
        """Maximum number of columns of a tile: a vector holds a row of their windows."""
        return min(1 + (self.target.vector_nbytes - 1) // self.pixel_pitch, self.dot.lanes)

    @property
    def modelled_tile(self) -> Tile:
        best = super().modelled_tile
        return Tile(1, min(best.columns, self.most_columns), best.vectors)

    @property
    def possible_tiles(self) -> list[Tile]:
        return [t for t in super().possible_tiles if t.rows == 1 and t.columns <= self.most_columns]

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """For each panel: the full steps of all rows, then the gathered ones."""
        runs, packed = self.geometry.runs, []
        for steps in panel_steps(w, runs, channels):
            rows = steps.reshape(runs.inner, runs.steps, *steps.shape[1:])
            last = np.zeros((self.gathered_steps * STEP_NBYTES, *steps.shape[1:3]), w.dtype)
            last[: runs.inner] = rows[:, -1, ..., 0]
            gathered = last.reshape(self.gathered_steps, STEP_NBYTES, *steps.shape[1:3])
            packed += [rows[:, :-1].reshape(-1), np.moveaxis(gathered, 1, -1).reshape(-1)]
        return np.concatenate(packed)

    # -- one tile

    def contract(
        self, x: Value, w: Value, offsets: list[int], vectors: int, sums: list[Value]
    ) -> list[Value]:
        b, runs, step_nbytes = self.b, self.geometry.runs, vectors * self.dot.weight_nbytes
        for row in range(runs.inner):
            start = b.opaque(b.at(x, row * runs.inner_pitch))
            weights = b.at(w, row * self.full_steps * step_nbytes)
            sums = self.steps(start, weights, offsets, vectors, sums, self.full_steps)
        x = b.at(x, self.full_steps * STEP_NBYTES)
        w = b.at(w, runs.inner * self.full_steps * step_nbytes)
        for first in range(0, runs.inner, STEP_NBYTES):
            rows = range(first, min(first + STEP_NBYTES, runs.inner))
            loaded = [self._row(b.at(x, r * runs.inner_pitch), len(offsets)) for r in rows]
            self._add_gathered(self._last_bytes(loaded, len(offsets)), w, vectors, sums)
            w = b.at(w, step_nbytes)
        return sums

    def _add_gathered(self, last: Value, w: Value, vectors: int, sums: list[Value]) -> None:
        """Add the products of one gathered step to ``sums``."""
        b, dot, words = self.b, self.dot, vector(self.dot.lanes, "i32")
        weights = [dot.weights(b, w, n * dot.weight_nbytes) for n in range(vectors)]
        quads = b.cast("bitcast", dot.bytes_kind, last, words)
        for pixel in range(len(sums) // vectors):
            spread = b.shuffle(words, quads, "poison", [pixel] * dot.lanes)
            operand = dot.operand_of(b, b.cast("bitcast", words, spread, dot.bytes_kind))
            for n, weight in enumerate(weights):
                index = pixel * vectors + n
                sums[index] = dot.accumulate(b, sums[index], operand, weight)

    def _row(self, pointer: Value, pixels: int) -> Value:
        """A vector that begins with a row's bytes from the last byte of the first pixel's window
        to that of the last pixel's; at most as many again are read behind it, or 15."""
        span = (pixels - 1) * self.pixel_pitch + 1
        width = max(1 << (span - 1).bit_length(), LEAST_NBYTES)
        kind, whole = vector(width, "i8"), self.target.vector_nbytes
        loaded = self.b.load(kind, pointer)
        if width == whole:
            return loaded
        return self.b.shuffle(kind, loaded, "poison", [min(i, width) for i in range(whole)])

    def _last_bytes(self, rows: list[Value], pixels: int) -> Value:
        """In each lane of four bytes, a pixel's last byte of each row; bytes of rows that are not
        there are arbitrary."""
        b, count, kind = self.b, self.target.vector_nbytes, self.dot.bytes_kind
        places = [
            lane * self.pixel_pitch if lane < pixels else 0
            for lane in range(self.dot.lanes)
            for _ in range(STEP_NBYTES)
        ]
        pairs = []
        for first in range(0, len(rows), 2):
            two = [*rows, rows[first]][first : first + 2]
            order = [place + i % 2 * count for i, place in enumerate(places)]
            pairs.append(b.shuffle(kind, two[0], two[1], order))
        if len(pairs) == 1:
            return pairs[0]
        halves = [i if i % STEP_NBYTES < 2 else count + i for i in range(count)]
        return b.shuffle(kind, pairs[0], pairs[1], halves)
