"""Convolution by products of whole vectors of bytes, each added to a single sum.

A tile is one pixel by a vector of channels, whose sums are scalars in the inner loop.  Weights of a
channel lie together for as many bytes as a vector has, zeros beyond the end of a run.  Several runs
of at most four bytes share a vector.

A work item is a row of pixels.  Short windows stay in registers for all channels of a pixel.  The
constants of a panel lie in the order in which they are read, and addresses move on from tile to
tile: most windows are so short that other arithmetic would count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from quantglow.backends.llvm.builder import Value, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.kernels.contraction.geometry import Image
from quantglow.backends.llvm.kernels.contraction.packing import panel_steps
from quantglow.backends.llvm.kernels.contraction.tiling import Tile
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.vector.partial import store_partial
from quantglow.symbolic.size import is_free
from quantglow.types import Array, DType

MOST_GATHERED = 16
"""Maximum number of runs that share vectors: their products are unrolled."""
MOST_KEPT = 3
"""Maximum number of vectors of a window that stay in registers."""
UNROLLED = 4
"""Vectors of a run whose products are unrolled."""

Carried = list[tuple[str, Value]]


@dataclass(frozen=True)
class Ends:
    """The end of the tiles of a panel: how many channels are stored, and the addresses of bias and
    multipliers or their vectors."""

    valid: int
    bias: Value
    scale: Value


@dataclass
class RowsConvKernel(ConvKernel):
    """Generator of one convolution kernel."""

    @property
    def applies(self) -> bool:
        """Whether the target has such products, there are any, and all sizes are known."""
        g = self.geometry
        images = (g.x, g.y, *([g.residual] if g.residual else []))
        free = any(is_free(n) for i in images for n in (i.height, i.width, *i.pitches))
        bytes_only = self.step.inputs[0].type.dtype is DType.I8
        return self.target.isa.row_products and g.runs.total_steps > 0 and bytes_only and not free

    @property
    def tile(self) -> Tile:
        return Tile(1, 1, 1)

    @property
    def items(self) -> int:
        return self.geometry.y.count * self.geometry.y.height

    @property
    def is_counted(self) -> bool:
        """No: the number of pixels of a row is a literal."""
        return False

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

    @property
    def ends_nbytes(self) -> int:
        """Bytes of bias and multipliers before the weights of a panel."""
        return 2 * self.nbytes

    def constants(self) -> tuple[Array, ...]:
        """For each panel: bias, multipliers and weights."""
        weights, *ends = super().constants()
        parts = (
            np.ascontiguousarray(part).view(np.uint8).reshape(self.all_panels, -1)
            for part in (*ends, weights)
        )
        return (np.concatenate(list(parts), axis=1).reshape(-1),)

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

    # -- loops

    def text(self) -> str:
        b, g = self.b, self.geometry
        params = self.epilogue.residual.reads_params
        x, y, constants, *more = b.kernel(3 + params + (g.residual is not None))
        self.residual_params = more[0] if params else ""
        images = [(x, g.x, self._strided()[0]), (y, g.y, g.y.row_pitch)]
        if g.residual is not None:
            images.append((more[-1], g.residual, g.residual.row_pitch))
        with b.loop("%begin", "%end") as item:
            image, row = b.divide(item, g.y.height)
            places = [
                b.at(pointer, b.add(b.mul(image, of.batch_pitch), b.mul(row, pitch)))
                for pointer, of, pitch in images
            ]
            (self._panels_of_row if self.panels_outer else self._pixels_of_row)(constants, places)
        return b.finish()

    def repeated(
        self, count: int, carried: Carried, body: Callable[[list[Value]], list[Value]]
    ) -> list[Value]:
        """The values after ``count`` turns of ``body``."""
        if count == 1:
            return body([value for _, value in carried])
        loop = self.b.begin_loop(count, carried)
        return self.b.end_loop(loop, body(list(loop.carried)))

    def pointers(self, values: list[Value]) -> Carried:
        return [("ptr", value) for value in values]

    def moved(self, places: list[Value], distances: list[int]) -> list[Value]:
        """Addresses of input, output and residual, farther by so many bytes each."""
        return [self.b.at(p, d) for p, d in zip(places, distances, strict=False)]

    def next_pixel(self, places: list[Value]) -> list[Value]:
        others = [image.column_pitch for image in self.results]
        return self.moved(places, [self._strided()[1], *others])

    def next_channels(self, places: list[Value], channels: int) -> list[Value]:
        return self.moved(places, [0, *(channels * image.itemsize for image in self.results)])

    @property
    def results(self) -> list[Image]:
        """Images with a pixel for each pixel of the result."""
        g = self.geometry
        return [g.y] if g.residual is None else [g.y, g.residual]

    def _pixels_of_row(self, constants: Value, places: list[Value]) -> None:
        """One pixel after the other, all channels of each."""

        def pixel(places: list[Value]) -> list[Value]:
            self._groups(constants, places, self._channels_of_pixel)
            return self.next_pixel(places)

        self.repeated(self.geometry.y.width, self.pointers(places), pixel)

    def _panels_of_row(self, constants: Value, places: list[Value]) -> None:
        """One panel after the other, all pixels for each."""

        def channels(constants: Value, places: list[Value]) -> list[Value]:
            return self._panels(constants, places, self._pixels_of_panel)

        self._groups(constants, places, channels)

    def _groups(
        self,
        constants: Value,
        places: list[Value],
        body: Callable[[Value, list[Value]], list[Value]],
    ) -> None:
        """``body`` for each group, whose results are the addresses behind its last channels."""
        nbytes = self.conv.w.type.shape[2] * self.geometry.x.itemsize

        def group(values: list[Value]) -> list[Value]:
            constants, (x, *others) = body(values[0], values[1:])[0], values[1:]
            ends = self.next_channels([x, *others], self.panels.channels)
            return [constants, self.b.at(x, nbytes), *ends[1:]]

        self.repeated(self.conv.group, self.pointers([constants, *places]), group)

    def _panels(
        self,
        constants: Value,
        places: list[Value],
        body: Callable[[Ends, Value, list[Value]], None],
    ) -> list[Value]:
        """``body`` for each panel of a group; the address behind its constants, and behind its
        results."""
        b, lanes = self.b, self.dot.lanes

        def panel(values: list[Value], valid: int = lanes) -> list[Value]:
            constants, *places = values
            ends = Ends(valid, constants, b.at(constants, self.nbytes))
            body(ends, b.at(constants, self.ends_nbytes), places)
            after = b.at(constants, self.ends_nbytes + self.vector_steps_nbytes)
            return [after, *self.next_channels(places, valid)]

        values = [constants, *places]
        if self.panels.full:
            values = self.repeated(self.panels.full, self.pointers(values), panel)
        return panel(values, self.panels.tail_channels) if self.panels.tail_channels else values

    def _channels_of_pixel(self, constants: Value, places: list[Value]) -> list[Value]:
        """All panels of a group for one pixel."""
        products = partial(self._all_runs, places[0])
        if self.is_kept:
            products = partial(self._kept, self._window(places[0]))

        def tile(ends: Ends, w: Value, places: list[Value]) -> None:
            self._tile(products(w), self._loaded(ends), places)

        return self._panels(constants, places, tile)

    def _pixels_of_panel(self, ends: Ends, w: Value, places: list[Value]) -> None:
        """All pixels of a row for one panel."""
        loaded = self._loaded(ends)

        def pixel(places: list[Value]) -> list[Value]:
            self._tile(self._all_runs(places[0], w), loaded, places)
            return self.next_pixel(places)

        self.repeated(self.geometry.y.width, self.pointers(places), pixel)

    def _loaded(self, ends: Ends) -> Ends:
        """The vectors of bias and multipliers."""
        b, results = self.b, self.epilogue.results
        bias, scale = (
            b.load(kind, pointer, align=4)
            for kind, pointer in ((self.dot.kind, ends.bias), (results.floats, ends.scale))
        )
        return Ends(ends.valid, bias, scale)

    # -- one tile

    def _tile(self, totals: list[Value], ends: Ends, places: list[Value]) -> None:
        """Finish and store the products of a pixel with a panel."""
        b, results = self.b, self.epilogue.results
        sums = b.op("add", self.dot.kind, self._vector(self.dot.kind, totals), ends.bias)
        residual = None
        if self.conv.residual is not None:
            (residual,) = self._residual(places[2], 0, 1, ends.valid)
        data = results.packed(b, [self.epilogue.values(b, sums, ends.scale, residual)])
        lanes = self.dot.lanes
        store_partial(b, self.target, results.element, lanes, ends.valid, data, places[1])

    def _vector(self, kind: str, values: list[Value]) -> Value:
        """Scalars as a vector."""
        element = kind[kind.index("x ") + 2 : -1]
        found: Value = "poison"
        for lane, value in enumerate(values):
            found = self.b.emit(f"insertelement {kind} {found}, {element} {value}, i32 {lane}")
        return found

    def _window(self, x: Value) -> list[Value]:
        """The vectors of a window."""
        b, runs, kind = self.b, self.geometry.runs, vector(self.nbytes, "i8")
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
        words = vector(steps, "i32")
        found = self._vector(words, [b.load("i32", b.at(x, place)) for place in places])
        return b.cast("bitcast", words, found, vector(self.nbytes, "i8"))

    @property
    def nothing(self) -> list[Value]:
        """Sums before the first product."""
        return ["0"] * self.dot.lanes

    def _kept(self, window: list[Value], w: Value) -> list[Value]:
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
        return [*self.pointers([x, w]), *(("i32", total) for total in totals)]

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
        b, kind = self.b, vector(self.nbytes, "i8")
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
        b, kind, found = self.b, vector(self.nbytes, "i8"), []
        for lane, total in enumerate(totals):
            weights = b.load(kind, b.at(w, lane * self.nbytes), align=4)
            found.append(self.target.isa.row_product(b, total, row, weights))
        return found
