"""Sums where code counts: one vector of neighbouring results after the other."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.kernels.reduce.middle_axis import ReduceKernel
from quantglow.lazy import cached_property
from quantglow.symbolic.size import is_free


@dataclass
class ShortSums(ReduceKernel):
    """A loop over vectors, then one over single results."""

    @property
    def applies(self) -> bool:
        """Whether code counts on the target, and integers are added that lie in rows."""
        sizes = (self.inner, self.reduced, *self.x_strides, *self.y_strides)
        is_integer = self.sums and not self.dtype.is_float
        short = self.target.saves_code and not any(map(is_free, sizes))
        return short and is_integer and self.inner > 1

    @cached_property
    def block(self) -> int:
        """A work item is a whole row of results."""
        return self.inner

    def columns(self, y: Value, x: Value, block: Value) -> None:
        b, whole = self.b, self.inner - self.inner % self.lanes
        for begin, end, width in ((0, whole, self.lanes), (whole, self.inner, 1)):
            if begin < end:
                with b.loop(begin, end, width) as index:
                    at_y = b.at(y, b.mul(index, self.y_strides[1]))
                    self.block_of(at_y, b.at(x, b.mul(index, self.x_strides[1])), width)
