"""Convolutions and matrix products seen as ``columns @ matrix``, one product for each group.

``columns`` [G, rows, K] holds one window of the input in each row, ``matrix`` [G, K, O/G] the
weights; K runs over (KH, KW, C/G), as in the HWIO weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from quantglow.foreign_types import Array
from quantglow.ops import Conv, ConvTranspose
from quantglow.ops.contraction import Contraction
from quantglow.ops.convolution import pad_or_crop, spread_out
from quantglow.ops.windows import Pair

BAND_NBYTES = 2**25
"""Maximum size of the columns of one band of output rows, in bytes."""


@dataclass(frozen=True)
class Product:
    """The way a Conv, ConvTranspose or Gemm reads its input and stores its weights."""

    node: Contraction

    @property
    def group(self) -> int:
        return self.node.group if isinstance(self.node, Conv | ConvTranspose) else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, K, O/G)"""
        outputs = self.node.w.type.shape[-1]
        return self.group, self.node.w.type.size // outputs, outputs // self.group

    def matrix(self, weights: Array) -> Array:
        """[G, K, O/G] from weights in the node's layout."""
        if isinstance(self.node, ConvTranspose):
            weights = weights[::-1, ::-1]
        return self.by_group(weights)

    def weights(self, matrix: Array) -> Array:
        """Weights in the node's layout from [G, K, O/G]; the inverse of ``matrix``."""
        weights = matrix.transpose(1, 0, 2).reshape(self.node.w.type.shape)
        if isinstance(self.node, ConvTranspose):
            weights = weights[::-1, ::-1]
        return np.ascontiguousarray(weights)

    def by_group(self, array: Array) -> Array:
        """[..., O] -> [G, rows, O/G]"""
        group, _, outputs = self.shape
        return np.ascontiguousarray(array.reshape(-1, group, outputs).transpose(1, 0, 2))

    def bands(
        self, x: Array, *results: Array, every: int = 1, first: int = 0
    ) -> Iterator[tuple[Array, ...]]:
        """float32 columns of ``x``, and for each array in the result's shape its rows by group.

        The zero point of ``x`` is already subtracted, so that padding is 0.  Images contribute one
        of ``every`` rows of the result, beginning at ``first`` modulo ``every``.
        """
        if not isinstance(self.node, Conv | ConvTranspose):
            yield (x.astype(np.float32)[None], *(self.by_group(r) for r in results))
            return
        windows = self._windows(x, every)
        start = first % max(min(every, windows.shape[1]), 1)
        windows = windows[:, start::every]
        results = tuple(r[:, start::every] for r in results)
        n, oh, ow = windows.shape[:3]
        row_nbytes = 8 * n * ow * self.group * self.shape[1]
        step = max(1, BAND_NBYTES // row_nbytes)
        for start in range(0, oh, step):
            part = slice(start, start + step)
            yield self._columns(windows[:, part]), *(self.by_group(r[:, part]) for r in results)

    def thinned(self, x: Array, every: int, first: int) -> tuple[Array, Pair, int]:
        """Padded float32 images and the strides with which a Conv gives one of ``every`` lines of
        its result, and the first one of these; ``first`` modulo ``every``.
        """
        node = self.node
        assert isinstance(node, Conv)
        top, left, bottom, right = node.pads
        padded = pad_or_crop(np.asarray(x, np.float32), (top, left), (bottom, right))
        start = first % max(min(every, node.type.shape[1]), 1)
        strides = (node.strides[0] * every, node.strides[1])
        return np.ascontiguousarray(padded[:, start * node.strides[0] :]), strides, start

    def _windows(self, x: Array, every: int) -> Array:
        """View [N, OH, OW, C, KH, KW] of the padded input; one of ``every`` rows will be read."""
        node = self.node
        assert isinstance(node, Conv | ConvTranspose)
        strides = (1, 1)
        if isinstance(node, ConvTranspose):
            padded = pad_or_crop(spread_out(x, node.strides), *node.equivalent_pads())
        else:
            top, left, bottom, right = node.pads
            padded, strides = pad_or_crop(x, (top, left), (bottom, right)), node.strides
        if self.group == padded.shape[-1] and every <= node.w.type.shape[0]:
            # Channel by channel in memory, so that windows are copied by rows of pixels.
            padded = np.ascontiguousarray(padded.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
        (dh, dw), (kh, kw) = node.dilations, node.w.type.shape[:2]
        span = (dh * (kh - 1) + 1, dw * (kw - 1) + 1)
        windows = sliding_window_view(padded, span, axis=(1, 2))
        return windows[:, :: strides[0], :: strides[1], :, ::dh, ::dw]

    def _columns(self, windows: Array) -> Array:
        n, oh, ow, c, kh, kw = windows.shape
        if self.group == c:
            taps = np.ascontiguousarray(windows.transpose(3, 4, 5, 0, 1, 2), np.float32)
            return taps.reshape(c, kh * kw, -1).transpose(0, 2, 1)
        grouped = windows.reshape(n, oh, ow, self.group, c // self.group, kh, kw)
        moved = grouped.transpose(3, 0, 1, 2, 5, 6, 4)
        return np.ascontiguousarray(moved, np.float32).reshape(self.group, n * oh * ow, -1)
