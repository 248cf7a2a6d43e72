"""Convolution to a few channels more than whole vectors: 24 are one and a half.

Two neighbouring pixels share their last vector if at most half of it is used: the lower half
belongs to the left pixel, the upper half to the right one.  Weights lie twice in such a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value, vector
from quantglow.backends.llvm.kernels.contraction.tiling import (
    Tile,
    all_cycles,
    choose_shared_tile,
    choose_tile,
    shared_candidates,
)
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.loops import Place
from quantglow.backends.llvm.kernels.vector.partial import load_partial, store_partial
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.foreign_types import Array
from quantglow.lazy import cached_property

MOST_VECTORS = 4
"""Vectors of a pixel, the shared one included: all are one panel."""


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
    def modelled_tile(self) -> Tile:
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
        self, row: Value, offsets: list[int], weights: list[tuple[Value, ...]], sums: list[Value]
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
        self, sums: list[Value], pixels: list[tuple[int, int]], channels: int, place: Place
    ) -> None:
        whole = self.vectors - 1
        for index, (r, c) in enumerate(pixels):
            own = sums[index * whole : (index + 1) * whole]
            self.store(own, r, c, whole * self.dot.lanes, place)
        for index, total in enumerate(sums[len(pixels) * whole :]):
            self._store_shared(total, pixels[2 * index : 2 * index + 2], channels, place)

    def _store_shared(
        self, total: Value, pixels: Sequence[tuple[int, int]], channels: int, place: Place
    ) -> None:
        """The last channels of a pair of pixels."""
        b, y, lanes, whole = self.b, self.geometry.y, self.dot.lanes, self.vectors - 1
        first, element = whole * lanes, self.epilogue.results.element
        valid = channels - first
        scale = self._multipliers_of(place.first, whole)
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
        self, pixels: Sequence[tuple[int, int]], valid: int, place: Place
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
