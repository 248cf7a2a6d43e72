"""Base of products with weights in groups: packed constants, panels of channels, tiles.

For each panel of channels and each group: the scales of the panel, then its codes.  Codes lie in
vectors of a word of four bytes for each channel; a byte holds the codes of ``8 / bits`` words that
follow each other along K, the first one lowest.  Channels that a panel lacks have scales of 0.

A work item is a panel, whose weights stay in the cache while all rows pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.kernels.vector.access import store_partial
from quantglow.codegen.llvm.values import (
    FLOAT,
    I1,
    I8,
    I32,
    Operand,
    Type,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops import GroupedMatMul
from quantglow.ir.program.program import Compute, View
from quantglow.ir.symbolic.size import Dim, Size, is_free, likely
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

WORD_NBYTES = 4
PANELS_AT_ONCE = 64
"""Panels whose codes are packed at the same time."""

MOST_VECTORS = 2
"""Vectors of channels of a panel."""


@dataclass(frozen=True)
class PanelLayout:
    """Panels of ``vectors`` vectors of ``lanes`` channels; ``group`` codes of ``bits``."""

    channels: int
    groups: int
    group: int
    bits: int
    lanes: int
    vectors: int

    @property
    def width(self) -> int:
        """Channels of a panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        return -(-self.channels // self.width)

    @property
    def layers(self) -> int:
        """Codes of a byte."""
        return 8 // self.bits

    @property
    def step(self) -> int:
        """Codes of a channel in one packed word."""
        return WORD_NBYTES * self.layers

    @property
    def steps(self) -> int:
        """Packed words of a group."""
        return self.group // self.step

    @property
    def scales_nbytes(self) -> int:
        """Bytes of the scales of a group of a panel."""
        return 4 * self.width

    @property
    def step_nbytes(self) -> int:
        """Bytes of a packed word of each channel of a panel."""
        return WORD_NBYTES * self.width

    @property
    def group_nbytes(self) -> int:
        return self.scales_nbytes + self.steps * self.step_nbytes

    @property
    def panel_nbytes(self) -> int:
        return self.groups * self.group_nbytes

    def padded(self, values: Array) -> Array:
        """[panels * width, ...]: values of channels [N, ...], then zeros."""
        missing = self.panels * self.width - len(values)
        return np.pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)])

    def by_panels(self, values: Array) -> Array:
        """[panels, G, width] of values [N, G]."""
        panels = self.padded(values).reshape(self.panels, self.width, self.groups)
        return np.ascontiguousarray(panels.transpose(0, 2, 1))

    def packed(self, w: Array, scales: Array) -> Array:
        """uint32 [panels, G, words of a group] of weights and scales of a ``GroupedMatMul``."""
        shape = (self.panels, self.groups, 1 + self.steps, self.width)
        panels = np.zeros(shape, np.uint32)
        panels[:, :, 0] = self.by_panels(scales).view(np.uint32)
        for first in range(0, self.panels, PANELS_AT_ONCE):
            rows = slice(first * self.width, (first + PANELS_AT_ONCE) * self.width)
            part = self._words(w[rows])
            panels[first : first + len(part), :, 1:] = part
        return panels.reshape(self.panels, self.groups, -1)

    def _words(self, w: Array) -> Array:
        """uint32 [panels, G, steps, width] of some whole panels, the last of which may end."""
        panels = -(-len(w) // self.width)
        words = _interleave_codes(np.ascontiguousarray(w).view("<u4"), self.bits)
        words = np.pad(words, [(0, panels * self.width - len(w)), (0, 0), (0, 0)])
        return words.reshape(panels, self.width, self.groups, self.steps).transpose(0, 2, 3, 1)


def _interleave_codes(words: Array, bits: int) -> Array:
    """uint32 of ``32 / bits`` codes, the first one lowest, with codes 0 to 3 in the lowest bits of
    the four bytes, codes 4 to 7 above them, and so on."""
    if bits == 8:
        return words
    four, two, one = (2 ** (n * bits) - 1 for n in (4, 2, 1))
    result = np.zeros_like(words)
    for layer in range(8 // bits):
        part = (words >> np.uint32(4 * bits * layer)) & np.uint32(four)
        part = (part | part << np.uint32(16 - 2 * bits)) & np.uint32(two * 0x00010001)
        part = (part | part << np.uint32(8 - bits)) & np.uint32(one * 0x01010101)
        result |= part << np.uint32(bits * layer)
    return result


@dataclass
class GroupedProduct:
    """The kernel of one ``GroupedMatMul``.  Every row is computed alike, in a tile of any size."""

    target: Target
    step: Compute
    b: Builder = field(init=False, repr=False)

    @property
    def most_rows(self) -> int:
        """Rows of a tile whose sums stay in registers."""
        return 8 if self.target.registers >= 32 else 3

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        assert isinstance(self.step.op, GroupedMatMul)
        self.op = self.step.op
        self.views = dict(zip(self.op.operand_labels, self.step.inputs, strict=True))
        self.x, self.out = self.views["x"], self.step.output
        self.rows, channels = self.op.type.shape
        self.channels = int(channels)

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @property
    def floats(self) -> Type:
        """The LLVM type of a vector of float32."""
        return vector(self.lanes, FLOAT)

    @property
    def ints(self) -> Type:
        """The LLVM type of a vector of int32."""
        return vector(self.lanes, I32)

    @cached_property
    def layout(self) -> PanelLayout:
        op, vectors = self.op, min(MOST_VECTORS, -(-self.channels // self.lanes))
        groups = op.w.type.fixed_shape[1]
        return PanelLayout(self.channels, groups, op.group, op.bits, self.lanes, vectors)

    @property
    def vectors(self) -> range:
        """The vectors of a panel."""
        return range(self.layout.vectors)

    def value(self, label: str) -> Array:
        """A constant operand."""
        weights = self.views[label].buffer.value
        assert weights is not None, "weights are constants"
        return weights.reshape(self.views[label].type.fixed_shape)

    def call(self) -> KernelCall:
        pointers: list[View | Array] = [
            self.out,
            self.x,
            self.layout.packed(self.value("w"), self.value("scales")),
        ]
        if self.op.zero_points is not None:
            pointers.append(self.layout.by_panels(self.value("zero_points")))
        if self.op.b is not None:
            pointers.append(self.layout.padded(self.value("b")))
        work = float(likely(self.rows) * self.channels * self.op.depth) / 8
        return KernelCall(
            self.text, tuple(pointers), self.layout.panels, work, "weight-groups", facts=""
        )

    # -- addresses

    @property
    def x_stride(self) -> Dim:
        """Bytes from one row of x to the next."""
        return self.x.strides[0] * self.x.type.dtype.nbytes

    @property
    def out_stride(self) -> Dim:
        return self.out.strides[0] * self.out.type.dtype.nbytes

    # -- the kernel

    @property
    def tiles(self) -> list[int]:
        """Numbers of rows of tiles, the greatest first.  A free number of rows may be any: its last
        tile is moved back, so that it ends with the last row."""
        most = self.most_rows
        if isinstance(self.rows, Size):
            return [size for size in (most, 3, 1) if size == 1 or size <= most]
        whole = -(-self.rows // max(1, -(-self.rows // most)))
        remainder = self.rows % whole
        return [whole, remainder] if remainder else [whole]

    def text(self) -> str:
        b, op, layout = self.b, self.op, self.layout
        out, x, weights, *more = b.kernel(3 + (op.zero_points is not None) + (op.b is not None))
        self.prepare(max(self.tiles))
        with b.loop("%begin", "%end") as panel:
            self.panel = panel
            self.weights = b.at(weights, b.mul(panel, layout.panel_nbytes))
            if op.zero_points is not None:
                self.points = b.at(more[0], b.mul(panel, layout.groups * layout.width))
            if op.b is not None:
                self.bias = b.at(more[-1], b.mul(panel, 4 * layout.width))
            at_out = b.at(out, b.mul(panel, 4 * layout.width))
            if is_free(self.rows):
                self.free_rows(self.tiles, x, at_out)
            else:
                self.known_rows(x, at_out)
        return b.finish()

    def prepare(self, rows: int) -> None:
        """Set aside memory for a tile, at the entry."""

    def known_rows(self, x: Value, out: Value) -> None:
        b, (size, *last_tiles) = self.b, self.tiles
        whole = self.rows - sum(last_tiles)
        with b.loop(0, whole, size) as row:
            self.tile_at(row, size, x, out)
        for count in last_tiles:
            self.tile_at(str(whole), count, x, out)

    def free_rows(self, tiles: Sequence[int], x: Value, out: Value) -> None:
        """Rows by the first of the tiles if there are as many, else by the others."""
        b, (size, *others) = self.b, tiles
        rows = str(self.rows)
        fits = b.compare("sge", b.index, rows, str(size))
        with b.when(fits):
            last = b.op("sub", b.index, rows, str(size))
            with b.loop("0", rows, size) as row:
                first = b.select(b.index, b.compare("slt", b.index, row, last), row, last)
                self.tile_at(first, size, x, out)
        if others:
            with b.when(b.op("xor", I1, fits, "true")):
                self.free_rows(others, x, out)

    def tile_at(self, row: Operand, count: int, x: Value, out: Value) -> None:
        b = self.b
        at_x, at_out = b.at(x, b.mul(row, self.x_stride)), b.at(out, b.mul(row, self.out_stride))
        self.tile(count, at_x, at_out)

    def tile(self, rows: int, x: Value, out: Value) -> None:
        """All groups of some rows."""
        raise NotImplementedError

    # -- parts of tiles

    def scales(self, group: Value) -> list[Value]:
        """The scales of the panel, from the address of a group."""
        b, nbytes = self.b, self.target.vector_nbytes
        return [b.load(self.floats, b.at(group, v * nbytes), align=4) for v in self.vectors]

    def zero_points(self, group: Operand) -> list[Value]:
        """int32 zero points of the panel, from the number of a group."""
        b, layout = self.b, self.layout
        at, codes = b.at(self.points, b.mul(group, layout.width)), vector(self.lanes, I8)
        points = [b.load(codes, b.at(at, v * self.lanes)) for v in self.vectors]
        return [b.cast("zext", codes, value, self.ints) for value in points]

    def biased(self, position: int, value: Value) -> Value:
        """Totals of a vector of the panel plus their bias."""
        b = self.b
        if self.op.b is None:
            return value
        bias = b.load(self.floats, b.at(self.bias, position * self.target.vector_nbytes), align=4)
        return b.op("fadd", self.floats, value, bias)

    def store(self, rows: Sequence[Sequence[Value]], out: Value) -> None:
        """Results of some rows, by vectors of the panel; the last panel may have fewer channels."""
        layout = self.layout
        last_width = layout.channels - (layout.panels - 1) * layout.width
        if last_width == layout.width:
            self._store(rows, out, last_width)
            return
        last = self.b.compare("eq", self.b.index, self.panel, str(layout.panels - 1))
        with self.b.when(last):
            self._store(rows, out, last_width)
        with self.b.when(self.b.op("xor", I1, last, "true")):
            self._store(rows, out, layout.width)

    def _store(self, rows: Sequence[Sequence[Value]], out: Value, channels: int) -> None:
        for row, values in enumerate(rows):
            for position, value in enumerate(values):
                first = position * self.lanes
                count = min(self.lanes, channels - first)
                if count > 0:
                    at = self.b.at(out, row * self.out_stride + 4 * first)
                    store_partial(self.b, self.target, FLOAT, self.lanes, count, value, at)


def zeros(kind: Type) -> Value:
    """A vector of zeros of float32 or int32."""
    return splat(kind, f32(0.0) if kind.is_float else "0")


def greatest_divisor(value: int, most: int) -> int:
    """The greatest divisor that is not above ``most``."""
    return next(d for d in range(min(value, most), 0, -1) if value % d == 0)
