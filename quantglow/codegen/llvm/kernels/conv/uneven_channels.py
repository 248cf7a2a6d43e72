"""Convolution with channels that do not fill vectors: few inputs, or a tail of outputs.

``GatheredConvKernel`` is for few input channels.  A row of a window of three channels is 9 (3 x 3)
or 21 bytes (7 x 7): the inner loop reads bytes by fours, so the last step of each row would
multiply one byte and three zeros.  Here those last bytes of up to four rows are gathered for all
pixels of a tile at once, by permutations of bytes, and multiplied in one step: 7 steps instead of
9, 37 instead of 42.

``SharedConvKernel`` is for a few output channels more than whole vectors, as 24 are one and a half.
Two neighboring pixels share their last vector if at most half of it is used: the lower half
belongs to the left pixel, the upper half to the right one.  Weights lie twice in such a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.kernels.contraction.geometry import panel_steps
from quantglow.codegen.llvm.kernels.contraction.tiling import (
    Tile,
    all_cycles,
    choose_shared_tile,
    choose_tile,
    shared_candidates,
)
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.codegen.llvm.kernels.conv.loops import TilePointers
from quantglow.codegen.llvm.kernels.vector.access import load_partial, store_partial
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.codegen.llvm.values import I8, I32, Value, vector
from quantglow.ir.symbolic.size import Dim
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

MOST_ROWS = 8
"""Maximum number of rows of a window: their steps are unrolled."""
LEAST_NBYTES = 16
"""Minimum number of bytes of a row read at once."""

MOST_VECTORS = 4
"""Vectors of a pixel, the shared one included: all are one panel."""


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
        return self.geometry.strides[1] * int(self.geometry.x.column_pitch)

    @property
    def total_steps(self) -> int:
        return self.steps_in_all

    @property
    def most_columns(self) -> int:
        """Maximum number of columns of a tile: a vector holds a row of their windows."""
        return min(1 + (self.target.vector_nbytes - 1) // self.pixel_pitch, self.dot.lanes)

    @property
    def modeled_tile(self) -> Tile:
        best = super().modeled_tile
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
        self, x: Value, w: Value, offsets: list[Dim], vectors: int, sums: list[Value]
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
        b, dot, words = self.b, self.dot, vector(self.dot.lanes, I32)
        weights = [dot.weights(b, w, n * dot.weight_nbytes) for n in range(vectors)]
        quads = b.cast("bitcast", dot.bytes_kind, last, words)
        for pixel in range(len(sums) // vectors):
            spread = b.shuffle(words, quads, "poison", [pixel] * dot.lanes)
            operand = dot.to_operand(b, b.cast("bitcast", words, spread, dot.bytes_kind))
            for n, weight in enumerate(weights):
                index = pixel * vectors + n
                sums[index] = dot.accumulate(b, sums[index], operand, weight)

    def _row(self, pointer: Value, pixels: int) -> Value:
        """A vector that begins with a row's bytes from the last byte of the first pixel's window
        to that of the last pixel's; at most as many again are read behind it, or 15."""
        span = (pixels - 1) * self.pixel_pitch + 1
        width = max(1 << (span - 1).bit_length(), LEAST_NBYTES)
        kind, whole = vector(width, I8), self.target.vector_nbytes
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


