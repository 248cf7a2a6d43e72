"""Convolution by products of whole vectors of bytes, each added to a single sum.

A tile is one pixel by a vector of channels, whose sums are scalars in the inner loop.  Weights of a
channel lie together for as many bytes as a vector has, zeros beyond the end of a run.  Several runs
of at most four bytes share a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.kernels.contraction.packing import panel_steps
from quantglow.backends.llvm.kernels.contraction.tiling import Tile
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.types import Array, DType

MOST_GATHERED = 16
"""Maximum number of runs that share vectors: their products are unrolled."""


@dataclass
class RowsConvKernel(ConvKernel):
    """Generator of one convolution kernel."""

    @property
    def applies(self) -> bool:
        """Whether the target has such products, and there are any."""
        some = self.geometry.runs.total_steps > 0
        return self.target.isa.row_products and some and self.step.inputs[0].type.dtype is DType.I8

    @property
    def tile(self) -> Tile:
        return Tile(1, 1, 1)

    @property
    def nbytes(self) -> int:
        """Bytes that are multiplied at once."""
        return self.target.vector_nbytes

    @property
    def is_gathered(self) -> bool:
        """Whether several runs share a vector."""
        runs = self.geometry.runs
        return runs.outer == 1 < runs.inner <= MOST_GATHERED and runs.nbytes <= STEP_NBYTES

    @property
    def chunks(self) -> int:
        """Vectors of a run, or of all runs if they share some."""
        runs = self.geometry.runs
        nbytes = runs.inner * STEP_NBYTES if self.is_gathered else runs.nbytes
        return -(-nbytes // self.nbytes)

    @property
    def vector_steps_nbytes(self) -> int:
        runs = self.geometry.runs
        return (1 if self.is_gathered else runs.outer * runs.inner) * self._run_nbytes

    @property
    def _run_nbytes(self) -> int:
        """Weights of ``chunks`` for all lanes."""
        return self.chunks * self.dot.lanes * self.nbytes

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """For each panel, run and chunk: the bytes of one channel after the other."""
        runs, packed = self.geometry.runs, []
        steps = self.nbytes // STEP_NBYTES
        present = runs.inner if self.is_gathered else runs.steps
        missing = self.chunks * steps - present
        for panel in panel_steps(w, runs, channels):
            rows = panel.reshape(-1, present, *panel.shape[2:])
            rows = np.pad(rows, ((0, 0), (0, missing), (0, 0), (0, 0)))
            chunks = rows.reshape(len(rows), self.chunks, steps, *panel.shape[2:])
            packed.append(np.moveaxis(chunks, 2, 3).reshape(-1))
        return np.concatenate(packed)

    # -- one tile

    def contract(
        self, x: Value, w: Value, offsets: list[int], vectors: int, sums: list[Value]
    ) -> list[Value]:
        b, kind = self.b, self.dot.kind
        lanes = range(self.dot.lanes)
        totals = [b.emit(f"extractelement {kind} {sums[0]}, i32 {lane}") for lane in lanes]
        totals = (self._gathered if self.is_gathered else self._all_runs)(x, w, totals)
        return [self._vector(kind, totals)]

    def _vector(self, kind: str, values: list[Value]) -> Value:
        """Scalars as a vector."""
        found: Value = "poison"
        for lane, value in enumerate(values):
            found = self.b.emit(f"insertelement {kind} {found}, i32 {value}, i32 {lane}")
        return found

    def _gathered(self, x: Value, w: Value, totals: list[Value]) -> list[Value]:
        """Add the products of all runs; the first one is read in place of missing ones."""
        b, runs, steps = self.b, self.geometry.runs, self.nbytes // STEP_NBYTES
        words = vector(steps, "i32")
        for chunk in range(self.chunks):
            rows = range(chunk * steps, (chunk + 1) * steps)
            places = [row * runs.inner_pitch if row < runs.inner else 0 for row in rows]
            row = self._vector(words, [b.load("i32", b.at(x, place)) for place in places])
            row = b.cast("bitcast", words, row, vector(self.nbytes, "i8"))
            totals = self._multiplied(row, b.at(w, chunk * len(totals) * self.nbytes), totals)
        return totals

    def _all_runs(self, x: Value, w: Value, totals: list[Value]) -> list[Value]:
        b, runs = self.b, self.geometry.runs
        outer = b.begin_loop(runs.outer, self._carried(x, w, totals)) if runs.outer > 1 else None
        if outer is not None:
            x, w, *totals = outer.carried
        row = x
        inner = b.begin_loop(runs.inner, self._carried(x, w, totals)) if runs.inner > 1 else None
        if inner is not None:
            row, w, *totals = inner.carried
        w, totals = self._run(row, w, totals)
        if inner is not None:
            _, w, *totals = b.end_loop(inner, [b.at(row, runs.inner_pitch), w, *totals])
        if outer is not None:
            _, w, *totals = b.end_loop(outer, [b.at(x, runs.outer_pitch), w, *totals])
        return totals

    def _multiplied(self, row: Value, w: Value, totals: list[Value]) -> list[Value]:
        """Sums plus the products of a vector of bytes with the weights of each channel."""
        b, kind, found = self.b, vector(self.nbytes, "i8"), []
        for lane, total in enumerate(totals):
            weights = b.load(kind, b.at(w, lane * self.nbytes), align=4)
            found.append(self.target.isa.row_product(b, total, row, weights))
        return found

    def _carried(self, x: Value, w: Value, totals: list[Value]) -> list[tuple[str, Value]]:
        return [("ptr", x), ("ptr", w), *(("i32", total) for total in totals)]

    def _run(self, x: Value, w: Value, totals: list[Value]) -> tuple[Value, list[Value]]:
        """Add the products of a run; the weights behind it, and the sums."""
        b = self.b
        loop = b.begin_loop(self.chunks, self._carried(x, w, totals)) if self.chunks > 1 else None
        if loop is not None:
            x, w, *totals = loop.carried
        row = b.load(vector(self.nbytes, "i8"), x)
        totals = self._multiplied(row, w, totals)
        w = b.at(w, len(totals) * self.nbytes)
        if loop is not None:
            _, w, *totals = b.end_loop(loop, [b.at(x, self.nbytes), w, *totals])
        return w, totals
