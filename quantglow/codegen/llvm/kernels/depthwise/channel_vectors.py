"""Loops of depthwise convolutions that compute a vector of channels at a time.

They follow the order of memory: rows are items, for each vector of channels all columns of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.codegen.llvm.kernels.contraction.geometry import ImageLayout
from quantglow.codegen.llvm.kernels.vector.access import store_partial
from quantglow.codegen.llvm.values import ABSENT, Operand, Value
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import Size, likely
from quantglow.support.arrays import Array

FACTOR_NBYTES = 4
"""Bytes of the bias of a channel, and of its multiplier."""


@dataclass(frozen=True)
class ChannelPointers:
    """Pointers to what pixels read and write; an empty value where there is no residual, or no
    multiplier."""

    x: Value
    y: Value
    residual: Value
    w: Value
    bias: Value
    scale: Value


@dataclass
class ChannelVectors:
    """Generator of the loops of one depthwise kernel."""

    step: Compute
    conv: Conv
    target: Target
    b: Builder = field(init=False, repr=False)
    label: ClassVar[str]

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        self.x, self.y = ImageLayout.of(self.step.inputs[0]), ImageLayout.of(self.step.output)
        self.residual = (
            ImageLayout.of(self.step.inputs[3]) if self.conv.residual is not None else None
        )
        self.epilogue = Epilogue(self.conv, self.target)

    @property
    def lanes(self) -> int:
        """Channels of a vector of sums."""
        return self.target.f32_lanes

    @property
    def taps(self) -> int:
        kh, kw = self.conv.w.type.fixed_shape[:2]
        return kh * kw

    @property
    def most_columns(self) -> int:
        """Output columns that share the weights of a tap."""
        raise NotImplementedError

    @property
    def tap_nbytes(self) -> int:
        """Bytes of the packed weights of a tap, for a vector of channels."""
        raise NotImplementedError

    def constants(self) -> tuple[Array, ...]:
        """Weights [vectors of channels, taps, packed lanes], bias and, of integers, multipliers."""
        raise NotImplementedError

    def sums(self, count: int, valid: int, at: ChannelPointers) -> list[Value]:
        """The bias and the products of all taps, of ``count`` neighboring output pixels; ``valid``
        channels are real."""
        raise NotImplementedError

    # -- the call

    @property
    def facts(self) -> str:
        """``KernelCall.facts``"""
        return f"{type(self).__name__} {self.epilogue.facts}"

    def call(self) -> KernelCall:
        self.epilogue.check()
        outputs = self.y.count * self.y.height * self.y.width * self.y.channels
        residual = self.epilogue.residual.operands(self.step)
        return KernelCall(
            code=self.text,
            pointers=(self.step.inputs[0], self.step.output, *self.constants(), *residual),
            items=self.y.count * self.y.height,
            work=float(likely(outputs) * self.taps),
            label=self.label,
            facts=self.facts,
        )

    # -- the text

    def text(self) -> str:
        b, at = self.b, self.pointers()
        full, remainder = divmod(self.y.channels, self.lanes)
        with b.loop("%begin", "%end") as item:
            row = self.row(at, *b.divide(item, self.y.height))
            if full:
                with b.loop(0, full) as block:
                    self.all_columns(self.lanes, self.channel_block(row, block))
            if remainder:
                self.all_columns(remainder, self.channel_block(row, str(full)))
        return b.finish()

    def pointers(self) -> ChannelPointers:
        """The operands."""
        is_scaled, added = self.epilogue.scaled, self.epilogue.residual
        pointers = self.b.kernel(4 + is_scaled + added.count)
        x, y, w, bias = pointers[:4]
        self.residual_params, residual = added.pointers(pointers)
        return ChannelPointers(x, y, residual, w, bias, pointers[4] if is_scaled else ABSENT)

    # -- places

    def row(self, at: ChannelPointers, image: Value, row: Value) -> ChannelPointers:
        """The place of a row of an image."""
        b = self.b

        def moved(pointer: Value, of: ImageLayout, stride: int) -> Value:
            down = b.mul(row, stride * of.row_pitch)
            return b.at(pointer, b.add(down, b.mul(image, of.batch_pitch)))

        pointers = replace(
            at, x=moved(at.x, self.x, self.conv.strides[0]), y=moved(at.y, self.y, 1)
        )
        if self.residual is None:
            return pointers
        return replace(pointers, residual=moved(at.residual, self.residual, 1))

    def channel_block(self, at: ChannelPointers, block: Operand) -> ChannelPointers:
        """The place of a vector of channels."""
        b, lanes = self.b, self.lanes

        def moved(pointer: Value, nbytes: int) -> Value:
            return b.at(pointer, b.mul(block, nbytes)) if pointer else pointer

        return ChannelPointers(
            moved(at.x, lanes * self.x.itemsize),
            moved(at.y, lanes * self.y.itemsize),
            moved(at.residual, lanes * self.residual.itemsize if self.residual else 0),
            moved(at.w, self.taps * self.tap_nbytes),
            moved(at.bias, lanes * FACTOR_NBYTES),
            moved(at.scale, lanes * FACTOR_NBYTES),
        )

    def columns_on(self, at: ChannelPointers, turns: Operand, columns: int = 1) -> ChannelPointers:
        """The place so many times ``columns`` pixels of the result farther."""
        b = self.b
        x = b.at(at.x, b.mul(turns, columns * self.conv.strides[1] * self.x.column_pitch))
        pointers = replace(at, x=x, y=b.at(at.y, b.mul(turns, columns * self.y.column_pitch)))
        if self.residual is None:
            return pointers
        moved = b.at(at.residual, b.mul(turns, columns * self.residual.column_pitch))
        return replace(pointers, residual=moved)

    # -- columns of a row

    def all_columns(self, valid: int, at: ChannelPointers) -> None:
        """Tiles of columns, then the rest of the row."""
        width, most = self.y.width, self.most_columns
        if isinstance(width, Size):
            self.free_columns(valid, at)
            return
        tiles, remainder = divmod(width, most)
        if tiles:
            with self.b.loop(0, tiles) as tile:
                self.columns(most, valid, self.columns_on(at, tile, most))
        if remainder:
            self.columns(remainder, valid, self.columns_on(at, str(tiles), most))

    def free_columns(self, valid: int, at: ChannelPointers) -> None:
        """All columns of a row of a free width: tiles, the last of which ends where the row does;
        one by one if there are fewer than a tile has."""
        b, width, most = self.b, str(self.y.width), self.most_columns
        is_wide = b.compare("sge", b.index, width, str(most))
        tiled = b.select(b.index, is_wide, width, "0")
        for begin, end, count in (("0", tiled, most), (tiled, width, 1)):
            with b.loop(begin, end, count) as column:
                last = str(self.y.width - count)
                first = b.call(f"llvm.smin.{b.index}", b.index, (b.index, column), (b.index, last))
                self.columns(count, valid, self.columns_on(at, first))

    def columns(self, count: int, valid: int, at: ChannelPointers) -> None:
        """``count`` neighboring output pixels."""
        b, results = self.b, self.epilogue.results
        sums = self.sums(count, valid, at)
        scale = b.load(results.floats, at.scale, align=4) if at.scale else ""
        for column, total in enumerate(sums):
            residual = self.residual_at(at, column, valid)
            data = results.packed(b, [self.epilogue.values(b, total, scale, residual)])
            place = b.at(at.y, column * self.y.column_pitch)
            store_partial(b, self.target, results.element, self.lanes, valid, data, place)

    def residual_at(self, at: ChannelPointers, column: int, valid: int) -> Value | None:
        """The residual of an output pixel, in steps of the float32 sum or reals."""
        if self.residual is None:
            return None
        place = self.b.at(at.residual, column * self.residual.column_pitch)
        return self.epilogue.residual_at(self.b, place, 1, valid, self.residual_params)[0]
