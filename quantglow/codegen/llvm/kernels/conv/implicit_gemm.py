"""Convolution: implicit GEMM on NHWC images, specialized to shapes and strides.

A tile of output pixels by a panel of output channels stays in registers for the whole sum; the
inner loop broadcasts four bytes of each input pixel and multiplies them with packed weights.
Padding is in the buffer already, so there is no border code.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.isa.interface import LINE_NBYTES
from quantglow.codegen.llvm.kernels.contraction.tiling import groups
from quantglow.codegen.llvm.kernels.conv.loops import ConvLoops, TilePointers
from quantglow.codegen.llvm.kernels.vector.access import store_partial
from quantglow.codegen.llvm.values import ABSENT, Value
from quantglow.ir.symbolic.size import Dim, decide, likely

UNROLL = 4
"""Steps in the body of the inner loop, unless tuned."""
NO_PREFETCH, EARLY, EVEN = "none", "early", "even"
PREFETCHES = (NO_PREFETCH, EARLY, EVEN)
"""When the weights of the next panel are asked for: never, as early as possible, or evenly."""
MOST_SHARES = 8
"""Maximum number of tiles that share the prefetch of the next panel."""


@dataclass
class ConvKernel(ConvLoops):
    """Generator of one convolution kernel."""

    @property
    def applies(self) -> bool:
        return True

    @property
    def exists(self) -> bool:
        """Whether this form can compute the convolution, whether it pays or not."""
        return self.applies

    @property
    def unroll(self) -> int:
        """Steps in the body of the inner loop."""
        chosen = None if self.chosen is None else self.chosen.unroll
        return UNROLL if chosen is None else chosen

    @property
    def windows_overlap(self) -> bool:
        """Whether neighboring pixels of a tile read the same bytes within one run."""
        g = self.geometry
        return decide(g.strides[1] * g.x.column_pitch < g.runs.nbytes)

    @property
    def streams_weights(self) -> bool:
        """Whether weights come from far away panel by panel, each used by several tiles."""
        return self.weights_are_far and self.prefetching != NO_PREFETCH

    @property
    def weights_are_far(self) -> bool:
        """Whether the next panel's weights can be prefetched."""
        far = self.panels_outer and likely(self.pixel_tiles) > 1
        return far and self.target.isa.prefetches

    @property
    def prefetching(self) -> str:
        """One of ``PREFETCHES``."""
        chosen = None if self.chosen is None else self.chosen.prefetch
        return chosen or (EVEN if self.target.core.even_prefetch else EARLY)

    @property
    def panel_nbytes(self) -> int:
        """Bytes of the weights of a full panel."""
        return self.vector_steps_nbytes * self.tile.vectors

    @property
    def asks_evenly(self) -> bool:
        """Whether all tiles of a panel share the prefetch of the next one, so that it comes as fast
        as it will be used; else each prefetches all of it, and the first one waits."""
        rolled = self.geometry.runs.steps >= 2 * self.unroll
        return self.prefetching == EVEN and self.streams_weights and rolled

    @property
    def shares(self) -> int:
        """Among how many tiles the next panel is divided; a power of two, so that rows of many
        lengths have the same text."""
        return min(1 << (likely(self.pixel_tiles).bit_length() - 1), MOST_SHARES)

    @property
    def share_nbytes(self) -> int:
        """Bytes of the next panel that each step of a tile prefetches."""
        return -(-self.panel_nbytes // (self.geometry.runs.total_steps * self.shares))

    def body(
        self, rows: int, columns: int, vectors: int, channels: int, place: TilePointers
    ) -> None:
        """Sums of a tile, then its epilogue."""
        pixels = [(r, c) for r in range(rows) for c in range(columns)]
        kind = self.dot.kind
        bias = [
            self.b.load(kind, self._load_vector(self.bias, place.first, n), align=4)
            for n in range(vectors)
        ]
        offsets = [self.geometry.input_offset(r, c) for r, c in pixels]
        sums = self.initial_sums(bias, len(pixels))
        sums = self.contract(place.x, place.w, offsets, vectors, sums)
        self.store_tile(sums, pixels, channels, place)

    def initial_sums(self, bias: list[Value], pixels: int) -> list[Value]:
        """Vectors of sums of each pixel in turn."""
        return bias * pixels

    def _load_vector(self, pointer: Value, first: Value, index: int) -> Value:
        """Per-channel constants (4 bytes each) of one vector of a panel."""
        return self.b.at(
            self.b.at(pointer, self.b.mul(first, 4)), index * self.target.vector_nbytes
        )

    def _load_multipliers(self, first: Value, index: int) -> Value:
        """The multipliers of one vector of a panel; nothing for float sums."""
        if not self.scale:
            return ABSENT
        pointer = self._load_vector(self.scale, first, index)
        return self.b.load(self.epilogue.results.floats, pointer, align=4)

    def contract(
        self, x: Value, w: Value, offsets: list[Dim], vectors: int, sums: list[Value]
    ) -> list[Value]:
        """Add all steps of all runs."""
        b, runs = self.b, self.geometry.runs
        kind = self.dot.kind
        run_nbytes = runs.steps * vectors * self.dot.weight_nbytes
        ahead = self.share_of_next_panel(w) if self.asks_evenly else ABSENT
        if runs.inner * runs.outer == 1:
            return self.run(x, w, offsets, vectors, sums, ahead)
        outer = b.begin_loop(runs.outer, [(kind, s) for s in sums]) if runs.outer > 1 else None
        if outer is not None:
            sums = outer.carried
            x = b.at(x, b.mul(outer.index, runs.outer_pitch))
            w = b.at(w, b.mul(outer.index, runs.inner * run_nbytes))
            ahead = self.after_runs(ahead, outer.index, runs.inner)
        inner = b.begin_loop(runs.inner, [(kind, s) for s in sums])
        row = b.opaque(b.at(x, b.mul(inner.index, runs.inner_pitch)))
        weights = b.opaque(b.at(w, b.mul(inner.index, run_nbytes)))
        ahead = self.after_runs(ahead, inner.index, 1)
        sums = self.run(row, weights, offsets, vectors, inner.carried, ahead)
        sums = b.end_loop(inner, sums)
        return sums if outer is None else b.end_loop(outer, sums)

    def run(
        self,
        x: Value,
        w: Value,
        offsets: list[Dim],
        vectors: int,
        sums: list[Value],
        ahead: Value = ABSENT,
    ) -> list[Value]:
        """Add the steps of one run: a rolled loop of ``unroll`` steps, then the rest.

        ``ahead``: the address to prefetch meanwhile.
        """
        b, steps = self.b, self.geometry.runs.steps
        unroll = self.unroll
        rounds, remainder = divmod(steps, unroll)
        step_nbytes = vectors * self.dot.weight_nbytes
        if rounds <= 1:
            return self.steps(x, w, offsets, vectors, sums, steps)
        loop = b.begin_loop(rounds, [(self.dot.kind, s) for s in sums])
        row = b.opaque(b.at(x, b.mul(loop.index, unroll * STEP_NBYTES)))
        weights = b.opaque(b.at(w, b.mul(loop.index, unroll * step_nbytes)))
        if ahead:
            ahead = b.opaque(b.at(ahead, b.mul(loop.index, unroll * self.share_nbytes)))
        sums = self.steps(row, weights, offsets, vectors, loop.carried, unroll, ahead)
        sums = b.end_loop(loop, sums)
        if not remainder:
            return sums
        x = b.at(x, rounds * unroll * STEP_NBYTES)
        w = b.at(w, rounds * unroll * step_nbytes)
        return self.steps(x, w, offsets, vectors, sums, remainder)

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
        """``count`` steps, unrolled."""
        b, dot = self.b, self.dot
        sums, at_once = list(sums), dot.steps_at_once
        operands: list[list[tuple[Value, ...]]] = []
        for step in range(count):
            base = step * vectors * dot.weight_nbytes
            weights = [dot.weights(b, w, base + n * dot.weight_nbytes) for n in range(vectors)]
            if ahead:
                # In every step: where steps differ, LLVM moves loads between them, and spills.
                self.prefetch(b.at(ahead, step * self.share_nbytes), self.share_nbytes)
            elif self.streams_weights and not self.asks_evenly:
                self.prefetch_next_panel(w, base, vectors)
            if step % at_once:
                self.add_products([lanes[step % at_once] for lanes in operands], weights, sums)
                continue
            row = b.at(x, step * STEP_NBYTES)
            if self.windows_overlap:
                # Pixels share bytes between steps; LLVM would keep those broadcasts and spill.
                row = b.opaque(row)
            if at_once == 1:
                self.add_step(row, offsets, weights, sums)
                continue
            left = min(at_once, count - step)
            operands = [dot.operands(b, b.at(row, offset), left) for offset in offsets]
            self.add_products([lanes[0] for lanes in operands], weights, sums)
        return sums

    def add_products(
        self,
        operands: list[tuple[Value, ...]],
        weights: list[tuple[Value, ...]],
        sums: list[Value],
    ) -> None:
        """Add the products of one step, whose operands are there, to ``sums``."""
        for m, operand in enumerate(operands):
            for n, weight in enumerate(weights):
                index = m * len(weights) + n
                sums[index] = self.dot.accumulate(self.b, sums[index], operand, weight)

    def add_step(
        self, row: Value, offsets: list[Dim], weights: list[tuple[Value, ...]], sums: list[Value]
    ) -> None:
        """Add the products of one step to ``sums``."""
        b, dot = self.b, self.dot
        if dot.multiplies_elements:
            self.add_elements(row, offsets, weights, sums)
            return
        # Pixel by pixel, so that a single operand is alive at a time: the sums of the tile and the
        # weights of the step take all other registers (``tiling.fits``).
        for m, offset in enumerate(offsets):
            operand = dot.operand(b, b.at(row, offset))
            for n, weight in enumerate(weights):
                index = m * len(weights) + n
                sums[index] = dot.accumulate(b, sums[index], operand, weight)

    def add_elements(
        self, row: Value, offsets: list[Dim], weights: list[tuple[Value, ...]], sums: list[Value]
    ) -> None:
        """The same, one element of all pixels and channels after the other."""
        operands = [self.dot.operand(self.b, self.b.at(row, offset)) for offset in offsets]
        for x, w in zip(zip(*operands, strict=True), zip(*weights, strict=True), strict=True):
            self.add_products([(each,) for each in x], [(each,) for each in w], sums)

    def prefetch_next_panel(self, w: Value, base: int, vectors: int) -> None:
        """Prefetch the next panel's weights of the same step while this panel is at work."""
        ahead = self.panel_nbytes + base
        self.prefetch(self.b.at(w, ahead), vectors * self.dot.weight_nbytes)

    def share_of_next_panel(self, w: Value) -> Value:
        """The address of the share of the next panel that this tile prefetches; tiles beyond the
        shares prefetch the last one again."""
        b, runs = self.b, self.geometry.runs
        limits = (b.index, self.turn), (b.index, str(self.shares - 1))
        turn = b.call(f"llvm.umin.{b.index}", b.index, *limits)
        return self.after_runs(b.at(w, self.panel_nbytes), turn, runs.outer * runs.inner)

    def after_runs(self, ahead: Value, index: Value, count: int) -> Value:
        """``ahead`` moved by the bytes that ``index`` times ``count`` runs prefetch."""
        if not ahead:
            return ahead
        nbytes = count * self.geometry.runs.steps * self.share_nbytes
        return self.b.at(ahead, self.b.mul(index, nbytes))

    def prefetch(self, pointer: Value, nbytes: int) -> None:
        """Prefetch all lines of a piece of memory."""
        for offset in range(0, nbytes, LINE_NBYTES):
            self.b.prefetch(self.b.at(pointer, offset))

    # -- results

    def store_tile(
        self, sums: list[Value], pixels: list[tuple[int, int]], channels: int, place: TilePointers
    ) -> None:
        """Finish and store a tile."""
        vectors = len(sums) // len(pixels)
        for index, (r, c) in enumerate(pixels):
            self.store(sums[index * vectors : (index + 1) * vectors], r, c, channels, place)

    def store(
        self, sums: list[Value], row: int, column: int, channels: int, place: TilePointers
    ) -> None:
        """Finish and store one pixel's channels."""
        b, g, lanes = self.b, self.geometry, self.dot.lanes
        y = b.at(place.y, row * g.y.row_pitch + column * g.y.column_pitch)
        residual: Value = ABSENT
        if g.residual is not None:
            offset = row * g.residual.row_pitch + column * g.residual.column_pitch
            residual = b.at(place.residual, offset)
        first, element = 0, self.epilogue.results.element
        for size in groups(len(sums), self.epilogue.results.joined):
            valid = min(channels - first * lanes, size * lanes)
            values = self.values(sums[first : first + size], first, valid, residual, place)
            data = self.epilogue.results.packed(b, values)
            position = b.at(y, first * lanes * g.y.itemsize)
            store_partial(b, self.target, element, size * lanes, valid, data, position)
            first += size

    def values(
        self, sums: list[Value], first: int, valid: int, residual: Value, place: TilePointers
    ) -> list[Value]:
        """Sums of one pixel, from vector ``first`` of a panel, in steps (or reals)."""
        b, size = self.b, len(sums)
        extras: list[Value | None] = [None] * size
        if residual:
            extras = list(self.residual_at(residual, first, size, valid))
        return [
            self.epilogue.values(
                b,
                sums[i],
                self._load_multipliers(place.first, first + i),
                extras[i],
            )
            for i in range(size)
        ]

    def residual_at(self, residual: Value, first: int, size: int, valid: int) -> list[Value]:
        """``size`` vectors of the residual of a pixel, from vector ``first`` of a panel."""
        nbytes = self.step.inputs[3].type.dtype.nbytes
        place = self.b.at(residual, first * self.dot.lanes * nbytes)
        return self.epilogue.residual_at(self.b, place, size, valid, self.residual_params)
