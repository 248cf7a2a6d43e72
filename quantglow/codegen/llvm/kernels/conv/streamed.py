"""Convolution with one stream of constants, for processors of few registers.

A tile is one pixel by a vector of channels, and a work item a row of pixels.  The constants of a
panel lie in the order in which they are read: bias, multipliers, weights.  Addresses move on from
tile to tile, because most windows are so short that other arithmetic would count.

``MergedConvKernel`` has the weights of two output channels in one 16-bit word, ``256 b + a``.  Sums
of channel ``a`` take the lower bytes, those of channel ``b`` whole words: after the last step they
exceed 256 times their own products by the sum of ``a``, bias included.  So half of the weights are
never widened.  The bias of ``b`` is added at the end: that of a channel with small weights may be
large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.kernels.contraction.geometry import ImageLayout
from quantglow.codegen.llvm.kernels.contraction.results import channel_sums
from quantglow.codegen.llvm.kernels.contraction.tiling import Tile
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.codegen.llvm.kernels.vector.access import store_partial
from quantglow.codegen.llvm.values import PTR, Type, Value
from quantglow.ir.graph.node import Constant
from quantglow.ir.symbolic.size import Dim, decide, is_free
from quantglow.ir.types import DType
from quantglow.support.arrays import Array

Carried = list[tuple[Type, Value]]

LIMIT = 2**23
"""Bound of sums of products that leave 32 bits not even when multiplied by 256."""
LARGEST_CODE = 128
"""Largest magnitude of an int8 activation."""
MOST_UNROLLED = 12
"""Maximum number of steps of short runs that are unrolled."""
UNROLL = 8
"""Steps of a turn: a turn costs as many instructions as a step."""


@dataclass(frozen=True)
class Panel:
    """The constants of a panel, and how many of its channels are stored."""

    constants: Value
    valid: int


@dataclass
class StreamedConvKernel(ConvKernel):
    """Generator of one convolution kernel; its subclasses say where it applies."""

    @property
    def streams(self) -> bool:
        """Whether there are products of bytes, and all sizes are known."""
        g = self.geometry
        images = (g.x, g.y, *([g.residual] if g.residual else []))
        free = any(is_free(n) for i in images for n in (i.height, i.width, *i.pitches))
        bytes_only = self.step.inputs[0].type.dtype is DType.I8
        return bytes_only and g.runs.total_steps > 0 and not free

    @property
    def tile(self) -> Tile:
        return Tile(1, 1, 1)

    @property
    def items(self) -> Dim:
        return self.geometry.y.count * self.geometry.y.height

    @property
    def is_counted(self) -> bool:
        """No: the number of pixels of a row is a literal."""
        return False

    # -- constants

    @property
    def end_nbytes(self) -> int:
        """Bytes of the bias of a panel, and of its multipliers."""
        return self.dot.lanes * STEP_NBYTES

    @property
    def panel_nbytes(self) -> int:
        return 2 * self.end_nbytes + self.vector_steps_nbytes

    def constants(self) -> tuple[Array, ...]:
        """For each panel: bias, multipliers and weights."""
        weights, *ends = super().constants()
        parts = (
            np.ascontiguousarray(part).view(np.uint8).reshape(self.all_panels, -1)
            for part in (*ends, weights)
        )
        return (np.concatenate(list(parts), axis=1).reshape(-1),)

    # -- loops

    def text(self) -> str:
        b, g = self.b, self.geometry
        added = self.epilogue.residual
        x, y, constants, *more = b.kernel(3 + added.count)
        self.residual_params, residual = added.pointers(more)
        images = [(x, g.x, self._strided()[0]), (y, g.y, g.y.row_pitch)]
        if g.residual is not None:
            images.append((residual, g.residual, g.residual.row_pitch))
        with b.loop("%begin", "%end") as item:
            image, row = b.divide(item, g.y.height)
            places = [
                b.at(pointer, b.add(b.mul(image, of.batch_pitch), b.mul(row, pitch)))
                for pointer, of, pitch in images
            ]
            (self._panels_of_row if self.panels_outer else self._pixels_of_row)(constants, places)
        return b.finish()

    def repeated(
        self, count: Dim, carried: Carried, body: Callable[[list[Value]], list[Value]]
    ) -> list[Value]:
        """The values after ``count`` turns of ``body``."""
        if decide(count == 1):
            return body([value for _, value in carried])
        loop = self.b.begin_loop(count, carried)
        return self.b.end_loop(loop, body(list(loop.carried)))

    def pointers(self, values: list[Value]) -> Carried:
        return [(PTR, value) for value in values]

    @property
    def results(self) -> list[ImageLayout]:
        """Images with a pixel for each pixel of the result."""
        g = self.geometry
        return [g.y] if g.residual is None else [g.y, g.residual]

    def next_pixel(self, places: list[Value]) -> list[Value]:
        """Addresses of input, output and residual, a pixel farther."""
        distances = [self._strided()[1], *(image.column_pitch for image in self.results)]
        return [self.b.at(p, d) for p, d in zip(places, distances, strict=True)]

    def next_channels(self, places: list[Value], channels: int) -> list[Value]:
        """The same, so many channels of the result farther."""
        x, *others = places
        distances = (channels * image.itemsize for image in self.results)
        return [x, *(self.b.at(p, d) for p, d in zip(others, distances, strict=True))]

    def _pixels_of_row(self, constants: Value, places: list[Value]) -> None:
        """One pixel after the other, all channels of each."""

        def pixel(places: list[Value]) -> list[Value]:
            self._groups(constants, places, self._channels_of_pixel)
            return self.next_pixel(places)

        self.repeated(self.geometry.y.width, self.pointers(places), pixel)

    def _panels_of_row(self, constants: Value, places: list[Value]) -> None:
        """One panel after the other, all pixels for each."""

        def channels(constants: Value, places: list[Value]) -> list[Value]:
            return self.load_panels(constants, places, self._pixels_of_panel)

        self._groups(constants, places, channels)

    def _groups(
        self,
        constants: Value,
        places: list[Value],
        body: Callable[[Value, list[Value]], list[Value]],
    ) -> None:
        """``body`` for each group, whose results are the addresses behind its last channels."""
        nbytes = self.conv.w.type.fixed_shape[2] * self.geometry.x.itemsize

        def group(values: list[Value]) -> list[Value]:
            constants, x, *others = body(values[0], values[1:])
            return [constants, self.b.at(x, nbytes), *others]

        self.repeated(self.conv.group, self.pointers([constants, *places]), group)

    def load_panels(
        self, constants: Value, places: list[Value], body: Callable[[Panel, list[Value]], None]
    ) -> list[Value]:
        """``body`` for each panel of a group; the addresses behind its constants and results."""
        panels = self.panels

        def panel(values: list[Value], valid: int = self.dot.lanes) -> list[Value]:
            constants, *places = values
            body(Panel(constants, valid), places)
            return [self.b.at(constants, self.panel_nbytes), *self.next_channels(places, valid)]

        values = [constants, *places]
        if panels.full:
            values = self.repeated(panels.full, self.pointers(values), panel)
        return panel(values, panels.tail_channels) if panels.tail_channels else values

    def _channels_of_pixel(self, constants: Value, places: list[Value]) -> list[Value]:
        """All panels of a group for one pixel."""
        return self.load_panels(constants, places, self.one_tile)

    def _pixels_of_panel(self, panel: Panel, places: list[Value]) -> None:
        """All pixels of a row for one panel."""

        def pixel(places: list[Value]) -> list[Value]:
            self.one_tile(panel, places)
            return self.next_pixel(places)

        self.repeated(self.geometry.y.width, self.pointers(places), pixel)

    # -- one tile

    def one_tile(self, panel: Panel, places: list[Value]) -> None:
        """The sums of a pixel and a panel, finished and stored."""
        self.finish(panel, places, self.compute_sums(panel, places[0]))

    def load_bias(self, panel: Panel) -> Value:
        return self.b.load(self.dot.kind, panel.constants, align=4)

    def load_weights(self, panel: Panel) -> Value:
        """The address of the weights."""
        return self.b.at(panel.constants, 2 * self.end_nbytes)

    def finish(self, panel: Panel, places: list[Value], sums: Value) -> None:
        b, results = self.b, self.epilogue.results
        scale = b.load(results.floats, b.at(panel.constants, self.end_nbytes), align=4)
        residual = None
        if self.conv.residual is not None:
            (residual,) = self.residual_at(places[2], 0, 1, panel.valid)
        data = results.packed(b, [self.epilogue.values(b, sums, scale, residual)])
        lanes = self.dot.lanes
        store_partial(b, self.target, results.element, lanes, panel.valid, data, places[1])

    def compute_sums(self, panel: Panel, x: Value) -> Value:
        """Bias and products of all runs."""
        raise NotImplementedError


@dataclass
class MergedConvKernel(StreamedConvKernel):
    """Generator of one convolution kernel with merged channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.merged = self.target.isa.merged_product(self.target.core)
        self.dot = self.merged or self.dot

    @property
    def applies(self) -> bool:
        """Whether the target merges channels, and no input makes a sum too large."""
        if self.merged is None or not self.streams:
            return False
        w = self.conv.w
        assert isinstance(w, Constant)
        largest = LARGEST_CODE * channel_sums(w.value, magnitudes=True)
        return int(w.value.min(initial=0)) > -LARGEST_CODE and int(largest.max(initial=0)) < LIMIT

    def compute_sums(self, panel: Panel, x: Value) -> Value:
        assert self.merged is not None
        opened = self.merged.opened(self.b, self.load_bias(panel))
        sums = self.added(x, self.load_weights(panel), opened)
        return self.merged.closed(self.b, sums, self.load_bias(panel))

    def added(self, x: Value, w: Value, sums: Value) -> Value:
        """Sums and the products of all runs."""
        runs = self.geometry.runs
        if runs.total_steps <= MOST_UNROLLED:
            return self._unrolled_runs(x, w, sums)

        def outer(values: list[Value]) -> list[Value]:
            _, w, sums = self.repeated(runs.inner, self._state(*values), inner)
            return [self.b.at(values[0], runs.outer_pitch), w, sums]

        def inner(values: list[Value]) -> list[Value]:
            w, sums = self._run(*values)
            return [self.b.at(values[0], runs.inner_pitch), w, sums]

        return self.repeated(runs.outer, self._state(x, w, sums), outer)[2]

    def _state(self, x: Value, w: Value, sums: Value) -> Carried:
        return [*self.pointers([x, w]), (self.dot.kind, sums)]

    def _unrolled_runs(self, x: Value, w: Value, sums: Value) -> Value:
        """``added`` without loops."""
        runs = self.geometry.runs
        for o in range(runs.outer):
            for i in range(runs.inner):
                at = self.b.at(x, o * runs.outer_pitch + i * runs.inner_pitch)
                _, w, sums = self._some_steps(runs.steps, at, w, sums)
        return sums

    def _run(self, x: Value, w: Value, sums: Value) -> tuple[Value, Value]:
        """Add the products of a run; the weights behind it, and the sums."""
        rounds, remainder = divmod(self.geometry.runs.steps, UNROLL)

        def body(values: list[Value]) -> list[Value]:
            return self._some_steps(UNROLL, *values)

        if rounds:
            x, w, sums = self.repeated(rounds, self._state(x, w, sums), body)
        _, w, sums = self._some_steps(remainder, x, w, sums)
        return w, sums

    def _some_steps(self, count: int, x: Value, w: Value, sums: Value) -> list[Value]:
        """Add the products of some steps; the addresses behind them, and the sums."""
        b, dot = self.b, self.dot
        for step in range(count):
            weights = dot.weights(b, w, step * dot.weight_nbytes)
            operand = dot.operand(b, b.at(x, step * STEP_NBYTES))
            sums = dot.accumulate(b, sums, operand, weights)
        return [b.at(x, count * STEP_NBYTES), b.at(w, count * dot.weight_nbytes), sums]
