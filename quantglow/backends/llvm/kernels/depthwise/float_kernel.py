"""Depthwise convolution of float32: a vector of channels by several columns in registers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.backends.llvm.kernels.contraction.geometry import Image
from quantglow.backends.llvm.kernels.depthwise.plan import UNROLLED_TAPS, is_depthwise
from quantglow.backends.llvm.kernels.vector.partial import load_partial, store_partial
from quantglow.graph.node import Constant
from quantglow.instr.program import Compute
from quantglow.lazy import cached_property
from quantglow.ops import Conv
from quantglow.symbolic.size import is_free, likely
from quantglow.types import Array, DType

COLUMNS = 8
"""Output columns in registers: enough sums to hide the latency of the multiply-add."""
ITEM = 4


@dataclass
class FloatDepthwise:
    """Generator of one float32 depthwise kernel."""

    step: Compute
    conv: Conv
    target: Target
    chosen: Choice | None = None
    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        self.x, self.y = Image.of(self.step.inputs[0]), Image.of(self.step.output)
        self.dot = self.target.dot_product(DType.F32)
        self.epilogue = Epilogue(self.conv, self.target)

    @property
    def applies(self) -> bool:
        dtypes = {self.conv.x.type.dtype, self.conv.type.dtype}
        # Rows of taps are unrolled one by one where there are many.
        most = UNROLLED_TAPS * self.conv.w.type.shape[0]
        return is_depthwise(self.conv, most) and dtypes == {DType.F32}

    @property
    def lanes(self) -> int:
        return self.dot.lanes

    @cached_property
    def most_columns(self) -> int:
        """Output columns in registers."""
        if self.chosen is not None and self.chosen.tile is not None:
            return self.chosen.tile[1]
        return self.usual_columns

    @property
    def usual_columns(self) -> int:
        """``most_columns``, where nothing was chosen."""
        return COLUMNS

    @property
    def possible_columns(self) -> list[int]:
        """Numbers of columns that can be chosen."""
        most = min(self.target.registers - 2, likely(self.y.width))
        return sorted({self.usual_columns, *range(2, most + 1, 2)})

    def call(self) -> KernelCall:
        kh, kw = self.conv.w.type.shape[:2]
        outputs = self.y.count * self.y.height * self.y.width * self.y.channels
        return KernelCall(
            code=self.text,
            pointers=(self.step.inputs[0], self.step.output, *self.constants()),
            items=self.y.count * self.y.height,
            work=float(likely(outputs) * kh * kw),
            label="depthwise float",
            facts=self.epilogue.facts,
        )

    def constants(self) -> tuple[Array, ...]:
        """Weights [blocks of channels, taps, lanes] and bias [blocks, lanes], zero-padded."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        kh, kw, _, c = w.type.shape
        padding = -c % self.lanes
        taps = np.pad(w.value.reshape(kh * kw, c), ((0, 0), (0, padding)))
        blocks = taps.reshape(kh * kw, -1, self.lanes).transpose(1, 0, 2)
        return np.ascontiguousarray(blocks), np.pad(b.value, (0, padding))

    def text(self) -> str:
        b = self.b
        x, y, w, bias = self.pointers()
        full, rest = divmod(self.y.channels, self.lanes)
        with b.loop("%begin", "%end") as item:
            image, row = b.divide(item, self.y.height)
            x_step = self.conv.strides[0] * self.x.row_pitch
            x_row = b.at(x, b.add(b.mul(row, x_step), b.mul(image, self.x.batch_pitch)))
            y_row = b.at(y, b.add(b.mul(row, self.y.row_pitch), b.mul(image, self.y.batch_pitch)))
            if full:
                with b.loop(0, full) as block:
                    self.channel_block(block, self.lanes, x_row, y_row, w, bias)
            if rest:
                self.channel_block(str(full), rest, x_row, y_row, w, bias)
        return b.finish()

    def pointers(self) -> tuple[Value, ...]:
        """Input, output, weights and bias."""
        return tuple(self.b.kernel(4))

    def channel_block(
        self, block: Value, valid: int, x: Value, y: Value, w: Value, bias: Value
    ) -> None:
        """All columns of a row for one vector of channels."""
        b = self.b
        kh, kw = self.conv.w.type.shape[:2]
        channel = b.mul(block, self.lanes * ITEM)
        x, y, bias = b.at(x, channel), b.at(y, channel), b.at(bias, channel)
        w = b.at(w, b.mul(block, kh * kw * self.lanes * ITEM))
        self.all_columns(valid, x, y, w, bias)

    def all_columns(self, valid: int, x: Value, y: Value, w: Value, bias: Value) -> None:
        """Tiles of columns, then the rest of the row."""
        b, most = self.b, self.most_columns
        if is_free(self.y.width):
            self.free_columns(valid, x, y, w, bias)
            return
        tiles, rest = divmod(self.y.width, most)
        x_pitch = self.conv.strides[1] * self.x.column_pitch
        if tiles:
            with b.loop(0, tiles) as tile:
                x_tile = b.at(x, b.mul(tile, most * x_pitch))
                y_tile = b.at(y, b.mul(tile, most * self.y.column_pitch))
                self.columns(most, valid, x_tile, y_tile, w, bias)
        if rest:
            x_tile = b.at(x, tiles * most * x_pitch)
            y_tile = b.at(y, tiles * most * self.y.column_pitch)
            self.columns(rest, valid, x_tile, y_tile, w, bias)

    def free_columns(self, valid: int, x: Value, y: Value, w: Value, bias: Value) -> None:
        """All columns of a row of a free width: tiles, the last of which ends where the row does;
        one by one if there are fewer than a tile has."""
        b, width, most = self.b, str(self.y.width), self.most_columns
        is_wide = b.compare("sge", b.index, width, str(most))
        tiled = b.select(b.index, is_wide, width, "0")
        for begin, end, count in (("0", tiled, most), (tiled, width, 1)):
            with b.loop(begin, end, count) as column:
                last = str(self.y.width - count)
                first = b.call(f"llvm.smin.{b.index}", b.index, (b.index, column), (b.index, last))
                x_tile = b.at(x, b.mul(first, self.conv.strides[1] * self.x.column_pitch))
                y_tile = b.at(y, b.mul(first, self.y.column_pitch))
                self.columns(count, valid, x_tile, y_tile, w, bias)

    def columns(self, count: int, valid: int, x: Value, y: Value, w: Value, bias: Value) -> None:
        """``count`` neighbouring output pixels."""
        b, kind = self.b, self.dot.kind
        kh, kw = self.conv.w.type.shape[:2]
        sums = [b.load(kind, bias, align=4)] * count
        if kh * kw <= UNROLLED_TAPS:
            for i in range(kh):
                sums = self.row_of_taps(sums, valid, x, w, i)
        else:
            loop = b.begin_loop(kh, [(kind, each) for each in sums])
            x_row = b.at(x, b.mul(loop.index, self.conv.dilations[0] * self.x.row_pitch))
            w_row = b.at(w, b.mul(loop.index, kw * self.lanes * ITEM))
            sums = b.end_loop(loop, self.row_of_taps(loop.carried, valid, x_row, w_row, 0))
        for column in range(count):
            values = self.epilogue.values(b, sums[column], "", None)
            data = self.epilogue.results.limited_floats(b, values)
            place = b.at(y, column * self.y.column_pitch)
            store_partial(b, self.target, "float", self.lanes, valid, data, place)

    def row_of_taps(
        self, sums: list[Value], valid: int, x: Value, w: Value, row: int
    ) -> list[Value]:
        """The sums of neighbouring pixels, and the products of a row of taps."""
        b, kw, found = self.b, self.conv.w.type.shape[1], list(sums)
        for j in range(kw):
            place = b.at(w, (row * kw + j) * self.lanes * ITEM)
            weights = (b.load(self.dot.kind, place, align=4),)
            for column in range(len(found)):
                source = column * self.conv.strides[1] + j * self.conv.dilations[1]
                pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
                value = load_partial(b, self.target, "float", self.lanes, valid, pixel)
                found[column] = self.dot.accumulate(b, found[column], (value,), weights)
        return found
