"""Convolution on matrix tiles: as many pixels as a register has rows, by a vector of channels, by
the bytes of a row, in one instruction.

The rows of an input tile are neighbouring pixels, read where they lie; those of a weight tile are
the steps of a run, as packed for dot products.  Two blocks of pixels by two vectors of channels are
summed in four registers, then stored to the stack, from where the sums go through the usual
epilogue.  Sums are int32 and wrap, as everywhere.

Sizes are configured: a block may have fewer pixels, and where a run is no multiple of a row its
rest has registers of its own, so nothing beyond a run's last step is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.isa.interface import MatrixTiles
from quantglow.backends.llvm.kernels.contraction.packing import panel_steps
from quantglow.backends.llvm.kernels.contraction.tiling import Tile
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.loops import Place
from quantglow.lazy import cached_property
from quantglow.types import Array, DType

CONFIG_ALIGNMENT = 64
MOST_VECTORS = 2
LEAST_USE = 0.25
"""The share of a tile's products that must be wanted: tiles do eight times the products of vectors
in the same time, and cost more to begin and to end.  An estimate, not measured."""


@dataclass(frozen=True)
class Block:
    """Neighbouring output pixels of one row: a row of a tile register each."""

    row: int
    column: int
    pixels: int


@dataclass
class TilesConvKernel(ConvKernel):
    """Generator of one convolution kernel that sums in tile registers."""

    @property
    def applies(self) -> bool:
        """Whether the target has matrix registers and enough of each is used."""
        x = self.step.inputs[0].type
        if self.target.isa.tiles is None or x.dtype is not DType.U8 or not x.size:
            return False
        blocks = self._blocks(self.tile.rows, self.tile.columns)
        pixels = sum(block.pixels for block in blocks) / (self.tiles_of.rows * len(blocks))
        nbytes = self.geometry.runs.nbytes
        depth = nbytes / (-(-nbytes // self.tiles_of.row_nbytes) * self.tiles_of.row_nbytes)
        channels = self.channels / (-(-self.channels // self.dot.lanes) * self.dot.lanes)
        return pixels * depth * channels >= LEAST_USE

    @cached_property
    def tile(self) -> Tile:
        height, width = self.image_size
        vectors = min(MOST_VECTORS, -(-self.channels // self.dot.lanes))
        if width <= self.tiles_of.rows and height > 1 and self._most_blocks > 1:
            return Tile(self._most_blocks, width, vectors)
        pieces = -(-width // (self.tiles_of.rows * self._most_blocks))
        return Tile(1, -(-width // pieces), vectors)

    # -- registers

    @cached_property
    def tiles_of(self) -> MatrixTiles:
        """The matrix registers of the target."""
        found = self.target.isa.tiles
        assert found is not None
        return found

    @property
    def _tile_nbytes(self) -> int:
        return self.tiles_of.rows * self.tiles_of.row_nbytes

    @property
    def _part_steps(self) -> int:
        """Steps in a row of a register."""
        return self.tiles_of.row_nbytes // STEP_NBYTES

    @property
    def _full_parts(self) -> int:
        """Parts of a whole row in a run."""
        return self.geometry.runs.nbytes // self.tiles_of.row_nbytes

    @property
    def _rest_steps(self) -> int:
        """Steps of a run beyond those."""
        return self.geometry.runs.steps - self._full_parts * self._part_steps

    @property
    def _most_blocks(self) -> int:
        """Two blocks, or one where both full parts and a rest need registers."""
        return 1 if self._full_parts and self._rest_steps else 2

    def _sum_register(self, block: int, vector: int) -> int:
        return block * MOST_VECTORS + vector

    def _operand_registers(self, rest: bool) -> tuple[list[int], list[int]]:
        """Registers of the blocks of pixels, and of the vectors of weights."""
        if self._most_blocks == 2:
            return [4, 5], [6, 7]
        return ([2], [3, 4]) if not rest else ([5], [6, 7])

    def _blocks(self, rows: int, columns: int) -> list[Block]:
        """A tile of pixels as blocks, each of its rows cut evenly."""
        pieces = -(-columns // self.tiles_of.rows)
        size = -(-columns // pieces)
        starts = range(0, columns, size)
        return [Block(r, c, min(size, columns - c)) for r in range(rows) for c in starts]

    def _configuration(self, columns: int) -> Array:
        """The sizes of all registers for tiles of ``columns`` columns."""
        sizes = [(0, 0)] * self.tiles_of.registers
        row_nbytes = self.tiles_of.row_nbytes
        for index, block in enumerate(self._blocks(self.tile.rows, columns)):
            for vector in range(MOST_VECTORS):
                sizes[self._sum_register(index, vector)] = (block.pixels, row_nbytes)
        for rest, steps in ((False, self._part_steps), (True, self._rest_steps)):
            if not (self._rest_steps if rest else self._full_parts):
                continue
            pixels, weights = self._operand_registers(rest)
            for register, block in zip(pixels, self._blocks(self.tile.rows, columns), strict=False):
                sizes[register] = (block.pixels, steps * STEP_NBYTES)
            for register in weights:
                sizes[register] = (steps, row_nbytes)
        return self.tiles_of.configuration(sizes)

    # -- constants

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """For each panel, run, part of a run and vector: the steps of the part."""
        runs = self.geometry.runs
        packed = []
        for steps in panel_steps(w, runs, channels):
            by_run = steps.reshape(runs.outer * runs.inner, runs.steps, steps.shape[1], -1)
            parts = [
                by_run[:, start : start + self._part_steps]
                .transpose(0, 2, 1, 3)
                .reshape(len(by_run), -1)
                for start in range(0, runs.steps, self._part_steps)
            ]
            packed.append(np.concatenate(parts, axis=1).reshape(-1))
        return np.concatenate(packed)

    # -- code

    def enter(self) -> None:
        """Room for sums; the configuration, if there is only one."""
        nbytes = self._most_blocks * MOST_VECTORS * self._tile_nbytes
        self.sums = self.b.emit(f"alloca [{nbytes} x i8], align {CONFIG_ALIGNMENT}")
        if self._is_even:
            self._configure(self.tile.columns)

    @property
    def _is_even(self) -> bool:
        """Whether all tiles have the same number of columns."""
        return self.moves_back or self.geometry.y.width % self.tile.columns == 0

    def leave(self) -> None:
        self.tiles_of.release(self.b)

    def _configure(self, columns: int) -> None:
        name, sizes = f"tiles{columns}", self._configuration(columns)
        values = ", ".join(f"i8 {value}" for value in sizes)
        kind = f"[{len(sizes)} x i8]"
        self.b.declarations[name] = (
            f"@{name} = private unnamed_addr constant {kind} [{values}], align {CONFIG_ALIGNMENT}"
        )
        self.tiles_of.configure(self.b, f"@{name}")

    def body(self, rows: int, columns: int, vectors: int, channels: int, place: Place) -> None:
        """Sums of a tile of pixels, to the stack and through the epilogue."""
        b, blocks = self.b, self._blocks(rows, columns)
        if not self._is_even:
            self._configure(columns)
        sums = [
            (self._sum_register(i, v), (i * MOST_VECTORS + v) * self._tile_nbytes)
            for i in range(len(blocks))
            for v in range(vectors)
        ]
        for register, _ in sums:
            self.tiles_of.zero(b, register)
        self._add_runs(blocks, vectors, place)
        for register, position in sums:
            at = b.at(self.sums, position)
            self.tiles_of.store(b, register, at, self.tiles_of.row_nbytes)
        bias = [
            b.load(self.dot.kind, self._vector_of(self.bias, place.first, v), align=4)
            for v in range(vectors)
        ]
        for i, block in enumerate(blocks):
            for pixel in range(block.pixels):
                found = [self._sum(i, v, pixel, bias[v]) for v in range(vectors)]
                self.store(found, block.row, block.column + pixel, channels, place)

    def _sum(self, block: int, vector: int, pixel: int, bias: Value) -> Value:
        """One vector of sums from the stack, with the bias."""
        position = (
            block * MOST_VECTORS + vector
        ) * self._tile_nbytes + pixel * self.tiles_of.row_nbytes
        loaded = self.b.load(self.dot.kind, self.b.at(self.sums, position), align=CONFIG_ALIGNMENT)
        return self.b.op("add", self.dot.kind, loaded, bias)

    def _add_runs(self, blocks: list[Block], vectors: int, place: Place) -> None:
        """Add the products of all runs."""
        b, runs = self.b, self.geometry.runs
        run_nbytes = runs.steps * vectors * self.tiles_of.row_nbytes
        part_nbytes = self._part_steps * vectors * self.tiles_of.row_nbytes
        with b.loop(0, runs.outer) as outer, b.loop(0, runs.inner) as inner:
            run = b.add(b.mul(outer, runs.inner), inner)
            x = b.at(place.x, b.mul(outer, runs.outer_pitch))
            x = b.at(x, b.mul(inner, runs.inner_pitch))
            w = b.at(place.w, b.mul(run, run_nbytes))
            if self._full_parts:
                with b.loop(0, self._full_parts) as part:
                    row = b.at(x, b.mul(part, self.tiles_of.row_nbytes))
                    weights = b.at(w, b.mul(part, part_nbytes))
                    self._add_part(row, weights, blocks, vectors, rest=False)
            if self._rest_steps:
                row = b.at(x, self._full_parts * self.tiles_of.row_nbytes)
                weights = b.at(w, self._full_parts * part_nbytes)
                self._add_part(row, weights, blocks, vectors, rest=True)

    def _add_part(
        self, x: Value, w: Value, blocks: list[Block], vectors: int, *, rest: bool
    ) -> None:
        """Add the products of up to a row of bytes of each pixel."""
        b, tiles = self.b, self.tiles_of
        operands, weights = self._operand_registers(rest)
        steps = self._rest_steps if rest else self._part_steps
        row_nbytes = tiles.row_nbytes
        for v in range(vectors):
            tiles.load(b, weights[v], b.at(w, v * steps * row_nbytes), row_nbytes)
        pitch = self.geometry.strides[1] * self.geometry.x.column_pitch
        for i, block in enumerate(blocks):
            pixels = b.at(x, self.geometry.input_offset(block.row, block.column))
            tiles.load(b, operands[i], pixels, pitch)
            for v in range(vectors):
                tiles.multiply(b, self._sum_register(i, v), operands[i], weights[v])
