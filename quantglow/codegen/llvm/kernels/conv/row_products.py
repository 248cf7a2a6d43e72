"""Convolution by products of whole vectors of bytes, each added to a single sum.

The sums of a tile are scalars in the inner loop.  Weights of a channel lie together for as many
bytes as a vector has, zeros beyond the end of a run.  Several runs of at most four bytes share a
vector.  Short windows stay in registers for all channels of a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.kernels.contraction.geometry import panel_steps
from quantglow.codegen.llvm.kernels.conv.streamed import Carried, Panel, StreamedConvKernel
from quantglow.codegen.llvm.values import I8, I32, Type, Value, integer, poison, vector
from quantglow.support.arrays import Array

MOST_GATHERED = 16
"""Maximum number of runs that share vectors: their products are unrolled."""
MOST_KEPT = 4
"""Maximum number of vectors of a window that stay in registers."""
UNROLLED = 4
"""Vectors of a run whose products are unrolled."""


@dataclass
class RowsConvKernel(StreamedConvKernel):
    """Generator of one convolution kernel."""

    @property
    def applies(self) -> bool:
        """Whether the target has such products."""
        return self.target.isa.row_products and self.streams

    @property
    def panels_outer(self) -> bool:
        return super().panels_outer and not self.is_kept

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
    def window_vectors(self) -> int:
        """Vectors of all runs."""
        runs = self.geometry.runs
        return (1 if self.is_gathered else runs.outer * runs.inner) * self.chunks

    @property
    def is_kept(self) -> bool:
        """Whether a window stays in registers."""
        return self.window_vectors <= MOST_KEPT

    # -- constants

    @property
    def vector_steps_nbytes(self) -> int:
        return self.window_vectors * self.dot.lanes * self.nbytes

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

    def _channels_of_pixel(self, constants: Value, places: list[Value]) -> list[Value]:
        """All panels of a group for one pixel."""
        if not self.is_kept:
            return super()._channels_of_pixel(constants, places)
        window = self._window(places[0])

        def tile(panel: Panel, places: list[Value]) -> None:
            totals = self._multiply_window(window, self.load_weights(panel))
            self.finish(panel, places, self._with_bias(panel, totals))

        return self.load_panels(constants, places, tile)

    def compute_sums(self, panel: Panel, x: Value) -> Value:
        return self._with_bias(panel, self._all_runs(x, self.load_weights(panel)))

    def _with_bias(self, panel: Panel, totals: list[Value]) -> Value:
        """The sums of a tile as a vector."""
        kind = self.dot.kind
        return self.b.op("add", kind, self._vector(kind, totals), self.load_bias(panel))

    def _vector(self, kind: Type, values: list[Value]) -> Value:
        """Scalars as a vector."""
        result: Value = poison(kind)
        for lane, value in enumerate(values):
            result = self.b.insert(result, value, lane)
        return result

    def _window(self, x: Value) -> list[Value]:
        """The vectors of a window."""
        b, runs, kind = self.b, self.geometry.runs, vector(self.nbytes, I8)
        if self.is_gathered:
            return [self._gathered(x, chunk) for chunk in range(self.chunks)]
        return [
            b.load(kind, b.at(x, o * runs.outer_pitch + i * runs.inner_pitch + c * self.nbytes))
            for o in range(runs.outer)
            for i in range(runs.inner)
            for c in range(self.chunks)
        ]

    def _gathered(self, x: Value, chunk: int) -> Value:
        """A vector of the first words of runs; the first one is read in place of missing ones."""
        b, runs, steps = self.b, self.geometry.runs, self.nbytes // STEP_NBYTES
        rows = range(chunk * steps, (chunk + 1) * steps)
        places = [row * runs.inner_pitch if row < runs.inner else 0 for row in rows]
        words = vector(steps, I32)
        pixels = self._vector(words, [b.load(I32, b.at(x, place)) for place in places])
        return b.cast("bitcast", words, pixels, vector(self.nbytes, I8))

    @property
    def nothing(self) -> list[Value]:
        """Sums before the first product."""
        return [integer(0)] * self.dot.lanes

    def _multiply_window(self, window: list[Value], w: Value) -> list[Value]:
        """The products of a window in registers."""
        totals = self.nothing
        for index, row in enumerate(window):
            totals = self._multiplied(row, self.b.at(w, index * self._chunk_nbytes), totals)
        return totals

    def _all_runs(self, x: Value, w: Value) -> list[Value]:
        """The products of all runs."""
        b, runs = self.b, self.geometry.runs

        def outer(values: list[Value]) -> list[Value]:
            x, w, *totals = values
            _, w, *totals = self.repeated(runs.inner, self._sums(x, w, totals), inner)
            return [b.at(x, runs.outer_pitch), w, *totals]

        def inner(values: list[Value]) -> list[Value]:
            w, totals = self._run(values[0], values[1], values[2:])
            return [b.at(values[0], runs.inner_pitch), w, *totals]

        return self.repeated(runs.outer, self._sums(x, w, self.nothing), outer)[2:]

    def _sums(self, x: Value, w: Value, totals: list[Value]) -> Carried:
        return [*self.pointers([x, w]), *((I32, total) for total in totals)]

    def _run(self, x: Value, w: Value, totals: list[Value]) -> tuple[Value, list[Value]]:
        """Add the products of a run; the weights behind it, and the sums."""
        first = self.chunks % UNROLLED or UNROLLED
        values = self._unrolled([x, w, *totals], first)
        rounds = (self.chunks - first) // UNROLLED
        if rounds:
            carried = self._sums(values[0], values[1], values[2:])
            values = self.repeated(rounds, carried, lambda v: self._unrolled(v, UNROLLED))
        return values[1], values[2:]

    def _unrolled(self, values: list[Value], count: int) -> list[Value]:
        """Add the products of some vectors of a run; the addresses behind them, and the sums."""
        b, kind = self.b, vector(self.nbytes, I8)
        x, w, *totals = values
        for _ in range(count):
            totals = self._multiplied(b.load(kind, x), w, totals)
            x, w = b.at(x, self.nbytes), b.at(w, self._chunk_nbytes)
        return [x, w, *totals]

    @property
    def _chunk_nbytes(self) -> int:
        """Bytes of the weights of a panel for one vector of a window."""
        return self.dot.lanes * self.nbytes

    def _multiplied(self, row: Value, w: Value, totals: list[Value]) -> list[Value]:
        """Sums plus the products of a vector of bytes with the weights of each channel."""
        b, kind, new_totals = self.b, vector(self.nbytes, I8), []
        for lane, total in enumerate(totals):
            weights = b.load(kind, b.at(w, lane * self.nbytes), align=4)
            new_totals.append(self.target.isa.row_product(b, total, row, weights))
        return new_totals
