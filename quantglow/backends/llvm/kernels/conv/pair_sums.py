"""Convolution by products summed in 16 bits, exact because the weights prove it step by step.

Each panel of channels takes its steps in an order of its own: first those whose weights prove that
two products fit 16 bits, then the others, with 16-bit operands.  So a panel has a record of how
many steps of each kind there are, and where in the image each step reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.isa.dot import (
    STEP_NBYTES,
    DotProduct,
    PairDot,
)
from quantglow.backends.llvm.kernels.contraction.geometry import Runs
from quantglow.backends.llvm.kernels.contraction.packing import panel_steps
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.loops import Channels
from quantglow.foreign_types import Array
from quantglow.graph.node import Constant
from quantglow.lazy import cached_property
from quantglow.symbolic.size import is_free
from quantglow.types import DType

RECORD_ALIGNMENT = 64
INT_NBYTES = 4
OFFSETS_POSITION = 3
"""Position of the offsets of steps in a record."""
FEWEST_STEPS = 24
LEAST_SHARE = 0.15
"""With fewer steps, or fewer that fit, two loops of single steps cost more than they save."""


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
        self, x: Value, w: Value, offsets: list[int], vectors: int, sums: list[Value]
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
        return b.as_index("i32", b.load("i32", b.at(record, position * INT_NBYTES), INT_NBYTES))

    def _offset(self, steps: Value, index: Value) -> Value:
        """The offset of a step in the image."""
        b, nbytes = self.b, self.offsets.itemsize
        kind = f"i{8 * nbytes}"
        value = b.load(kind, b.at(steps, b.mul(index, nbytes)), nbytes)
        return b.as_index(kind, value, "zext")

    def _add_steps(
        self,
        dot: DotProduct,
        count: Value,
        place: _Steps,
        offsets: list[int],
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


def step_offsets(runs: Runs) -> Array:
    """int32 [steps]: bytes from a pixel's first tap to what each step reads."""
    outer = np.arange(runs.outer)[:, None, None] * runs.outer_pitch
    inner = np.arange(runs.inner)[:, None] * runs.inner_pitch
    return np.asarray(outer + inner + np.arange(runs.steps) * STEP_NBYTES, np.int32).reshape(-1)
