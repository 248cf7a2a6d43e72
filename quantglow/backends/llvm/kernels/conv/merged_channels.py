"""Convolution with the weights of two output channels in one 16-bit word, ``256 b + a``.

Sums of channel ``a`` take the lower bytes, those of channel ``b`` whole words: after the last step
they exceed 256 times their own products by the sum of ``a``, bias included.  So half of the weights
are never widened.  The bias of ``b`` is added at the end: that of a channel with small weights may
be large.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.kernels.contraction.weight_sums import channel_sums
from quantglow.backends.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.backends.llvm.kernels.conv.loops import Place
from quantglow.graph.node import Constant
from quantglow.types import DType

LIMIT = 2**23
"""Bound of sums of products that leave 32 bits not even when multiplied by 256."""
LARGEST_CODE = 128


@dataclass
class MergedConvKernel(ConvKernel):
    """Generator of one convolution kernel with merged channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.merged = self.target.isa.merged_product(self.target.core)
        self.dot = self.merged or self.dot

    @property
    def applies(self) -> bool:
        """Whether the target merges channels, and no input makes a sum too large."""
        if self.merged is None or self.step.inputs[0].type.dtype is not DType.I8:
            return False
        w = self.conv.w
        assert isinstance(w, Constant)
        largest = LARGEST_CODE * channel_sums(w.value, magnitudes=True)
        return int(w.value.min(initial=0)) > -LARGEST_CODE and int(largest.max(initial=0)) < LIMIT

    def initial_sums(self, bias: list[Value], pixels: int) -> list[Value]:
        assert self.merged is not None
        return super().initial_sums([self.merged.opened(self.b, v) for v in bias], pixels)

    def store_tile(
        self, sums: list[Value], pixels: list[tuple[int, int]], channels: int, place: Place
    ) -> None:
        assert self.merged is not None
        vectors, closed = len(sums) // len(pixels), []
        for index, value in enumerate(sums):
            pointer = self._vector_of(self.bias, place.first, index % vectors)
            bias = self.b.load(self.dot.kind, pointer, align=4)
            closed.append(self.merged.closed(self.b, value, bias))
        super().store_tile(closed, pixels, channels, place)
