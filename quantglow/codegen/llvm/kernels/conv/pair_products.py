"""Convolution by pairs of products: sums in 16 bits, or blocks of pixels and channels.

``PairsConvKernel`` sums two products in 16 bits, exactly, because the weights prove it step by
step.  Each panel of channels takes its steps in an order of its own: first those whose weights
prove that two products fit 16 bits, then the others, with 16-bit operands.  So a panel has a record
of how many steps of each kind there are, and where in the image each step reads.

``BlockConvKernel`` multiplies blocks of two pixels by two output channels, eight bytes deep.  The
sums of two neighboring pixels of a tile lie together: a vector of channels 0 and 1 of both, and
one of channels 2 and 3.  Two steps are multiplied at once; an odd last step of a run is multiplied
by plain dot products, whose operands are arranged as the sums are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, BlockDot, DotProduct, PairDot
from quantglow.codegen.llvm.kernels.contraction.geometry import ContractionRuns, panel_steps
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.codegen.llvm.kernels.conv.loops import Channels, TilePointers
from quantglow.codegen.llvm.values import ABSENT, I32, I64, Value, bits_type, proper_vector, vector
from quantglow.ir.graph.node import Constant
from quantglow.ir.symbolic.size import Dim, is_free
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

RECORD_ALIGNMENT = 64
INT_NBYTES = 4
OFFSETS_POSITION = 3
"""Position of the offsets of steps in a record."""
FEWEST_STEPS = 24
LEAST_SHARE = 0.15
"""With fewer steps, or fewer that fit, two loops of single steps cost more than they save."""

FIRST, SECOND = (0, 1, 4, 5), (2, 3, 6, 7)
"""Lanes of two vectors of four: the lower halves of both, and the upper ones."""


@dataclass
class PairsConvKernel(ConvKernel):
    """Generator of one convolution kernel whose steps are sorted by what their weights allow."""

    @cached_property
    def pairs(self) -> PairDot | None:
        """The dot product of steps that fit."""
        return self.target.isa.pair_product(self.target.core)

    @property
    def dots(self) -> tuple[PairDot, DotProduct]:
        """The dot products of steps that fit and of the others."""
        assert self.pairs is not None
        return self.pairs, self.dot

    @property
    def applies(self) -> bool:
        """Whether the target sums pairs of bytes, and enough steps fit."""
        few = self.geometry.runs.total_steps < FEWEST_STEPS
        runs = self.geometry.runs
        free = is_free(runs.outer_pitch) or is_free(runs.inner_pitch)  # records hold them
        if few or free or self.pairs is None or self.step.inputs[0].type.dtype is not DType.U8:
            return False
        return float(np.mean([fits.mean() for _, fits in self.sorted_steps])) >= LEAST_SHARE

    # -- constants

    @cached_property
    def sorted_steps(self) -> list[tuple[Array, Array]]:
        """For each panel: weights [steps, vectors, lanes, 4], and which steps fit."""
        assert isinstance(self.conv.w, Constant)
        panels = panel_steps(self.conv.w.value, self.geometry.runs, self.channel_lanes())
        return [(quads, np.asarray(self.dots[0].fits(quads).all(axis=(1, 2)))) for quads in panels]

    @property
    def record_nbytes(self) -> int:
        """Bytes of a panel's record: int32 of where its weights are, from the record, and how many
        steps fit, and how many do not; where each step reads."""
        nbytes = INT_NBYTES * OFFSETS_POSITION + self.offsets.nbytes
        return -(-nbytes // RECORD_ALIGNMENT) * RECORD_ALIGNMENT

    @cached_property
    def offsets(self) -> Array:
        """Offset of each step in the image, in bytes: uint16 where that suffices, else int32."""
        offsets = step_offsets(self.geometry.runs)
        return offsets.astype(np.uint16) if offsets.max() < 1 << 16 else offsets

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """Records of all panels, then weights of all panels."""
        records = np.zeros((len(channels), self.record_nbytes // INT_NBYTES), np.int32)
        packed: list[Array] = []
        start = records.nbytes
        for record, (quads, fits) in zip(records, self.sorted_steps, strict=True):
            record[0] = start
            start -= self.record_nbytes
            record[1:OFFSETS_POSITION] = fits.sum(), (~fits).sum()
            sorted_offsets = np.concatenate([self.offsets[fits], self.offsets[~fits]])
            record[OFFSETS_POSITION:].view(sorted_offsets.dtype)[: fits.size] = sorted_offsets
            for dot, steps in zip(self.dots, (quads[fits], quads[~fits]), strict=True):
                packed.append(dot.pack(steps).view(np.uint8).reshape(-1))
                start += packed[-1].nbytes
        return np.concatenate([records.view(np.uint8).reshape(-1), *packed])

    def excess(self, w: Array, channels: list[Array]) -> Array:
        """That of the steps that do not fit."""
        panels = [self.dot.excess(quads[~fits]) for quads, fits in self.sorted_steps]
        return np.concatenate([each.sum(axis=0).reshape(-1) for each in panels]).astype(np.int32)

    # -- code

    def locate_channels(self, panel: Value) -> Channels:
        """As for all convolutions, but ``weights`` leads to the panel's record."""
        record = self.b.mul(panel, self.record_nbytes)
        return replace(super().locate_channels(panel), weights=record)

    def contract(
        self, x: Value, w: Value, offsets: list[Dim], vectors: int, sums: list[Value]
    ) -> list[Value]:
        """Add the steps that fit, then the others."""
        b = self.b
        weights = b.at(w, self._integer(w, 0))
        steps = b.at(w, INT_NBYTES * OFFSETS_POSITION)
        dots = self.dots
        counts = [self._integer(w, position) for position in (1, 2)]
        nbytes = [b.mul(c, vectors * d.weight_nbytes) for c, d in zip(counts, dots, strict=True)]
        ahead = b.add(*nbytes)
        for dot, count, size in zip(dots, counts, nbytes, strict=True):
            place = _Steps(x, steps, weights, ahead)
            sums = self._add_steps(dot, count, place, offsets, vectors, sums)
            steps = b.at(steps, b.mul(count, self.offsets.itemsize))
            weights = b.at(weights, size)
        return sums

    def _integer(self, record: Value, position: int) -> Value:
        """An int32 of a record, widened."""
        b = self.b
        return b.as_index(I32, b.load(I32, b.at(record, position * INT_NBYTES), INT_NBYTES))

    def _offset(self, steps: Value, index: Value) -> Value:
        """The offset of a step in the image."""
        b, nbytes = self.b, self.offsets.itemsize
        kind = bits_type(8 * nbytes)
        value = b.load(kind, b.at(steps, b.mul(index, nbytes)), nbytes)
        return b.as_index(kind, value, "zext")

    def _add_steps(
        self,
        dot: DotProduct,
        count: Value,
        place: _Steps,
        offsets: list[Dim],
        vectors: int,
        sums: list[Value],
    ) -> list[Value]:
        """Add ``count`` steps of one kind."""
        b = self.b
        loop = b.begin_while(count, [(dot.kind, s) for s in sums])
        sums = list(loop.carried)
        # Opaque, or LLVM would keep the broadcasts that pixels share between steps, and spill.
        row = b.opaque(b.at(place.x, self._offset(place.steps, loop.index)))
        at = b.at(place.w, b.mul(loop.index, vectors * dot.weight_nbytes))
        if self.streams_weights:
            self.prefetch(b.at(at, place.ahead), vectors * dot.weight_nbytes)
        weights = [dot.weights(b, at, n * dot.weight_nbytes) for n in range(vectors)]
        for m, offset in enumerate(offsets):
            operand = dot.operand(b, b.at(row, offset))
            for n in range(vectors):
                index = m * vectors + n
                sums[index] = dot.accumulate(b, sums[index], operand, weights[n])
        return b.end_while(loop, sums)


