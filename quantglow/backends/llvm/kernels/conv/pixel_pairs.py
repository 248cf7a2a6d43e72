"""Convolution by products of blocks: two pixels by two output channels, eight bytes deep.

The sums of two neighbouring pixels of a tile lie together: a vector of channels 0 and 1 of both,
and one of channels 2 and 3.  Two steps are multiplied at once; an odd last step of a run is
multiplied by plain dot products, whose operands are arranged as the sums are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.isa.dot import STEP_NBYTES, BlockDot
from quantglow.backends.llvm.kernels.contraction.packing import panel_steps
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.loops import Place
from quantglow.foreign_types import Array

FIRST, SECOND = (0, 1, 4, 5), (2, 3, 6, 7)
"""Lanes of two vectors of four: the lower halves of both, and the upper ones."""


@dataclass
class BlockConvKernel(ConvKernel):
    """Generator of one convolution kernel whose tiles are pairs of pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dtype = self.step.inputs[0].type.dtype
        self.blocks = self.target.isa.block_product(dtype, self.target.core)
        self.dot = self.blocks or self.dot

    @property
    def applies(self) -> bool:
        """Whether the target multiplies blocks, and runs and tiles have two of all."""
        if self.blocks is None or self.geometry.runs.steps < 2:
            return False
        return self.tile.pixels > 1

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """Pairs of steps of each run, in which eight bytes of a channel lie together, then an odd
        step."""
        steps, packed = self.geometry.runs.steps, []
        even = steps // 2 * 2
        for panel in panel_steps(w, self.geometry.runs, channels):
            runs = panel.reshape(-1, steps, *panel.shape[1:])
            pairs = runs[:, :even].reshape(len(runs), even // 2, 2, *panel.shape[1:])
            lying = np.moveaxis(pairs, 2, 4).reshape(len(runs), -1)
            packed.append(np.concatenate([lying, runs[:, even:].reshape(len(runs), -1)], axis=1))
        return np.concatenate([panel.reshape(-1) for panel in packed])

    # -- one tile

    def body(self, rows: int, columns: int, vectors: int, channels: int, place: Place) -> None:
        pixels = [(r, c) for r in range(rows) for c in range(columns)]
        kind = self.dot.kind
        bias = [
            self.b.load(kind, self._vector_of(self.bias, place.first, n), align=4)
            for n in range(vectors)
        ]
        offsets = [self.geometry.input_offset(r, c) for r, c in pixels]
        offsets += offsets[-1:] * (len(offsets) % 2)
        sums = self.initial_sums(bias, len(offsets))
        sums = self.contract(place.x, place.w, offsets, vectors, sums)
        stored = self.by_pixels(sums, vectors)[: len(pixels) * vectors]
        self.store_tile(stored, pixels, channels, place)

    def initial_sums(self, bias: list[Value], pixels: int) -> list[Value]:
        """For each pair of pixels: lower channels of all vectors, then upper ones."""
        b, kind = self.b, self.dot.kind
        lower, upper = (
            [b.shuffle(kind, value, "poison", order) for value in bias]
            for order in ((0, 1, 0, 1), (2, 3, 2, 3))
        )
        return [*lower, *upper] * (pixels // 2)

    def by_pixels(self, sums: list[Value], vectors: int) -> list[Value]:
        """Vectors of sums of each pixel in turn."""
        b, kind, found = self.b, self.dot.kind, []
        for first in range(0, len(sums), 2 * vectors):
            lower, upper = sums[first : first + vectors], sums[first + vectors :][:vectors]
            for order in (FIRST, SECOND):
                pairs = zip(lower, upper, strict=True)
                found += [b.shuffle(kind, *pair, order) for pair in pairs]
        return found

    def steps(
        self,
        x: Value,
        w: Value,
        offsets: list[int],
        vectors: int,
        sums: list[Value],
        count: int,
        ahead: Value = "",
    ) -> list[Value]:
        """``count`` steps, unrolled, in pairs."""
        b, sums, nbytes = self.b, list(sums), self.dot.weight_nbytes
        pairs: list[tuple[Value, ...]] = []
        for step in range(0, count, 2):
            base, row = step * vectors * nbytes, b.at(x, step * STEP_NBYTES)
            if self.streams_weights:
                self.prefetch(b.at(w, self.panel_nbytes + base), 2 * vectors * nbytes)
            if step + 1 == count:
                self.add_last(row, offsets, b.at(w, base), vectors, sums)
            elif step % 4 and pairs:
                self.add_blocks([pair[1] for pair in pairs], b.at(w, base), vectors, sums)
            else:
                row = b.opaque(row) if self.windows_overlap else row
                pairs = self.pixel_pairs(row, offsets, min(4, (count - step) // 2 * 2))
                self.add_blocks([pair[0] for pair in pairs], b.at(w, base), vectors, sums)
        return sums

    def pixel_pairs(self, row: Value, offsets: list[int], steps: int) -> list[tuple[Value, ...]]:
        """For each pair of pixels, eight bytes of both for two steps, or twice that for four."""
        b, lanes = self.b, steps // 2
        kind, whole = f"<{lanes} x i64>", "<2 x i64>"
        found = []
        for first in range(0, len(offsets), 2):
            left, right = (b.load(kind, b.at(row, offset)) for offset in offsets[first : first + 2])
            mixed = [b.shuffle(kind, left, right, (i, lanes + i)) for i in range(lanes)]
            found.append(tuple(b.cast("bitcast", whole, v, self.dot.bytes_kind) for v in mixed))
        return found

    def add_blocks(self, pairs: list[Value], w: Value, vectors: int, sums: list[Value]) -> None:
        """Add the products of two steps."""
        b, dot = self.b, self.blocks
        assert isinstance(dot, BlockDot)
        for half in (0, 1):
            for n in range(vectors):
                at = b.at(w, (2 * n + half) * dot.weight_nbytes)
                weights = b.load(dot.bytes_kind, at, align=4)
                for m, pair in enumerate(pairs):
                    index = (2 * m + half) * vectors + n
                    sums[index] = dot.multiply(b, sums[index], pair, weights)

    def add_last(
        self, row: Value, offsets: list[int], w: Value, vectors: int, sums: list[Value]
    ) -> None:
        """Add the products of a single step: four bytes of a pixel for both of its lanes."""
        b, dot = self.b, self.dot
        kind, halves = dot.kind, ((0, 1, 0, 1), (2, 3, 2, 3))
        packed = [dot.weights(b, w, n * dot.weight_nbytes)[0] for n in range(vectors)]
        words = [b.cast("bitcast", dot.bytes_kind, value, kind) for value in packed]
        for m in range(0, len(offsets), 2):
            left, right = (
                b.broadcast(self.dot.lanes, "i32", b.load("i32", b.at(row, offset)))
                for offset in offsets[m : m + 2]
            )
            both = b.cast("bitcast", kind, b.shuffle(kind, left, right, FIRST), dot.bytes_kind)
            for half, order in enumerate(halves):
                for n, value in enumerate(words):
                    lanes = b.shuffle(kind, value, "poison", order)
                    weights = b.cast("bitcast", kind, lanes, dot.bytes_kind)
                    index = (m + half) * vectors + n
                    sums[index] = dot.accumulate(b, sums[index], (both,), (weights,))
