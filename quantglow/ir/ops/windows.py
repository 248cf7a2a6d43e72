"""Windows over images, and convolutions as matrix products of windows.

``Images`` are images as products read them: less a zero point, in another type, with zeros around.
They are made line by line, so that what is only read once need not go through memory.

``conv2d`` multiplies windows part by part.  A part's columns, sums and results stay in the
second-level cache, and parts are computed side by side.  They follow from shapes alone, so that a
result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from quantglow.ir.graph.node import Node
from quantglow.ir.ops.native import Ends, NativeOps, native_ops
from quantglow.ir.symbolic.size import Dim, decide, fixed
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

Pair = tuple[int, int]
Pads = tuple[Dim, Dim, Dim, Dim]
"""Top, left, bottom, right; free where ONNX derives them from the size of an image."""

FixedPads = tuple[int, int, int, int]

LARGEST_WINDOW = 2**16
"""Elements along an axis; files ask for more only when they are damaged."""

Part = tuple[slice, slice]
"""Images and rows of a result [N, OH, OW, O]."""

PART_NBYTES, PART_PIXELS = 2**20, 256
"""Minimum size of a part, in bytes and pixels: parts should stay in the second-level cache, but a
product of few rows reads all weights for each of them."""

NATIVE_PART_NBYTES = 2**22
"""The same for native code, which keeps no columns: smaller parts make two threads wait for each
other's Python."""

MANY_CHANNELS = 32
"""Minimum number of channels from which einsum computes a depthwise convolution faster: they are
its innermost loop."""


def check_windows(
    node: Node, kernel: Pair, strides: Pair, dilations: Pair, pads: Pads = (0, 0, 0, 0)
) -> None:
    """Raise ``TypeRuleError`` unless every tap of every window lies in the padded input."""
    if min(*kernel, *strides, *dilations) < 1:
        raise node.refuse(f"kernel {kernel}, strides {strides}, dilations {dilations} must be > 0")
    if any(decide(pad < 0) for pad in pads):
        raise node.refuse(f"pads {pads} must not be negative: what cuts is a Slice")
    widest = max(*kernel, *strides, *dilations)
    if widest > LARGEST_WINDOW or any(decide(pad > LARGEST_WINDOW) for pad in pads):
        raise node.refuse(f"windows, steps and pads may be {LARGEST_WINDOW} wide at most")


def has_padding(pads: Pads) -> bool:
    """Whether a pad is not 0, see ``decide``."""
    return any(decide(pad != 0) for pad in pads)


def fixed_pads(pads: Pads) -> FixedPads:
    """The plain pads of a computation on arrays."""
    top, left, bottom, right = fixed(pads)
    return top, left, bottom, right


def window_count(
    size: Dim, kernel: int, stride: int, dilation: int, before: Dim, after: Dim
) -> Dim:
    """Windows along one axis: ``floor((size + pads - dilated kernel) / stride) + 1``."""
    return (size + before + after - (dilation * (kernel - 1) + 1)) // stride + 1


