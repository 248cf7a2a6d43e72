"""Convolution on AMX tiles: up to 16 pixels by 16 channels by 64 bytes in one instruction.

A tile register holds 16 rows of 64 bytes.  The rows of an input tile are neighbouring pixels, read
where they lie; those of a weight tile are the steps of a run, as packed for dot products.  Two
blocks of pixels by two vectors of channels are summed in four registers, then stored to the stack,
from where the sums go through the usual epilogue.  Sums are int32 and wrap, as everywhere.

Sizes are configured: a block may have fewer pixels, and where a run is no multiple of 64 bytes its
rest has registers of its own, so nothing beyond a run's last step is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.kernels.contraction.dot import STEP_NBYTES
from quantglow.backends.llvm.kernels.contraction.packing import panel_steps
from quantglow.backends.llvm.kernels.contraction.tiling import Tile
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.loops import Place
from quantglow.lazy import cached_property
from quantglow.types import Array, DType

ROWS = 16
ROW_NBYTES = 64
STEPS = ROW_NBYTES // STEP_NBYTES
TILE_NBYTES = ROWS * ROW_NBYTES
REGISTERS = 8
CONFIG_NBYTES, WIDTHS_AT, HEIGHTS_AT = 64, 16, 48
"""Of the operand of ``ldtilecfg`` (palette 1): 16-bit widths in bytes, 8-bit numbers of rows."""
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
    def pays(self) -> bool:
        """Whether the form exists and enough of each tile is used."""
        x = self.step.inputs[0].type
        if x.dtype is not DType.U8 or not x.size:
            return False
        blocks = self._blocks(self.tile.rows, self.tile.columns)
        pixels = sum(block.pixels for block in blocks) / (ROWS * len(blocks))
        nbytes = self.geometry.runs.nbytes
        depth = nbytes / (-(-nbytes // ROW_NBYTES) * ROW_NBYTES)
        channels = self.channels / (-(-self.channels // self.dot.lanes) * self.dot.lanes)
        return pixels * depth * channels >= LEAST_USE

    @cached_property
    def tile(self) -> Tile:
        y = self.geometry.y
        vectors = min(MOST_VECTORS, -(-self.channels // self.dot.lanes))
        if y.width <= ROWS and y.height > 1 and self._most_blocks > 1:
            return Tile(self._most_blocks, y.width, vectors)
        pieces = -(-y.width // (ROWS * self._most_blocks))
        return Tile(1, -(-y.width // pieces), vectors)

    # -- registers

    @property
    def _full_parts(self) -> int:
        """Parts of 64 bytes in a run."""
        return self.geometry.runs.nbytes // ROW_NBYTES

    @property
    def _rest_steps(self) -> int:
        """Steps of a run beyond those."""
        return self.geometry.runs.steps - self._full_parts * STEPS

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
        pieces = -(-columns // ROWS)
        size = -(-columns // pieces)
        starts = range(0, columns, size)
        return [Block(r, c, min(size, columns - c)) for r in range(rows) for c in starts]

    def _configuration(self, columns: int) -> Array:
        """The operand of ``ldtilecfg`` for tiles of so many columns."""
        found = np.zeros(CONFIG_NBYTES, np.uint8)
        found[0] = 1
        widths = found[WIDTHS_AT : WIDTHS_AT + 2 * REGISTERS].view("<u2")
        heights = found[HEIGHTS_AT : HEIGHTS_AT + REGISTERS]
        for index, block in enumerate(self._blocks(self.tile.rows, columns)):
            for vector in range(MOST_VECTORS):
                register = self._sum_register(index, vector)
                heights[register], widths[register] = block.pixels, ROW_NBYTES
        for rest, steps in ((False, STEPS), (True, self._rest_steps)):
            if not (self._rest_steps if rest else self._full_parts):
                continue
            pixels, weights = self._operand_registers(rest)
            for register, block in zip(pixels, self._blocks(self.tile.rows, columns), strict=False):
                heights[register], widths[register] = block.pixels, steps * STEP_NBYTES
            for register in weights:
                heights[register], widths[register] = steps, ROW_NBYTES
        return found

    # -- constants

    def packed_weights(self, w: Array, channels: list[Array]) -> Array:
        """For each panel, run, part of a run and vector: the steps of the part."""
        runs = self.geometry.runs
        packed = []
        for steps in panel_steps(w, runs, channels):
            by_run = steps.reshape(runs.outer * runs.inner, runs.steps, steps.shape[1], -1)
            parts = [
                by_run[:, start : start + STEPS].transpose(0, 2, 1, 3).reshape(len(by_run), -1)
                for start in range(0, runs.steps, STEPS)
            ]
            packed.append(np.concatenate(parts, axis=1).reshape(-1))
        return np.concatenate(packed)

    # -- code

    def enter(self) -> None:
        """Room for sums; the configuration, if there is only one."""
        nbytes = self._most_blocks * MOST_VECTORS * TILE_NBYTES
        self.sums = self.b.emit(f"alloca [{nbytes} x i8], align {ROW_NBYTES}")
        if self.geometry.y.width % self.tile.columns == 0:
            self._configure(self.tile.columns)

    def leave(self) -> None:
        self.b.call("llvm.x86.tilerelease", "void")

    def _configure(self, columns: int) -> None:
        name = f"tiles{columns}"
        values = ", ".join(f"i8 {value}" for value in self._configuration(columns))
        kind = f"[{CONFIG_NBYTES} x i8]"
        self.b.declarations[name] = (
            f"@{name} = private unnamed_addr constant {kind} [{values}], align {ROW_NBYTES}"
        )
        self.b.call("llvm.x86.ldtilecfg", "void", ("ptr", f"@{name}"))

    def body(self, rows: int, columns: int, vectors: int, channels: int, place: Place) -> None:
        """Sums of a tile of pixels, to the stack and through the epilogue."""
        b, blocks = self.b, self._blocks(rows, columns)
        if self.geometry.y.width % self.tile.columns:
            self._configure(columns)
        sums = [
            (self._sum_register(i, v), (i * MOST_VECTORS + v) * TILE_NBYTES)
            for i in range(len(blocks))
            for v in range(vectors)
        ]
        for register, _ in sums:
            b.call("llvm.x86.tilezero", "void", ("i8", str(register)))
        self._add_runs(blocks, vectors, place)
        for register, position in sums:
            self._move("tilestored64", register, b.at(self.sums, position), ROW_NBYTES)
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
        position = (block * MOST_VECTORS + vector) * TILE_NBYTES + pixel * ROW_NBYTES
        loaded = self.b.load(self.dot.kind, self.b.at(self.sums, position), align=ROW_NBYTES)
        return self.b.op("add", self.dot.kind, loaded, bias)

    def _add_runs(self, blocks: list[Block], vectors: int, place: Place) -> None:
        """Add the products of all runs."""
        b, runs = self.b, self.geometry.runs
        run_nbytes = runs.steps * vectors * ROW_NBYTES
        part_nbytes = STEPS * vectors * ROW_NBYTES
        with b.loop(0, runs.outer) as outer, b.loop(0, runs.inner) as inner:
            run = b.add(b.mul(outer, runs.inner), inner)
            x = b.at(place.x, b.mul(outer, runs.outer_pitch))
            x = b.at(x, b.mul(inner, runs.inner_pitch))
            w = b.at(place.w, b.mul(run, run_nbytes))
            if self._full_parts:
                with b.loop(0, self._full_parts) as part:
                    row = b.at(x, b.mul(part, ROW_NBYTES))
                    weights = b.at(w, b.mul(part, part_nbytes))
                    self._add_part(row, weights, blocks, vectors, rest=False)
            if self._rest_steps:
                row = b.at(x, self._full_parts * ROW_NBYTES)
                weights = b.at(w, self._full_parts * part_nbytes)
                self._add_part(row, weights, blocks, vectors, rest=True)

    def _add_part(
        self, x: Value, w: Value, blocks: list[Block], vectors: int, *, rest: bool
    ) -> None:
        """Add the products of up to 64 bytes of each pixel."""
        b = self.b
        operands, weights = self._operand_registers(rest)
        steps = self._rest_steps if rest else STEPS
        for v in range(vectors):
            self._move("tileloadd64", weights[v], b.at(w, v * steps * ROW_NBYTES), ROW_NBYTES)
        pitch = self.geometry.strides[1] * self.geometry.x.column_pitch
        for i, block in enumerate(blocks):
            pixels = b.at(x, self.geometry.input_offset(block.row, block.column))
            self._move("tileloadd64", operands[i], pixels, pitch)
            for v in range(vectors):
                registers = (self._sum_register(i, v), operands[i], weights[v])
                b.call("llvm.x86.tdpbusd", "void", *(("i8", str(r)) for r in registers))

    def _move(self, name: str, register: int, pointer: Value, pitch: int) -> None:
        """Load or store a register whose rows lie ``pitch`` bytes apart."""
        arguments = (("i8", str(register)), ("ptr", pointer), ("i64", str(pitch)))
        self.b.call(f"llvm.x86.{name}", "void", *arguments)
