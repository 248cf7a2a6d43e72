"""Convolution: implicit GEMM on NHWC images, specialised to shapes and strides.

A tile of output pixels by a panel of output channels stays in registers for the whole sum; the
inner loop broadcasts four bytes of each input pixel and multiplies them with packed weights.
Padding is in the buffer already, so there is no border code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.dot import STEP_NBYTES, DotProduct, dot_product
from quantglow.backends.llvm.kernels.epilogue import Epilogue
from quantglow.backends.llvm.kernels.geometry import Geometry
from quantglow.backends.llvm.kernels.packing import (
    Panels,
    pack_vectors,
    pack_weights,
    panel_channels,
)
from quantglow.backends.llvm.kernels.partial import load_partial, store_partial
from quantglow.backends.llvm.kernels.tiling import Tile, choose_tile, groups
from quantglow.backends.llvm.kernels.vectors import ELEMENTS
from quantglow.backends.llvm.kernels.weight_sums import channel_sums
from quantglow.backends.llvm.target import Target
from quantglow.graph.node import Constant
from quantglow.instr.program import Compute
from quantglow.ops import Conv
from quantglow.types import Array

UNROLL = 4
"""Steps in the body of the inner loop."""
LINE_NBYTES = 64
"""Bytes of a cache line."""
FEWEST_PANELS = 6
"""With fewer panels threads could not share them evenly."""


@dataclass
class ConvKernel:
    """Generator of one convolution kernel."""

    step: Compute
    conv: Conv
    target: Target
    b: Builder = field(default_factory=Builder)

    def __post_init__(self) -> None:
        x, w = self.step.inputs[:2]
        residual = self.step.inputs[3] if self.conv.residual is not None else None
        self.geometry = Geometry.of(self.conv, x, self.step.output, residual)
        self.dot: DotProduct = dot_product(self.target, x.type.dtype)
        self.epilogue = Epilogue(self.conv, self.target)
        self.epilogue.check()
        self.channels = w.shape[3] // self.conv.group

    @cached_property
    def tile(self) -> Tile:
        y = self.geometry.y
        return choose_tile(
            y.height,
            y.width,
            -(-self.channels // self.dot.lanes),
            self.geometry.runs.total_steps,
            self.dot.cost,
        )

    @cached_property
    def panels(self) -> Panels:
        return Panels(self.channels, self.dot.lanes, self.tile.vectors)

    @property
    def vector_steps_nbytes(self) -> int:
        """Packed weight bytes of all steps of one vector."""
        return self.geometry.runs.total_steps * self.dot.weight_nbytes

    # -- the call

    def call(self) -> KernelCall:
        y = self.geometry.y
        pixels = y.count * y.height * y.width
        steps = self.geometry.runs.total_steps * self.channels * self.conv.group
        views = (self.step.inputs[0], self.step.output)
        residual = self.step.inputs[3:4]
        return KernelCall(
            code=self.text,
            pointers=(*views, *self.constants(), *residual),
            items=self.outer_count,
            work=float(pixels * steps * STEP_NBYTES),
            label=f"conv {self.tile.rows}x{self.tile.columns}x{self.tile.vectors}",
        )

    def constants(self) -> tuple[Array, ...]:
        """Packed weights, bias and (for integer sums) multipliers."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        channels = self.channel_lanes()
        weights = self.packed_weights(w.value, channels)
        bias = pack_vectors(self._folded_bias(w.value, b.value), channels)
        if not self.epilogue.scaled:
            return weights, bias
        return weights, bias, pack_vectors(self.epilogue.multipliers(), channels)

    def channel_lanes(self) -> list[Array]:
        """For each panel: int [vectors, lanes], the channel of each lane, -1 for none."""
        return panel_channels(self.panels, self.conv.group, self.epilogue.joined)

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """Weights in the order the kernel reads them."""
        return pack_weights(w, self.geometry.runs, channels, self.dot)

    def _folded_bias(self, w: Array, b: Array) -> Array:
        """The bias that also takes back the input zero point: ``b - zp * sum(w)``."""
        if not self.epilogue.scaled:
            return b
        sums = channel_sums(w)
        folded = b.astype(np.int64) - self.conv.x.type.params.zero_point * sums
        return np.asarray(folded, np.int32)

    @property
    def windows_overlap(self) -> bool:
        """Whether neighbouring pixels of a tile read the same bytes within one run."""
        g = self.geometry
        return g.strides[1] * g.x.column_pitch < g.runs.nbytes

    # -- loops

    @cached_property
    def row_tiles(self) -> int:
        return -(-self.geometry.y.height // self.tile.rows)

    @cached_property
    def column_tiles(self) -> int:
        return -(-self.geometry.y.width // self.tile.columns)

    @property
    def pixel_tiles(self) -> int:
        return self.geometry.y.count * self.row_tiles * self.column_tiles

    @property
    def all_panels(self) -> int:
        return self.conv.group * self.panels.count

    @property
    def packed_nbytes(self) -> int:
        """Bytes of all packed weights."""
        return self.vector_steps_nbytes * self.conv.group * sum(self.panels.widths())

    @property
    def panels_outer(self) -> bool:
        """Whether panels are the outer loop (and what threads share): where weights outweigh the
        image, they are better read once."""
        if self.pixel_tiles < 4:
            return self.all_panels > 1
        pixels = self.geometry.x.count * self.geometry.x.height * self.geometry.x.width
        image_nbytes = pixels * self.geometry.x.channels * self.geometry.x.itemsize
        return self.all_panels >= FEWEST_PANELS and self.packed_nbytes > image_nbytes

    @property
    def streams_weights(self) -> bool:
        """Whether weights come from far away panel by panel, each used by several tiles."""
        return self.panels_outer and self.pixel_tiles > 1

    @property
    def outer_count(self) -> int:
        return self.all_panels if self.panels_outer else self.pixel_tiles

    def text(self) -> str:
        b = self.b
        pointers = b.kernel(3 + self.epilogue.scaled + 1 + (self.conv.residual is not None))
        self.x, self.y, self.w, self.bias = pointers[:4]
        self.scale = pointers[4] if self.epilogue.scaled else ""
        self.residual = pointers[-1] if self.conv.residual is not None else ""
        self.enter()
        if self.panels_outer:
            with b.loop("%begin", "%end") as panel:
                channels = self.locate_channels(panel)
                with b.loop(0, self.pixel_tiles) as tile:
                    self.dispatch(self.locate_pixels(tile), channels)
        else:
            with b.loop("%begin", "%end") as tile:
                pixels = self.locate_pixels(tile)
                with b.loop(0, self.all_panels) as panel:
                    self.dispatch(pixels, self.locate_channels(panel))
        self.leave()
        return b.finish()

    def enter(self) -> None:
        """Code before the loops."""

    def leave(self) -> None:
        """Code after the loops."""

    def locate_pixels(self, tile: Value) -> _Pixels:
        """Pointers to the first pixel of a tile."""
        b, g = self.b, self.geometry
        rest, column = b.divide(tile, self.column_tiles)
        image, row = b.divide(rest, self.row_tiles)
        index = (image, b.mul(row, self.tile.rows), b.mul(column, self.tile.columns))
        residual = ""
        if g.residual is not None:
            residual = b.at(self.residual, self._dot3(index, g.residual.pitches))
        return _Pixels(
            b.at(self.x, self._dot3(index, (g.x.batch_pitch, *self._strided()))),
            b.at(self.y, self._dot3(index, g.y.pitches)),
            residual,
            self._sizes(g.y.height, self.tile.rows, row, self.row_tiles),
            self._sizes(g.y.width, self.tile.columns, column, self.column_tiles),
        )

    def locate_channels(self, panel: Value) -> Channels:
        """Offsets of the first channel of a panel."""
        b, panels = self.b, self.panels
        group, local = b.divide(panel, panels.count)
        width = panels.vectors * panels.lanes
        group_nbytes = sum(panels.widths()) * self.vector_steps_nbytes
        panel_nbytes = panels.vectors * self.vector_steps_nbytes
        return Channels(
            b.mul(group, self.conv.w.type.shape[2] * self.geometry.x.itemsize),
            b.add(b.mul(group, panels.channels), b.mul(local, width)),
            b.add(b.mul(group, group_nbytes), b.mul(local, panel_nbytes)),
            b.add(b.mul(group, panels.padded_channels), b.mul(local, width)),
            self._panel_kinds(local),
        )

    def dispatch(self, pixels: _Pixels, channels: Channels) -> None:
        """Run the body made for the sizes of a tile and a panel."""
        b, g = self.b, self.geometry
        residual = pixels.residual
        if g.residual is not None:
            residual = b.at(residual, b.mul(channels.first, g.residual.itemsize))
        place = Place(
            b.at(pixels.x, channels.x_offset),
            b.at(pixels.y, b.mul(channels.first, g.y.itemsize)),
            b.at(self.w, channels.weights),
            channels.packed_first,
            residual,
        )
        for rows, row_test in pixels.rows:
            with b.when(row_test):
                for columns, column_test in pixels.columns:
                    with b.when(column_test):
                        for vectors, valid, test in channels.kinds:
                            with b.when(test):
                                self.body(rows, columns, vectors, valid, place)

    def _strided(self) -> tuple[int, int]:
        g = self.geometry
        return g.strides[0] * g.x.row_pitch, g.strides[1] * g.x.column_pitch

    def _dot3(self, index: tuple[Value, Value, Value], pitches: tuple[int, int, int]) -> Value:
        b, total = self.b, "0"
        for i, pitch in zip(index, pitches, strict=True):
            if i != "0" and pitch:
                term = b.mul(i, pitch)
                total = term if total == "0" else b.add(total, term)
        return total

    def _sizes(self, total: int, size: int, index: Value, count: int) -> list[tuple[int, Value]]:
        """Tile lengths that occur along one axis, each with the test that it is the turn."""
        tail = total % size
        if not tail:
            return [(size, "true")]
        if total < size:
            return [(tail, "true")]
        last = self.b.compare("eq", "i64", index, str(count - 1))
        full = self.b.op("xor", "i1", last, "true")
        return [(size, full), (tail, last)]

    def _panel_kinds(self, local: Value) -> list[tuple[int, int, Value]]:
        panels = self.panels
        kinds: list[tuple[int, int, Value]] = []
        mixed = panels.full and panels.tail_channels
        is_tail = self.b.compare("eq", "i64", local, str(panels.full)) if mixed else "true"
        if panels.full:
            test = self.b.op("xor", "i1", is_tail, "true") if mixed else "true"
            kinds.append((panels.vectors, panels.vectors * panels.lanes, test))
        if panels.tail_channels:
            kinds.append((panels.tail_vectors, panels.tail_channels, is_tail))
        return kinds

    # -- one tile

    def body(self, rows: int, columns: int, vectors: int, channels: int, place: Place) -> None:
        """Sums of a tile, then its epilogue."""
        pixels = [(r, c) for r in range(rows) for c in range(columns)]
        kind = self.dot.kind
        bias = [
            self.b.load(kind, self._vector_of(self.bias, place.first, n), align=4)
            for n in range(vectors)
        ]
        offsets = [self.geometry.input_offset(r, c) for r, c in pixels]
        sums = self.initial_sums(bias, len(pixels))
        sums = self.contract(place.x, place.w, offsets, vectors, sums)
        self.store_tile(sums, pixels, channels, place)

    def initial_sums(self, bias: list[Value], pixels: int) -> list[Value]:
        """Vectors of sums of each pixel in turn."""
        return bias * pixels

    def _vector_of(self, pointer: Value, first: Value, index: int) -> Value:
        """Per-channel constants (4 bytes each) of one vector of a panel."""
        return self.b.at(
            self.b.at(pointer, self.b.mul(first, 4)), index * self.target.vector_nbytes
        )

    def contract(
        self, x: Value, w: Value, offsets: list[int], vectors: int, sums: list[Value]
    ) -> list[Value]:
        """Add all steps of all runs."""
        b, runs = self.b, self.geometry.runs
        kind = self.dot.kind
        run_nbytes = runs.steps * vectors * self.dot.weight_nbytes
        if runs.inner * runs.outer == 1:
            return self.run(x, w, offsets, vectors, sums)
        outer = b.begin_loop(runs.outer, [(kind, s) for s in sums]) if runs.outer > 1 else None
        if outer is not None:
            sums = outer.carried
            x = b.at(x, b.mul(outer.index, runs.outer_pitch))
            w = b.at(w, b.mul(outer.index, runs.inner * run_nbytes))
        inner = b.begin_loop(runs.inner, [(kind, s) for s in sums])
        row = b.opaque(b.at(x, b.mul(inner.index, runs.inner_pitch)))
        weights = b.opaque(b.at(w, b.mul(inner.index, run_nbytes)))
        sums = self.run(row, weights, offsets, vectors, inner.carried)
        sums = b.end_loop(inner, sums)
        return sums if outer is None else b.end_loop(outer, sums)

    def run(
        self, x: Value, w: Value, offsets: list[int], vectors: int, sums: list[Value]
    ) -> list[Value]:
        """Add the steps of one run: a rolled loop of ``UNROLL`` steps, then the rest."""
        b, steps = self.b, self.geometry.runs.steps
        rounds, rest = divmod(steps, UNROLL)
        step_nbytes = vectors * self.dot.weight_nbytes
        if rounds <= 1:
            return self.steps(x, w, offsets, vectors, sums, steps)
        loop = b.begin_loop(rounds, [(self.dot.kind, s) for s in sums])
        row = b.opaque(b.at(x, b.mul(loop.index, UNROLL * STEP_NBYTES)))
        weights = b.opaque(b.at(w, b.mul(loop.index, UNROLL * step_nbytes)))
        sums = self.steps(row, weights, offsets, vectors, loop.carried, UNROLL)
        sums = b.end_loop(loop, sums)
        if not rest:
            return sums
        x = b.at(x, rounds * UNROLL * STEP_NBYTES)
        w = b.at(w, rounds * UNROLL * step_nbytes)
        return self.steps(x, w, offsets, vectors, sums, rest)

    def steps(
        self, x: Value, w: Value, offsets: list[int], vectors: int, sums: list[Value], count: int
    ) -> list[Value]:
        """``count`` steps, unrolled."""
        b, dot = self.b, self.dot
        sums = list(sums)
        for step in range(count):
            base = step * vectors * dot.weight_nbytes
            weights = [dot.weights(b, w, base + n * dot.weight_nbytes) for n in range(vectors)]
            if self.streams_weights:
                self.prefetch_next_panel(w, base, vectors)
            row = b.at(x, step * STEP_NBYTES)
            if self.windows_overlap:
                # Pixels share bytes between steps; LLVM would keep those broadcasts and spill.
                row = b.opaque(row)
            self.add_step(row, offsets, weights, sums)
        return sums

    def add_step(
        self, row: Value, offsets: list[int], weights: list[tuple[Value, ...]], sums: list[Value]
    ) -> None:
        """Add the products of one step to ``sums``."""
        b, dot = self.b, self.dot
        for m, offset in enumerate(offsets):
            operand = dot.operand(b, b.at(row, offset))
            for n, weight in enumerate(weights):
                index = m * len(weights) + n
                sums[index] = dot.accumulate(b, sums[index], operand, weight)

    def prefetch_next_panel(self, w: Value, base: int, vectors: int) -> None:
        """Ask for the next panel's weights of the same step while this panel is at work."""
        ahead = self.vector_steps_nbytes * self.tile.vectors + base
        self.prefetch(self.b.at(w, ahead), vectors * self.dot.weight_nbytes)

    def prefetch(self, pointer: Value, nbytes: int) -> None:
        """Ask for all lines of a piece of memory."""
        for offset in range(0, nbytes, LINE_NBYTES):
            self.b.prefetch(self.b.at(pointer, offset))

    # -- results

    def store_tile(
        self, sums: list[Value], pixels: list[tuple[int, int]], channels: int, place: Place
    ) -> None:
        """Finish and store a tile."""
        vectors = len(sums) // len(pixels)
        for index, (r, c) in enumerate(pixels):
            self.store(sums[index * vectors : (index + 1) * vectors], r, c, channels, place)

    def store(self, sums: list[Value], row: int, column: int, channels: int, place: Place) -> None:
        """Finish and store one pixel's channels."""
        b, g, lanes = self.b, self.geometry, self.dot.lanes
        y = b.at(place.y, row * g.y.row_pitch + column * g.y.column_pitch)
        residual = ""
        if g.residual is not None:
            offset = row * g.residual.row_pitch + column * g.residual.column_pitch
            residual = b.at(place.residual, offset)
        first, element = 0, self.epilogue.element
        for size in groups(len(sums), self.epilogue.joined):
            valid = min(channels - first * lanes, size * lanes)
            values = self.values(sums[first : first + size], first, valid, residual, place)
            data = self.epilogue.results(b, values)
            position = b.at(y, first * lanes * g.y.itemsize)
            store_partial(b, self.target, element, size * lanes, valid, data, position)
            first += size

    def values(
        self, sums: list[Value], first: int, valid: int, residual: Value, place: Place
    ) -> list[Value]:
        """Sums of one pixel, from vector ``first`` of a panel, in steps (or reals)."""
        b, size = self.b, len(sums)
        extras: list[Value | None] = [None] * size
        if residual:
            extras = list(self._residual(residual, first, size, valid))
        return [
            self.epilogue.values(
                b,
                sums[i],
                self._vector_of(self.scale, place.first, first + i) if self.scale else "",
                extras[i],
            )
            for i in range(size)
        ]

    def _residual(self, residual: Value, first: int, size: int, valid: int) -> list[Value]:
        """``size`` vectors of the residual in output steps (or reals)."""
        b, lanes = self.b, size * self.dot.lanes
        view = self.step.inputs[3].type.dtype
        position = b.at(residual, first * self.dot.lanes * view.nbytes)
        data = load_partial(b, self.target, ELEMENTS[view], lanes, valid, position)
        return [data] if view.is_float else self.epilogue.residual_steps(b, data, size)


@dataclass(frozen=True)
class _Pixels:
    """A tile of pixels: pointers, and the sizes it may have with their tests."""

    x: Value
    y: Value
    residual: Value
    rows: list[tuple[int, Value]]
    columns: list[tuple[int, Value]]


@dataclass(frozen=True)
class Channels:
    """A panel of channels: bytes to its group's input, its first output channel, bytes to its
    weights, its position among packed constants, and the sizes it may have with their tests."""

    x_offset: Value
    first: Value
    weights: Value
    packed_first: Value
    kinds: list[tuple[int, int, Value]]


@dataclass(frozen=True)
class Place:
    """Where a tile works: pointers to its input, output, weights and residual, and the position
    of its first channel among the packed constants."""

    x: Value
    y: Value
    w: Value
    first: Value
    residual: Value