@dataclass(frozen=True)
class Images:
    """``x`` [N, H, W, C] less ``zero_point``, in ``dtype``, with zeros at the pads."""

    x: Array
    dtype: npt.DTypeLike
    zero_point: int = 0
    pads: FixedPads = (0, 0, 0, 0)

    @staticmethod
    def of(x: Array, pads: FixedPads = (0, 0, 0, 0)) -> Images:
        """The images as they are, with zeros at the pads."""
        return Images(x, x.dtype, 0, pads)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[N, H, W, C], with pads."""
        (n, h, w, c), (top, left, bottom, right) = self.x.shape, self.pads
        return n, top + h + bottom, left + w + right, c

    def whole(self) -> Array:
        """All of them."""
        return self.lines(slice(None), 0, self.shape[1])

    def lines(self, images: slice, first: int, stop: int) -> Array:
        """Some lines of some images; ``x`` itself where that is all."""
        is_changed = self.zero_point != 0 or self.dtype != self.x.dtype
        top, left, _, right = self.pads
        start = max(first - top, 0)
        end = max(min(stop - top, self.x.shape[1]), start)
        pixels = self.x[images, start:end]
        if not is_changed and not any(self.pads):
            return pixels
        count, _, width, channels = pixels.shape
        shape = (count, stop - first, left + width + right, channels)
        place = start + top - first
        native = native_ops()
        if native is not None and self.dtype == np.float32 and self._is_native(pixels):
            lines = np.empty(shape, np.float32)
            native.padded(pixels, self.zero_point, place, left, lines)
            return lines
        lines = np.zeros(shape, self.dtype) if any(self.pads) else np.empty(shape, self.dtype)
        interior = lines[:, place : place + end - start, left : left + width]
        if is_changed:
            np.subtract(pixels, self.zero_point, out=interior, dtype=self.dtype)
        else:
            interior[...] = pixels
        return lines

    def _is_native(self, pixels: Array) -> bool:
        """Whether native code reads lines of this type and layout."""
        is_byte = pixels.dtype.kind in "iu" and pixels.dtype.itemsize == 1
        is_float = pixels.dtype == np.float32 and self.zero_point == 0
        return (is_byte or is_float) and (not len(pixels) or pixels[0].flags.c_contiguous)


def conv2d(
    images: Images,
    w: Array,
    strides: Pair,
    dilations: Pair,
    group: int,
    finish: Callable[[Array, Part], Array] | None = None,
    ends: Ends | None = None,
    dtype: npt.DTypeLike = np.float32,
) -> Array:
    """Convolution of NHWC images with HWIO ``w``, in the operands' precision.

    ``ends`` ends the sums; then ``finish`` gets those of a ``Part`` of the result, which it may
    overwrite, and gives what stands in their place, of type ``dtype``.
    """
    native = native_ops()
    if native is not None and w.size and images.dtype == w.dtype == np.float32:
        return _native_conv2d(native, images, w, strides, dilations, finish, ends, dtype)
    x = images.whole()
    kh, kw, _, o = w.shape
    span = (dilations[0] * (kh - 1) + 1, dilations[1] * (kw - 1) + 1)
    windows = sliding_window_view(x, span, axis=(1, 2))
    # [N, OH, OW, C, KH, KW]
    windows = windows[:, :: strides[0], :: strides[1], :, :: dilations[0], :: dilations[1]]
    n, oh, ow, c = windows.shape[:4]
    depthwise = group == c == o
    sums_of = _depthwise_sums if depthwise else partial(_sums, group=group)
    # Depthwise: what is read, weights, products and sums.
    width = 4 * o if depthwise else kh * kw * c + o

    def computed(part: Part) -> Array:
        sums = sums_of(windows[part], w)
        if ends is not None:
            sums = ends.apply(sums)
        return sums if finish is None else finish(sums, part)

    parts = _split_rows((n, oh, ow), width * x.itemsize)
    arrays = each(computed, parts)
    if len(parts) == 1:
        return arrays[0]
    result = np.empty((n, oh, ow, o), arrays[0].dtype)
    for part, values in zip(parts, arrays, strict=True):
        result[part] = values
    return result


def products(x: Array, w: Array) -> Array:
    """``x @ w`` for [G, rows, K] and [G, K, O]; native code adds float32 in one order."""
    if native_ops() is None or not (x.size and w.size and x.dtype == w.dtype == np.float32):
        return np.asarray(x @ w)
    result, once = np.empty((*x.shape[:2], w.shape[2]), np.float32), (1, 1)
    for group, (rows, taps) in enumerate(zip(x, w, strict=True)):
        # Each row is an image line of one pixel.
        images = Images.of(rows[None, :, None])
        result[group] = conv2d(images, taps[None, None], once, once, 1)[0, :, 0]
    return result


def _native_conv2d(
    native: NativeOps,
    images: Images,
    w: Array,
    strides: Pair,
    dilations: Pair,
    finish: Callable[[Array, Part], Array] | None,
    ends: Ends | None,
    dtype: npt.DTypeLike,
) -> Array:
    """``conv2d`` by native code."""
    (n, h, width, c), (kh, kw, _, o) = images.shape, w.shape
    span = dilations[0] * (kh - 1) + 1
    oh = (h - span) // strides[0] + 1
    ow = (width - dilations[1] * (kw - 1) - 1) // strides[1] + 1
    w = np.ascontiguousarray(w)
    result = np.empty((n, oh, ow, o), np.float32 if finish is None else dtype)

    def compute(part: Part) -> None:
        target, lines = result[part], range(oh)[part[1]]
        first, stop = lines.start * strides[0], (lines.stop - 1) * strides[0] + span
        x = np.ascontiguousarray(images.lines(part[0], first, stop))
        sums = target if target.dtype == np.float32 else np.empty(target.shape, np.float32)
        native.conv2d(x, w, strides, dilations, ends, sums)
        if finish is not None and (finished := finish(sums, part)) is not target:
            target[...] = finished

    pixel_nbytes = (strides[0] * strides[1] * c + o) * w.itemsize
    each(compute, _split_rows((n, oh, ow), pixel_nbytes, NATIVE_PART_NBYTES))
    return result


def _split_rows(
    shape: tuple[int, int, int], pixel_nbytes: int, nbytes: int = PART_NBYTES
) -> list[Part]:
    """Parts of N images of OH rows of OW pixels, each with so many bytes of columns and sums.  A
    part has several images, or lines of one, so that it is one piece of memory."""
    n, oh, ow = shape
    pixels = max(PART_PIXELS, nbytes // max(pixel_nbytes, 1))
    images, rows = max(1, pixels // max(oh * ow, 1)), max(1, pixels // max(ow, 1))
    return [
        (slice(first, first + images), slice(top, top + rows))
        for first in range(0, max(n, 1), images)
        for top in range(0, max(oh, 1), rows)
    ]


def _sums(windows: Array, w: Array, group: int) -> Array:
    """[N, OH, OW, O] of windows [N, OH, OW, C, KH, KW]."""
    n, oh, ow = windows.shape[:3]
    kh, kw, c_group, o = w.shape
    result = np.empty((n * oh * ow, o), windows.dtype)
    o_group = o // group
    for g in range(group):
        part = windows[..., g * c_group : (g + 1) * c_group, :, :]
        columns = part.transpose(0, 1, 2, 4, 5, 3).reshape(n * oh * ow, kh * kw * c_group)
        kernel = w[..., g * o_group : (g + 1) * o_group].reshape(kh * kw * c_group, o_group)
        np.matmul(columns, kernel, out=result[:, g * o_group : (g + 1) * o_group])
    return result.reshape(n, oh, ow, o)


def _depthwise_sums(windows: Array, w: Array) -> Array:
    """``_sums`` where each channel is a group."""
    if windows.shape[3] >= MANY_CHANNELS:
        return np.asarray(np.einsum("nhwcij,ijc->nhwc", windows, w[:, :, 0]))
    result = np.zeros(windows.shape[:4], windows.dtype)
    product = np.empty_like(result)
    # The weights of a row of pixels: NumPy then multiplies rows, not each pixel's few channels.
    row = np.empty(result.shape[2:], w.dtype)
    for i, j in np.ndindex(*w.shape[:2]):
        row[:] = w[i, j, 0]
        result += np.multiply(windows[..., i, j], row, out=product)
    return result
