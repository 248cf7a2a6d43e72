"""Geometry of a convolution on views, the dot product that its weights allow, packed constants.

All offsets count bytes.  A convolution reads each input pixel's taps as *runs* of contiguous
bytes; runs that touch (neighboring columns of all channels) are joined.

Weights: for each group and panel of output channels, for each run, for each step, the vectors of
the panel.  The last panel of a group may be narrower.  Missing channels and the bytes that a step
reads beyond its run have weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.values import Value
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import View
from quantglow.ir.symbolic.size import Dim, decide, is_free
from quantglow.ir.types import DType
from quantglow.support.arrays import Array


@dataclass(frozen=True)
class ImageLayout:
    """An NHWC view as bytes: extents, and distances between batches, rows, columns."""

    count: Dim
    height: Dim
    width: Dim
    channels: int
    batch_pitch: Dim
    row_pitch: Dim
    column_pitch: Dim
    itemsize: int

    @staticmethod
    def of(view: View) -> ImageLayout:
        size = view.type.dtype.nbytes
        n, h, w, c = view.shape
        batch, row, column = (s * size for s in view.strides[:3])
        return ImageLayout(n, h, w, int(c), batch, row, column, size)

    @property
    def pitches(self) -> tuple[Dim, Dim, Dim]:
        """Distances between batches, rows and columns."""
        return self.batch_pitch, self.row_pitch, self.column_pitch

    @property
    def dense(self) -> bool:
        """Pixels at equal distances across rows and batches."""
        row, plane = self.width * self.column_pitch, self.height * self.width * self.column_pitch
        rows = decide(self.height == 1) or decide(self.row_pitch == row)
        return rows and (decide(self.count == 1) or decide(self.batch_pitch == plane))

    def pixel(self, b: Builder, origin: Value, row: int, column: Dim) -> Value:
        """The address of a pixel from that of another; columns of rows of a free pitch share the
        address of their row."""
        down, across = row * self.row_pitch, column * self.column_pitch
        if is_free(down):
            return b.at(b.at(origin, down), across)
        return b.at(origin, down + across)

    def flat(self) -> ImageLayout:
        """A dense image as one row of pixels."""
        pixels = self.count * self.height * self.width
        return ImageLayout(1, 1, pixels, self.channels, 0, 0, self._pixel_pitch(), self.itemsize)

    def _pixel_pitch(self) -> Dim:
        if decide(self.width > 1):
            return self.column_pitch
        return self.row_pitch if decide(self.height > 1) else self.batch_pitch


@dataclass(frozen=True)
class ContractionRuns:
    """The taps of one output pixel: ``outer`` x ``inner`` runs of ``nbytes`` bytes."""

    outer: int
    outer_pitch: Dim
    inner: int
    inner_pitch: Dim
    nbytes: int

    @property
    def steps(self) -> int:
        """Steps of one run; the last may read beyond the run (its weights are zero)."""
        return -(-self.nbytes // STEP_NBYTES)

    @property
    def total_steps(self) -> int:
        return self.outer * self.inner * self.steps


def _contraction_runs(conv: Conv, image: ImageLayout) -> ContractionRuns:
    """The taps of ``conv`` on ``image``."""
    kh, kw, c_group, _ = conv.w.type.fixed_shape
    column = conv.dilations[1] * image.column_pitch
    row = conv.dilations[0] * image.row_pitch
    nbytes = c_group * image.itemsize
    if kw == 1 or decide(column == nbytes):
        joined = kw * nbytes
        if kh == 1 or decide(row == joined):
            return ContractionRuns(1, 0, 1, 0, kh * joined)
        return ContractionRuns(1, 0, kh, row, joined)
    if kh == 1:
        return ContractionRuns(1, 0, kw, column, nbytes)
    return ContractionRuns(kh, row, kw, column, nbytes)


@dataclass(frozen=True)
class Geometry:
    """Input and output images of a convolution, flattened to one row where that is exact."""

    x: ImageLayout
    y: ImageLayout
    residual: ImageLayout | None
    runs: ContractionRuns
    strides: tuple[int, int]

    @staticmethod
    def of(conv: Conv, x: View, y: View, residual: View | None) -> Geometry:
        source, result = ImageLayout.of(x), ImageLayout.of(y)
        extra = None if residual is None else ImageLayout.of(residual)
        runs = _contraction_runs(conv, source)
        pointwise = conv.w.type.fixed_shape[:2] == (1, 1) and conv.strides == (1, 1)
        dense = source.dense and result.dense and (extra is None or extra.dense)
        if pointwise and dense:
            flat_extra = None if extra is None else extra.flat()
            return Geometry(source.flat(), result.flat(), flat_extra, runs, (1, 1))
        return Geometry(source, result, extra, runs, conv.strides)

    def input_offset(self, row: int, column: int) -> Dim:
        """Bytes from a tile's first input pixel to that of output pixel (row, column)."""
        return (
            row * self.strides[0] * self.x.row_pitch
            + column * self.strides[1] * self.x.column_pitch
        )


