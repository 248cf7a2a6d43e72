"""Packed constants of an integer depthwise convolution, in the order its kernel reads them.

For each run of channels: for each column tap, for each (output row, stack) pair, the vectors of
weights of a run.  The weights of a stack are those of its rows, zero where a row is no tap.  A dot
product with an excess has a bias for each output row, since a weight stands at different positions
of the stacks of different rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.isa.dot import DotProduct
from quantglow.backends.llvm.kernels.depthwise.plan import Chunk, RowPlan
from quantglow.foreign_types import Array


@dataclass(frozen=True)
class DepthwisePacker:
    """Packs HWIO depthwise weights [KH, KW, C] for given chunks."""

    dot: DotProduct
    order: Array
    """int [vectors, lanes]: the channel of each sum of a run."""
    chunks: list[Chunk]
    rows: RowPlan
    row_taps: list[int]
    stride: int

    def runs(self) -> list[Array]:
        """For each run of channels: int [vectors, lanes], the channel of each sum, -1 for none."""
        return [c for chunk in self.chunks for c in self._runs_of(chunk)]

    def _runs_of(self, chunk: Chunk) -> list[Array]:
        order = self.order % chunk.width
        channels = np.where(order < chunk.valid, order + chunk.first, -1)
        return [np.where(channels < 0, -1, channels + i * chunk.width) for i in range(chunk.count)]

    def weights(self, w: Array) -> Array:
        """All packed weights as bytes."""
        pieces = [self.dot.pack(stacks) for stacks in self._stacks(w)]
        return np.concatenate([piece.view(np.uint8).reshape(-1) for piece in pieces])

    def bias(self, values: Array, w: Array) -> Array:
        """int32: the initial sums of each run, of each output row where they differ."""
        if not self.dot.exceeds:
            return self.per_channel(values)
        extended = np.append(values, values.dtype.type(0))
        sums = [
            extended[channels] - self._excess(stacks, row)
            for channels, stacks in zip(self.runs(), self._stacks(w), strict=True)
            for row in range(self.rows.outputs)
        ]
        return np.concatenate([each.reshape(-1) for each in sums])

    def _excess(self, stacks: Array, row: int) -> Array:
        """int32 [vectors, lanes] of an output row, for the stacks of a run."""
        sums = np.zeros(stacks.shape[2:4], np.int64)
        for pair, (of, taps) in enumerate(self._pairs()):
            if of == row:
                positions = [place for place, tap in enumerate(taps) if tap is not None]
                sums += self.dot.excess(stacks[:, pair], positions).sum(axis=0)
        return sums.astype(np.int32)

    def _stacks(self, w: Array) -> Iterator[Array]:
        """[column taps, pairs, vectors, lanes, rows of a stack] of each run."""
        w = w.astype(self.dot.weights_dtype, copy=False)
        none = np.zeros_like(w[:1])
        # Index -1 picks the row, and the channel, of zeros.
        extended = np.pad(np.concatenate([w, none]), ((0, 0), (0, 0), (0, 1)))
        indices = np.array([[-1 if t is None else t for t in taps] for _, taps in self._pairs()])
        for channels in self.runs():
            chosen = extended[:, :, channels][indices]  # [pairs, rows, column taps, vectors, lanes]
            yield np.ascontiguousarray(chosen.transpose(2, 0, 3, 4, 1))

    def _pairs(self) -> list[tuple[int, list[int | None]]]:
        """Each output row with the index of the tap at each position of a stack that it uses."""
        uses = self.rows.uses(self.row_taps, self.stride)
        return [
            (row, self.rows.taps_at(s, row * self.stride, self.row_taps))
            for row, used in enumerate(uses)
            for s in used
        ]

    def per_channel(self, values: Array) -> Array:
        """Per-channel values in the order of the sums; zero where there is no channel."""
        extended = np.append(values, values.dtype.type(0))
        return np.concatenate([extended[c].reshape(-1) for c in self.runs()])
