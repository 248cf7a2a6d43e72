"""Constants of a convolution in the order its kernel reads them.

Weights: for each group and panel of output channels, for each run, for each step, the vectors of
the panel.  The last panel of a group may be narrower.  Missing channels and the bytes that a step
reads beyond its run have weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.backends.llvm.isa.dot import STEP_NBYTES, DotProduct
from quantglow.backends.llvm.kernels.contraction.geometry import Runs
from quantglow.foreign_types import Array


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
    found = []
    for group in range(group_count):
        first = 0
        for vectors in panels.widths():
            order = order_of(vectors) + first
            channels = np.where(order < panels.channels, order + group * panels.channels, -1)
            found.append(channels)
            first += vectors * panels.lanes
    return found


def pack_vectors(values: Array, channels: list[Array]) -> Array:
    """Per-channel values (bias, multipliers) in panel order; zeros where there is no channel."""
    extended = np.append(values, values.dtype.type(0))
    return np.concatenate([extended[c].reshape(-1) for c in channels])


def pack_weights(w: Array, runs: Runs, channels: list[Array], dot: DotProduct) -> Array:
    """HWIO weights as the kernel reads them, one contiguous piece for each panel."""
    panels = panel_steps(w.astype(dot.weights_dtype, copy=False), runs, channels)
    return np.concatenate([dot.pack(steps).reshape(-1) for steps in panels])


def panel_steps(w: Array, runs: Runs, channels: list[Array]) -> Iterator[Array]:
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
        yield _unpacked(words.take(c, axis=1), w.dtype)


def _words(steps: Array) -> Array:
    """uint32 [steps, channels] of the elements in [steps, elements of a step, channels]."""
    itemsize = steps.dtype.itemsize
    elements = steps.view(f"u{itemsize}")
    words = elements[:, -1].astype(np.uint32)
    for index in reversed(range(STEP_NBYTES // itemsize - 1)):
        words <<= 8 * itemsize
        words |= elements[:, index]
    return words


def _unpacked(words: Array, dtype: np.dtype[Any]) -> Array:
    """[...] words as [..., elements of a step], the lowest byte first."""
    return words[..., None].astype("<u4", copy=False).view(dtype)
