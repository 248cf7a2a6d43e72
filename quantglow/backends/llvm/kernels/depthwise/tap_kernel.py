"""Depthwise convolution of signed bytes, tap by tap.

For processors that interleave no bytes cheaply, and where little code counts: one vector of
channels at a time, all columns of a row, a product for each tap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.backends.llvm.kernels.contraction.geometry import Image
from quantglow.backends.llvm.kernels.contraction.weight_sums import channel_sums
from quantglow.backends.llvm.kernels.depthwise.plan import is_depthwise
from quantglow.backends.llvm.kernels.vector.partial import store_partial
from quantglow.graph.node import Constant
from quantglow.instr.program import Compute
from quantglow.ops import Conv
from quantglow.symbolic.size import is_free
from quantglow.types import Array, DType

COLUMNS = 2
"""Neighbouring columns that share the weights of a tap."""
UNROLLED_ROWS = 3
"""Larger windows have a loop over their rows: code counts."""
SUM_NBYTES = 4


@dataclass
class TapDepthwise:
    """Generator of one depthwise kernel."""

    step: Compute
    conv: Conv
    target: Target
    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        self.x, self.y = Image.of(self.step.inputs[0]), Image.of(self.step.output)
        self.products = self.target.isa.lane_products
        self.epilogue = Epilogue(self.conv, self.target)

    @property
    def applies(self) -> bool:
        """Whether the target multiplies bytes lane by lane, and all sizes are known."""
        free = any(map(is_free, (*self.x.pitches, *self.y.pitches, self.y.height, self.y.width)))
        bytes_only = self.conv.x.type.dtype is DType.I8 and self.conv.out is not None
        return self.products is not None and is_depthwise(self.conv) and bytes_only and not free

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @property
    def taps(self) -> int:
        kh, kw = self.conv.w.type.shape[:2]
        return kh * kw

    def call(self) -> KernelCall:
        self.epilogue.check()
        outputs = self.y.count * self.y.height * self.y.width * self.y.channels
        return KernelCall(
            code=self.text,
            pointers=(self.step.inputs[0], self.step.output, *self.constants()),
            items=self.y.count * self.y.height,
            work=float(outputs * self.taps),
            label="depthwise by taps",
            facts=f"taps {self.epilogue.facts}",
        )

    def constants(self) -> tuple[Array, Array, Array]:
        """Weights [vectors of channels, taps, packed lanes], bias with the zero point of the input,
        and multipliers; zeros where there are no channels."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant) and self.products is not None
        zero_point = self.conv.x.type.params.zero_point
        bias = b.value.astype(np.int64) - zero_point * channel_sums(w.value)
        taps = self._padded(w.value.reshape(self.taps, -1))
        packed = self.products.pack(taps.reshape(self.taps, -1, self.lanes).transpose(1, 0, 2))
        return (
            packed,
            self._padded(bias.astype(np.int32)),
            self._padded(self.epilogue.multipliers()),
        )

    def _padded(self, values: Array) -> Array:
        """Per-channel values with zeros up to whole vectors."""
        missing = -values.shape[-1] % self.lanes
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])

    # -- loops

    def text(self) -> str:
        b = self.b
        x, y, *self.operands = b.kernel(5)
        full, rest = divmod(self.y.channels, self.lanes)
        with b.loop("%begin", "%end") as item:
            image, row = b.divide(item, self.y.height)
            x_step = self.conv.strides[0] * self.x.row_pitch
            x_row = b.at(x, b.add(b.mul(row, x_step), b.mul(image, self.x.batch_pitch)))
            y_row = b.at(y, b.add(b.mul(row, self.y.row_pitch), b.mul(image, self.y.batch_pitch)))
            if full:
                with b.loop(0, full) as block:
                    self.channel_block(block, self.lanes, x_row, y_row)
            if rest:
                self.channel_block(str(full), rest, x_row, y_row)
        return b.finish()

    def channel_block(self, block: Value, valid: int, x: Value, y: Value) -> None:
        """All columns of a row for one vector of channels."""
        assert self.products is not None
        b, (w, bias, scale) = self.b, self.operands
        per_channel = b.mul(block, self.lanes * SUM_NBYTES)
        at = _Vector(
            valid,
            b.at(w, b.mul(block, self.taps * self.products.weight_nbytes)),
            b.at(bias, per_channel),
            b.at(scale, per_channel),
        )
        x = b.at(x, b.mul(block, self.lanes))
        y = b.at(y, b.mul(block, self.lanes * self.y.itemsize))
        x_pitch = self.conv.strides[1] * self.x.column_pitch
        tiles, rest = divmod(self.y.width, COLUMNS)
        if tiles:
            with b.loop(0, tiles) as tile:
                x_tile = b.at(x, b.mul(tile, COLUMNS * x_pitch))
                y_tile = b.at(y, b.mul(tile, COLUMNS * self.y.column_pitch))
                self.columns(COLUMNS, at, b.opaque(x_tile), y_tile)
        if rest:
            done = tiles * COLUMNS
            self.columns(rest, at, b.at(x, done * x_pitch), b.at(y, done * self.y.column_pitch))

    def columns(self, count: int, at: _Vector, x: Value, y: Value) -> None:
        """``count`` neighbouring output pixels."""
        b, results = self.b, self.epilogue.results
        sums = self.taps_of(count, at.w, x, [b.load(results.ints, at.bias, align=4)] * count)
        scale = b.load(results.floats, at.scale, align=4)
        for column in range(count):
            data = results.packed(b, [self.epilogue.values(b, sums[column], scale, None)])
            place = b.at(y, column * self.y.column_pitch)
            store_partial(b, self.target, results.element, self.lanes, at.valid, data, place)

    def taps_of(self, count: int, w: Value, x: Value, sums: list[Value]) -> list[Value]:
        """``sums`` and the products of all taps: a loop over the rows of large windows."""
        b, rows = self.b, self.conv.w.type.shape[0]
        if rows <= UNROLLED_ROWS:
            for row in range(rows):
                sums = self.row_of_taps(count, row, w, x, sums)
            return sums
        assert self.products is not None
        loop = b.begin_times(rows, [(self.epilogue.results.ints, value) for value in sums])
        w_row = b.at(w, b.mul(loop.index, self.conv.w.type.shape[1] * self.products.weight_nbytes))
        x_row = b.at(x, b.mul(loop.index, self.conv.dilations[0] * self.x.row_pitch))
        found = self.row_of_taps(count, 0, b.opaque(w_row), b.opaque(x_row), list(loop.carried))
        return b.end_times(loop, rows, found)

    def row_of_taps(
        self, count: int, row: int, w: Value, x: Value, sums: list[Value]
    ) -> list[Value]:
        """``sums`` and the products of a row of the window, for neighbouring output pixels."""
        assert self.products is not None
        b, products, sums = self.b, self.products, list(sums)
        width = self.conv.w.type.shape[1]
        for j in range(width):
            weights = products.weights(b, b.at(w, (row * width + j) * products.weight_nbytes))
            for column in range(count):
                source = column * self.conv.strides[1] + j * self.conv.dilations[1]
                pixel = self.x.pixel(b, x, row * self.conv.dilations[0], source)
                operand = products.operand(b, pixel)
                sums[column] = products.accumulate(b, sums[column], operand, weights)
        return sums


@dataclass(frozen=True)
class _Vector:
    """A vector of channels: how many are stored, and where its constants begin."""

    valid: int
    w: Value
    bias: Value
    scale: Value