def choose_dot(conv: Conv, dtype: DType, target: Target) -> DotProduct:
    """The dot product of activations, stored as ``dtype``, with the weights of ``conv``.

    quantglow's own quantization makes no weight of -128.
    """
    symmetric = target.isa.symmetric_product(dtype, target.core)
    if symmetric is None:
        return target.dot_product(dtype)
    assert isinstance(conv.w, Constant)
    is_symmetric = int(conv.w.value.min(initial=0)) > -128
    return symmetric if is_symmetric else target.dot_product(dtype)


@dataclass(frozen=True)
class Panels:
    """Panels of the channels of one group: ``full`` panels of ``vectors``, then a tail."""

    channels: int
    lanes: int
    vectors: int

    @property
    def full(self) -> int:
        return self.channels // (self.vectors * self.lanes)

    @property
    def tail_channels(self) -> int:
        return self.channels - self.full * self.vectors * self.lanes

    @property
    def tail_vectors(self) -> int:
        return -(-self.tail_channels // self.lanes)

    @property
    def count(self) -> int:
        return self.full + (1 if self.tail_channels else 0)

    def widths(self) -> list[int]:
        """Vectors of each panel of a group."""
        return [self.vectors] * self.full + [self.tail_vectors] * (self.count - self.full)

    @property
    def padded_channels(self) -> int:
        return sum(self.widths()) * self.lanes


def panel_channels(
    panels: Panels, group_count: int, order_of: Callable[[int], Array]
) -> list[Array]:
    """For each panel of each group: int [vectors, lanes], the channel of each lane, -1 for none.

    ``order_of``: the ``channel_order`` of a number of vectors.
    """
    channel_lists = []
    for group in range(group_count):
        first = 0
        for vectors in panels.widths():
            order = order_of(vectors) + first
            channels = order + group * panels.channels
            if first + vectors * panels.lanes > panels.channels:
                channels[order >= panels.channels] = -1
            channel_lists.append(channels)
            first += vectors * panels.lanes
    return channel_lists


def pack_vectors(values: Array, channels: list[Array]) -> Array:
    """Per-channel values (bias, multipliers) in panel order; zeros where there is no channel."""
    extended = np.append(values, values.dtype.type(0))
    return np.concatenate([extended[c].reshape(-1) for c in channels])


def pack_weights(w: Array, runs: ContractionRuns, channels: list[Array], dot: DotProduct) -> Array:
    """HWIO weights as the kernel reads them, one contiguous piece for each panel."""
    panels = panel_steps(w.astype(dot.weights_dtype, copy=False), runs, channels)
    return np.concatenate([dot.pack(steps).reshape(-1) for steps in panels])


def panel_steps(w: Array, runs: ContractionRuns, channels: list[Array]) -> Iterator[Array]:
    """For each panel: [steps of all runs, vectors, lanes, elements of a step]."""
    kh, kw, c_group, o = w.shape
    per_step = STEP_NBYTES // w.itemsize
    run_count = runs.outer * runs.inner
    rows = w.reshape(run_count, (kh * kw * c_group) // run_count, o)
    padding = runs.steps * per_step - rows.shape[1]
    rows = np.pad(rows, ((0, 0), (0, padding), (0, 1)))
    # Four bytes of a step are one word; index -1 picks the zero channel that was appended.
    words = _words(rows.reshape(run_count * runs.steps, per_step, o + 1))
    for c in channels:
        yield _unpack(words.take(c, axis=1), w.dtype)


def _words(steps: Array) -> Array:
    """uint32 [steps, channels] of the elements in [steps, elements of a step, channels]."""
    itemsize = steps.dtype.itemsize
    elements = steps.view(f"u{itemsize}")
    words = elements[:, -1].astype(np.uint32)
    for index in reversed(range(STEP_NBYTES // itemsize - 1)):
        words <<= 8 * itemsize
        words |= elements[:, index]
    return words


def _unpack(words: Array, dtype: np.dtype[Any]) -> Array:
    """[...] words as [..., elements of a step], the lowest byte first."""
    return words[..., None].astype("<u4", copy=False).view(dtype)
