"""Images as products read them: less a zero point, in another type, with zeros around.

They are made line by line, so that what is only read once need not go through memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantglow.foreign_types import Array
from quantglow.ops.native import native_ops
from quantglow.ops.windows import Pads


@dataclass(frozen=True)
class Images:
    """``x`` [N, H, W, C] less ``zero_point``, in ``dtype``, with zeros at the pads."""

    x: Array
    dtype: npt.DTypeLike
    zero_point: int = 0
    pads: Pads = (0, 0, 0, 0)

    @staticmethod
    def of(x: Array, pads: Pads = (0, 0, 0, 0)) -> Images:
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
        given = self.x[images, start:end]
        if not is_changed and not any(self.pads):
            return given
        count, _, width, channels = given.shape
        shape = (count, stop - first, left + width + right, channels)
        place = start + top - first
        native = native_ops()
        if native is not None and self.dtype == np.float32 and self._is_native(given):
            found = np.empty(shape, np.float32)
            native.padded(given, self.zero_point, place, left, found)
            return found
        found = np.zeros(shape, self.dtype) if any(self.pads) else np.empty(shape, self.dtype)
        own = found[:, place : place + end - start, left : left + width]
        if is_changed:
            np.subtract(given, self.zero_point, out=own, dtype=self.dtype)
        else:
            own[...] = given
        return found

    def _is_native(self, given: Array) -> bool:
        """Whether native code reads lines of this type and layout."""
        is_byte = given.dtype.kind in "iu" and given.dtype.itemsize == 1
        is_float = given.dtype == np.float32 and self.zero_point == 0
        return (is_byte or is_float) and (not len(given) or given[0].flags.c_contiguous)