@dataclass
class SharedConvKernel(ConvKernel):
    """Generator of one convolution kernel whose pixels share their last vector by pairs."""

    @property
    def applies(self) -> bool:
        """Whether the form exists and the model prefers it."""
        if not self.exists:
            return False
        work = (*self.image_size, self.vectors, self.total_steps, self.dot.cost)
        return self._shared_tile[1] < all_cycles(choose_tile(*work), *work)

    @property
    def exists(self) -> bool:
        spare = -self.channels % self.dot.lanes
        plain = self.conv.group == 1 and self.dot.mixes_pixels
        return plain and 1 < self.vectors <= MOST_VECTORS and 2 * spare >= self.dot.lanes

    @cached_property
    def _shared_tile(self) -> tuple[Tile, float]:
        return choose_shared_tile(*self.image_size, self.vectors, self.total_steps, self.dot.cost)

    @property
    def modeled_tile(self) -> Tile:
        return self._shared_tile[0]

    @property
    def possible_tiles(self) -> list[Tile]:
        _, width = self.image_size
        columns = shared_candidates(width, self.vectors, self.dot.cost)
        return [Tile(1, count, self.vectors) for count in columns]

    def channel_lanes(self) -> list[Array]:
        """As for all convolutions, but the last vector holds its channels in both halves."""
        lanes, whole = self.dot.lanes, self.vectors - 1
        shared = whole * lanes + np.arange(lanes) % (lanes // 2)
        order = self.epilogue.channel_order(whole)
        rows = np.concatenate([order, np.where(shared < self.channels, shared, -1)[None]])
        return [rows]

    # -- one tile

    def initial_sums(self, bias: list[Value], pixels: int) -> list[Value]:
        return bias[:-1] * pixels + [bias[-1]] * -(-pixels // 2)

    def add_step(
        self, row: Value, offsets: list[Dim], weights: list[tuple[Value, ...]], sums: list[Value]
    ) -> None:
        b, dot, whole = self.b, self.dot, len(weights) - 1
        first_shared = len(offsets) * whole
        left: tuple[Value, ...] = ()
        for m, offset in enumerate(offsets):
            operand = dot.operand(b, b.at(row, offset))
            for n in range(whole):
                sums[m * whole + n] = dot.accumulate(b, sums[m * whole + n], operand, weights[n])
            if m % 2 == 0 and m + 1 < len(offsets):
                left = operand
                continue
            mixed = self._halves(left, operand) if m % 2 else operand
            index = first_shared + m // 2
            sums[index] = dot.accumulate(b, sums[index], mixed, weights[-1])

    def _halves(self, left: tuple[Value, ...], right: tuple[Value, ...]) -> tuple[Value, ...]:
        """The lower half of the left operand, the upper half of the right one."""
        dot = self.dot
        kind = dot.operand_kind
        count = dot.lanes if dot.is_float else dot.lanes * 4
        order = [i if i < count // 2 else count + i for i in range(count)]
        return (self.b.shuffle(kind, left[0], right[0], order),)

    # -- results

    def store_tile(
        self, sums: list[Value], pixels: list[tuple[int, int]], channels: int, place: TilePointers
    ) -> None:
        whole = self.vectors - 1
        for index, (r, c) in enumerate(pixels):
            pixel_sums = sums[index * whole : (index + 1) * whole]
            self.store(pixel_sums, r, c, whole * self.dot.lanes, place)
        for index, total in enumerate(sums[len(pixels) * whole :]):
            self._store_shared(total, pixels[2 * index : 2 * index + 2], channels, place)

    def _store_shared(
        self, total: Value, pixels: Sequence[tuple[int, int]], channels: int, place: TilePointers
    ) -> None:
        """The last channels of a pair of pixels."""
        b, y, lanes, whole = self.b, self.geometry.y, self.dot.lanes, self.vectors - 1
        first, element = whole * lanes, self.epilogue.results.element
        valid = channels - first
        scale = self._load_multipliers(place.first, whole)
        extra = self._shared_residual(pixels, valid, place) if place.residual else None
        value = self.epilogue.values(b, total, scale, extra)
        data = self.epilogue.results.packed(b, [value])
        for half, (r, c) in enumerate(pixels):
            offset = r * y.row_pitch + c * y.column_pitch + first * y.itemsize
            order = [half * lanes // 2 + lane for lane in range(lanes // 2)]
            part = b.shuffle(vector(lanes, element), data, "poison", order)
            at = b.at(place.y, offset)
            store_partial(b, self.target, element, lanes // 2, valid, part, at)

    def _shared_residual(
        self, pixels: Sequence[tuple[int, int]], valid: int, place: TilePointers
    ) -> Value:
        """The residual of the last channels of a pair of pixels, in steps (or reals)."""
        b, g, lanes = self.b, self.geometry.residual, self.dot.lanes
        assert g is not None
        element, first = ELEMENTS[self.step.inputs[3].type.dtype], (self.vectors - 1) * lanes
        halves = []
        for r, c in pixels:
            at = b.at(place.residual, r * g.row_pitch + c * g.column_pitch + first * g.itemsize)
            halves.append(load_partial(b, self.target, element, lanes // 2, valid, at))
        kind = vector(lanes // 2, element)
        data = b.shuffle(kind, halves[0], halves[-1], range(lanes))
        return self.epilogue.residual_steps(b, data, 1, self.residual_params)[0]
