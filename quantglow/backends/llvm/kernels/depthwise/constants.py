"""Packed constants of an integer depthwise convolution, in the order its kernel reads them.

For each run of channels: for each column tap, for each (output row, stack) pair, the vectors of
weights of a run.  The weights of a stack are those of its rows, zero where a row is no tap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.isa.dot import DotProduct
from quantglow.backends.llvm.kernels.depthwise.plan import Chunk, RowPlan
from quantglow.types import Array

NO_ROW = -1_000_000
"""A row that is no tap of anything: fills up the last stack."""


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
        w = w.astype(self.dot.weights_dtype, copy=False)
        extended = np.concatenate([w, np.zeros_like(w[..., :1])], axis=2)
        pieces = [self._run_weights(extended, channels) for channels in self.runs()]
        return np.concatenate([piece.view(np.uint8).reshape(-1) for piece in pieces])

    def _run_weights(self, w: Array, channels: Array) -> Array:
        """[column taps x pairs, vectors, …] of one run."""
        stacks = [
            np.stack([self._row(w[:, column], r - row * self.stride, channels) for r in rows], -1)
            for column in range(w.shape[1])
            for row, rows in self._pairs()
        ]
        return self.dot.pack(np.stack(stacks))

    def _pairs(self) -> list[tuple[int, list[int]]]:
        """Each output row with the rows of each stack that it uses."""
        uses = self.rows.uses(self.row_taps, self.stride)
        stacks, depth = self.rows.stacks, self.rows.depth
        return [
            (row, [*stacks[s], *[NO_ROW] * (depth - len(stacks[s]))])
            for row, used in enumerate(uses)
            for s in used
        ]

    def _row(self, w: Array, tap: int, channels: Array) -> Array:
        """The weights that multiply an input row at distance ``tap``."""
        if tap not in self.row_taps:
            return np.zeros(channels.shape, w.dtype)
        return np.asarray(w[self.row_taps.index(tap)][channels])

    def per_channel(self, values: Array) -> Array:
        """Per-channel values in the order of the sums; zero where there is no channel."""
        extended = np.append(values, values.dtype.type(0))
        return np.concatenate([extended[c].reshape(-1) for c in self.runs()])
