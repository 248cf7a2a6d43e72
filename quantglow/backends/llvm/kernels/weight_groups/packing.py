"""Constants of a product with weights in groups, in the order in which its kernel reads them.

For each panel of channels and each group: the scales of the panel, then its codes.  Codes lie in
vectors of a word of four bytes for each channel; a byte holds the codes of ``8 / bits`` words that
follow each other along K, the first one lowest.  Channels that a panel lacks have scales of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array

WORD_NBYTES = 4
PANELS_AT_ONCE = 64
"""Panels whose codes are packed at the same time."""


@dataclass(frozen=True)
class Layout:
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
        made = np.zeros(shape, np.uint32)
        made[:, :, 0] = self.by_panels(scales).view(np.uint32)
        for first in range(0, self.panels, PANELS_AT_ONCE):
            rows = slice(first * self.width, (first + PANELS_AT_ONCE) * self.width)
            part = self._words(w[rows])
            made[first : first + len(part), :, 1:] = part
        return made.reshape(self.panels, self.groups, -1)

    def _words(self, w: Array) -> Array:
        """uint32 [panels, G, steps, width] of some whole panels, the last of which may end."""
        panels = -(-len(w) // self.width)
        words = interleaved(np.ascontiguousarray(w).view("<u4"), self.bits)
        words = np.pad(words, [(0, panels * self.width - len(w)), (0, 0), (0, 0)])
        return words.reshape(panels, self.width, self.groups, self.steps).transpose(0, 2, 3, 1)


def interleaved(words: Array, bits: int) -> Array:
    """uint32 of ``32 / bits`` codes, the first one lowest, with codes 0 to 3 in the lowest bits of
    the four bytes, codes 4 to 7 above them, and so on."""
    if bits == 8:
        return words
    four, two, one = (2 ** (n * bits) - 1 for n in (4, 2, 1))
    found = np.zeros_like(words)
    for layer in range(8 // bits):
        part = (words >> np.uint32(4 * bits * layer)) & np.uint32(four)
        part = (part | part << np.uint32(16 - 2 * bits)) & np.uint32(two * 0x00010001)
        part = (part | part << np.uint32(8 - bits)) & np.uint32(one * 0x01010101)
        found |= part << np.uint32(bits * layer)
    return found