@dataclass(frozen=True)
class _Steps:
    """Pointers to the image, to where in it each step reads, and to weights; bytes from weights to
    those of the next panel."""

    x: Value
    steps: Value
    w: Value
    ahead: Value


def step_offsets(runs: ContractionRuns) -> Array:
    """int32 [steps]: bytes from a pixel's first tap to what each step reads."""
    outer = np.arange(runs.outer)[:, None, None] * int(runs.outer_pitch)
    inner = np.arange(runs.inner)[:, None] * int(runs.inner_pitch)
    return np.asarray(outer + inner + np.arange(runs.steps) * STEP_NBYTES, np.int32).reshape(-1)


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

    def body(
        self, rows: int, columns: int, vectors: int, channels: int, place: TilePointers
    ) -> None:
        pixels = [(r, c) for r in range(rows) for c in range(columns)]
        kind = self.dot.kind
        bias = [
            self.b.load(kind, self._load_vector(self.bias, place.first, n), align=4)
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
        b, kind, pixel_sums = self.b, self.dot.kind, []
        for first in range(0, len(sums), 2 * vectors):
            lower, upper = sums[first : first + vectors], sums[first + vectors :][:vectors]
            for order in (FIRST, SECOND):
                pairs = zip(lower, upper, strict=True)
                pixel_sums += [b.shuffle(kind, *pair, order) for pair in pairs]
        return pixel_sums

    def steps(
        self,
        x: Value,
        w: Value,
        offsets: list[Dim],
        vectors: int,
        sums: list[Value],
        count: int,
        ahead: Value = ABSENT,
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

    def pixel_pairs(self, row: Value, offsets: list[Dim], steps: int) -> list[tuple[Value, ...]]:
        """For each pair of pixels, eight bytes of both for two steps, or twice that for four."""
        b, lanes = self.b, steps // 2
        kind, whole = proper_vector(lanes, I64), vector(2, I64)
        pixel_operands = []
        for first in range(0, len(offsets), 2):
            left, right = (b.load(kind, b.at(row, offset)) for offset in offsets[first : first + 2])
            mixed = [b.shuffle(kind, left, right, (i, lanes + i)) for i in range(lanes)]
            pixel_operands.append(
                tuple(b.cast("bitcast", whole, v, self.dot.bytes_kind) for v in mixed)
            )
        return pixel_operands

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
        self, row: Value, offsets: list[Dim], w: Value, vectors: int, sums: list[Value]
    ) -> None:
        """Add the products of a single step: four bytes of a pixel for both of its lanes."""
        b, dot = self.b, self.dot
        kind, halves = dot.kind, ((0, 1, 0, 1), (2, 3, 2, 3))
        packed = [dot.weights(b, w, n * dot.weight_nbytes)[0] for n in range(vectors)]
        words = [b.cast("bitcast", dot.bytes_kind, value, kind) for value in packed]
        for m in range(0, len(offsets), 2):
            left, right = (
                b.broadcast(self.dot.lanes, I32, b.load(I32, b.at(row, offset)))
                for offset in offsets[m : m + 2]
            )
            both = b.cast("bitcast", kind, b.shuffle(kind, left, right, FIRST), dot.bytes_kind)
            for half, order in enumerate(halves):
                for n, value in enumerate(words):
                    lanes = b.shuffle(kind, value, "poison", order)
                    weights = b.cast("bitcast", kind, lanes, dot.bytes_kind)
                    index = (m + half) * vectors + n
                    sums[index] = dot.accumulate(b, sums[index], (both,), (weights,))
