"""The plan of a convolution kernel: tiles of output pixels, panels of output channels.

It has no IR: the sizes of tiles and panels, the order of the two loops, the number of items that
threads share, and the constants packed by panels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.codegen.llvm.kernels.contraction.geometry import (
    Geometry,
    Panels,
    choose_dot,
    pack_vectors,
    pack_weights,
    panel_channels,
    panel_steps,
)
from quantglow.codegen.llvm.kernels.contraction.results import channel_sums
from quantglow.codegen.llvm.kernels.contraction.tiling import (
    Tile,
    candidates,
    choose_tile,
    choose_tile_of_free_width,
)
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import Dim, Size, careful, decide, is_free, likely
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

FEWEST_PANELS = 6
"""Minimum number of panels that threads can share evenly."""
MANY_ROUNDS = 64
"""Rounds of the outer loop that threads share evenly as they are; fewer rounds are cut in two."""


@dataclass
class ConvPlan:
    """Sizes, order and constants of one convolution kernel.

    ``chosen``: what was tuned; what it leaves open is decided by the cost model and by rules.
    """

    step: Compute
    conv: Conv
    target: Target
    chosen: KernelChoice | None = None

    def __post_init__(self) -> None:
        x, w = self.step.inputs[:2]
        residual = self.step.inputs[3] if self.conv.residual is not None else None
        self.geometry = Geometry.of(self.conv, x, self.step.output, residual)
        self.dot = choose_dot(self.conv, x.type.dtype, self.target)
        self.epilogue = Epilogue(self.conv, self.target)
        self.epilogue.check()
        self.channels = w.type.fixed_shape[3] // self.conv.group

    @cached_property
    def tile(self) -> Tile:
        """Pixels and vectors of channels whose sums stay in registers."""
        if self.chosen is not None and self.chosen.tile is not None:
            return Tile(*self.chosen.tile)
        return self.modeled_tile

    @property
    def modeled_tile(self) -> Tile:
        """The tile with the fewest modeled cycles."""
        (height, width), work = self.image_size, (self.vectors, self.total_steps, self.dot.cost)
        if isinstance(self.geometry.y.width, Size):
            return choose_tile_of_free_width(width, *work)
        return choose_tile(height, width, *work)

    @property
    def possible_tiles(self) -> list[Tile]:
        """All tiles that this form may have."""
        return candidates(*self.image_size, self.vectors, self.dot.cost)

    @property
    def vectors(self) -> int:
        """Vectors of a pixel's channels, in one group."""
        return -(-self.channels // self.dot.lanes)

    @property
    def total_steps(self) -> int:
        """Steps of all runs."""
        return self.geometry.runs.total_steps

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width for which tiles are chosen.  Tiles of an image of free size lie in one
        row, so that only its width has a tail."""
        y = self.geometry.y
        free = isinstance(y.height, Size) or isinstance(y.width, Size)
        return (1 if free else int(y.height)), careful(y.width)

    @cached_property
    def panels(self) -> Panels:
        """How the channels of a group are cut."""
        return Panels(self.channels, self.dot.lanes, self.tile.vectors)

    @property
    def vector_steps_nbytes(self) -> int:
        """Packed weight bytes of all steps of one vector."""
        return self.geometry.runs.total_steps * self.dot.weight_nbytes

    # -- constants

    def constants(self) -> tuple[Array, ...]:
        """Packed weights, bias and (for integer sums) multipliers."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        channels = self.channel_lanes()
        weights = self.packed_weights(w.value, channels)
        bias = pack_vectors(self._folded_bias(w.value, b.value), channels)
        if self.dot.exceeds:
            bias = bias - self.excess(w.value, channels)
        if not self.epilogue.scaled:
            return weights, bias
        return weights, bias, pack_vectors(self.epilogue.multipliers(), channels)

    def channel_lanes(self) -> list[Array]:
        """For each panel: int [vectors, lanes], the channel of each lane, -1 for none."""
        return panel_channels(self.panels, self.conv.group, self.epilogue.channel_order)

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """Weights in the order the kernel reads them."""
        return pack_weights(w, self.geometry.runs, channels, self.dot)

    def excess(self, w: Array, channels: list[Array]) -> Array:
        """int32: what the dot products of a sum add to it beside products, in panel order."""
        panels = panel_steps(w, self.geometry.runs, channels)
        sums = [self.dot.excess(steps).sum(axis=0).reshape(-1) for steps in panels]
        return np.concatenate(sums).astype(np.int32)

    def _folded_bias(self, w: Array, b: Array) -> Array:
        """The bias that also takes back the input zero point: ``b - zp * sum(w)``."""
        if not self.epilogue.scaled:
            return b
        sums = channel_sums(w)
        folded = b.astype(np.int64) - self.conv.x.type.params.zero_point * sums
        return np.asarray(folded, np.int32)

    # -- order

    @property
    def moves_back(self) -> bool:
        """Whether the last tile of a row is moved back so that it ends where the row does: of a
        free width, whose rest may be any.  It computes some pixels again, to the same values."""
        return is_free(self.geometry.y.width % self.tile.columns)

    @cached_property
    def row_tiles(self) -> Dim:
        """Tiles above each other in an image."""
        return -(-self.geometry.y.height // self.tile.rows)

    @cached_property
    def column_tiles(self) -> Dim:
        """Tiles beside each other in a row."""
        return -(-self.geometry.y.width // self.tile.columns)

    @property
    def pixel_tiles(self) -> Dim:
        """Number of tiles of all images."""
        return self.geometry.y.count * self.row_tiles * self.column_tiles

    @property
    def all_panels(self) -> int:
        """Number of panels of all groups."""
        return self.conv.group * self.panels.count

    @property
    def packed_nbytes(self) -> int:
        """Bytes of all packed weights."""
        return self.vector_steps_nbytes * self.conv.group * sum(self.panels.widths())

    @property
    def panels_outer(self) -> bool:
        """Whether panels are the outer loop (and shared by threads): weights larger than the image
        are better read once."""
        if self.chosen is not None and self.chosen.panels_outer is not None:
            return self.chosen.panels_outer
        if likely(self.pixel_tiles) < 4:
            return self.all_panels > 1
        x = self.geometry.x
        pixels = likely(x.count * x.height * x.width)
        image_nbytes = pixels * x.channels * x.itemsize
        return self.all_panels >= FEWEST_PANELS and self.packed_nbytes > image_nbytes

    @property
    def rounds(self) -> tuple[Dim, Dim]:
        """Rounds of the outer loop and of the inner one."""
        panels, tiles = self.all_panels, self.pixel_tiles
        return (panels, tiles) if self.panels_outer else (tiles, panels)

    @property
    def parts(self) -> int:
        """Number of items of the inner loop, so that threads can share few rounds evenly."""
        outer, inner = map(likely, self.rounds)
        return 2 if outer < MANY_ROUNDS and inner > 1 else 1

    @property
    def is_row(self) -> bool:
        """Whether the image is one row of pixels."""
        return decide(self.geometry.y.count == 1) and decide(self.geometry.y.height == 1)

    @property
    def is_counted(self) -> bool:
        """Whether the number of tiles of a row is an operand, so that rows of many lengths have the
        same text."""
        if isinstance(self.column_tiles, Size):
            return False  # an operand of its own
        width = self.geometry.y.width
        has_tail = self.column_tiles > 1 and decide(width % self.tile.columns > 0)
        return self.is_row and (self.panels_outer or has_tail)

    def counts(self) -> tuple[Array, ...]:
        """The number of tiles, where it is an operand."""
        return (np.array([self.column_tiles], np.int64),) if self.is_counted else ()
