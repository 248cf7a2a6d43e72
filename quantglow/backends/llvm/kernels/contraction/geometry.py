"""The geometry of a convolution on views: where its operands lie, as literals.

All offsets count bytes.  A convolution reads each input pixel's taps as *runs* of contiguous
bytes; runs that touch (neighbouring columns of all channels) are joined.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.instr.program import View
from quantglow.ops import Conv
from quantglow.symbolic.size import is_free


@dataclass(frozen=True)
class Image:
    """An NHWC view as bytes: extents, and distances between batches, rows, columns."""

    count: int
    height: int
    width: int
    channels: int
    batch_pitch: int
    row_pitch: int
    column_pitch: int
    itemsize: int

    @staticmethod
    def of(view: View) -> Image:
        size = view.type.dtype.nbytes
        n, h, w, c = view.shape
        batch, row, column = (s * size for s in view.strides[:3])
        return Image(n, h, w, c, batch, row, column, size)

    @property
    def pitches(self) -> tuple[int, int, int]:
        """Distances between batches, rows and columns."""
        return self.batch_pitch, self.row_pitch, self.column_pitch

    @property
    def dense(self) -> bool:
        """Pixels at equal distances across rows and batches."""
        rows = self.height == 1 or self.row_pitch == self.width * self.column_pitch
        plane = self.height * self.width * self.column_pitch
        return rows and (self.count == 1 or self.batch_pitch == plane)

    def pixel(self, b: Builder, origin: Value, row: int, column: int) -> Value:
        """The address of a pixel from that of another; columns of rows of a free pitch share the
        address of their row."""
        down, across = row * self.row_pitch, column * self.column_pitch
        if is_free(down):
            return b.at(b.at(origin, down), across)
        return b.at(origin, down + across)

    def flat(self) -> Image:
        """A dense image as one row of pixels."""
        pixels = self.count * self.height * self.width
        return Image(1, 1, pixels, self.channels, 0, 0, self._pixel_pitch(), self.itemsize)

    def _pixel_pitch(self) -> int:
        if self.width > 1:
            return self.column_pitch
        return self.row_pitch if self.height > 1 else self.batch_pitch


@dataclass(frozen=True)
class Runs:
    """The taps of one output pixel: ``outer`` x ``inner`` runs of ``nbytes`` bytes."""

    outer: int
    outer_pitch: int
    inner: int
    inner_pitch: int
    nbytes: int

    @property
    def steps(self) -> int:
        """Steps of one run; the last may read beyond the run (its weights are zero)."""
        return -(-self.nbytes // STEP_NBYTES)

    @property
    def total_steps(self) -> int:
        return self.outer * self.inner * self.steps


def runs_of(conv: Conv, image: Image) -> Runs:
    """The taps of ``conv`` on ``image``."""
    kh, kw, c_group, _ = conv.w.type.shape
    column = conv.dilations[1] * image.column_pitch
    row = conv.dilations[0] * image.row_pitch
    nbytes = c_group * image.itemsize
    if kw == 1 or column == nbytes:
        joined = kw * nbytes
        if kh == 1 or row == joined:
            return Runs(1, 0, 1, 0, kh * joined)
        return Runs(1, 0, kh, row, joined)
    if kh == 1:
        return Runs(1, 0, kw, column, nbytes)
    return Runs(kh, row, kw, column, nbytes)


@dataclass(frozen=True)
class Geometry:
    """Input and output images of a convolution, flattened to one row where that is exact."""

    x: Image
    y: Image
    residual: Image | None
    runs: Runs
    strides: tuple[int, int]

    @staticmethod
    def of(conv: Conv, x: View, y: View, residual: View | None) -> Geometry:
        source, result = Image.of(x), Image.of(y)
        extra = None if residual is None else Image.of(residual)
        runs = runs_of(conv, source)
        pointwise = conv.w.type.shape[:2] == (1, 1) and conv.strides == (1, 1)
        dense = source.dense and result.dense and (extra is None or extra.dense)
        if pointwise and dense:
            flat_extra = None if extra is None else extra.flat()
            return Geometry(source.flat(), result.flat(), flat_extra, runs, (1, 1))
        return Geometry(source, result, extra, runs, conv.strides)

    def input_offset(self, row: int, column: int) -> int:
        """Bytes from a tile's first input pixel to that of output pixel (row, column)."""
        return (
            row * self.strides[0] * self.x.row_pitch
            + column * self.strides[1] * self.x.column_pitch
        )
