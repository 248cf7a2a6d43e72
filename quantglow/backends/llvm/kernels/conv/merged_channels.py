"""Convolution with the weights of two output channels in one 16-bit word, ``256 b + a``.

Sums of channel ``a`` take the lower bytes, those of channel ``b`` whole words: after the last step
they exceed 256 times their own products by the sum of ``a``, bias included.  So half of the weights
are never widened.  The bias of ``b`` is added at the end: that of a channel with small weights may
be large.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.builder import Value
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.kernels.contraction.weight_sums import channel_sums
from quantglow.backends.llvm.kernels.conv.streamed import Carried, Panel, StreamedConvKernel
from quantglow.graph.node import Constant

LIMIT = 2**23
"""Bound of sums of products that leave 32 bits not even when multiplied by 256."""
LARGEST_CODE = 128
MOST_UNROLLED = 12
"""Maximum number of steps of short runs that are unrolled."""
UNROLL = 8
"""Steps of a turn: a turn costs as many instructions as a step."""


@dataclass
class MergedConvKernel(StreamedConvKernel):
    """Generator of one convolution kernel with merged channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.merged = self.target.isa.merged_product(self.target.core)
        self.dot = self.merged or self.dot

    @property
    def applies(self) -> bool:
        """Whether the target merges channels, and no input makes a sum too large."""
        if self.merged is None or not self.streams:
            return False
        w = self.conv.w
        assert isinstance(w, Constant)
        largest = LARGEST_CODE * channel_sums(w.value, magnitudes=True)
        return int(w.value.min(initial=0)) > -LARGEST_CODE and int(largest.max(initial=0)) < LIMIT

    def sums_of(self, panel: Panel, x: Value) -> Value:
        assert self.merged is not None
        opened = self.merged.opened(self.b, self.bias_of(panel))
        sums = self.added(x, self.weights_of(panel), opened)
        return self.merged.closed(self.b, sums, self.bias_of(panel))

    def added(self, x: Value, w: Value, sums: Value) -> Value:
        """Sums and the products of all runs."""
        runs = self.geometry.runs
        if runs.total_steps <= MOST_UNROLLED:
            return self._unrolled_runs(x, w, sums)

        def outer(values: list[Value]) -> list[Value]:
            _, w, sums = self.repeated(runs.inner, self._state(*values), inner)
            return [self.b.at(values[0], runs.outer_pitch), w, sums]

        def inner(values: list[Value]) -> list[Value]:
            w, sums = self._run(*values)
            return [self.b.at(values[0], runs.inner_pitch), w, sums]

        return self.repeated(runs.outer, self._state(x, w, sums), outer)[2]

    def _state(self, x: Value, w: Value, sums: Value) -> Carried:
        return [*self.pointers([x, w]), (self.dot.kind, sums)]

    def _unrolled_runs(self, x: Value, w: Value, sums: Value) -> Value:
        """``added`` without loops."""
        runs = self.geometry.runs
        for o in range(runs.outer):
            for i in range(runs.inner):
                at = self.b.at(x, o * runs.outer_pitch + i * runs.inner_pitch)
                _, w, sums = self._some_steps(runs.steps, at, w, sums)
        return sums

    def _run(self, x: Value, w: Value, sums: Value) -> tuple[Value, Value]:
        """Add the products of a run; the weights behind it, and the sums."""
        rounds, rest = divmod(self.geometry.runs.steps, UNROLL)

        def body(values: list[Value]) -> list[Value]:
            return self._some_steps(UNROLL, *values)

        if rounds:
            x, w, sums = self.repeated(rounds, self._state(x, w, sums), body)
        _, w, sums = self._some_steps(rest, x, w, sums)
        return w, sums

    def _some_steps(self, count: int, x: Value, w: Value, sums: Value) -> list[Value]:
        """Add the products of some steps; the addresses behind them, and the sums."""
        b, dot = self.b, self.dot
        for step in range(count):
            weights = dot.weights(b, w, step * dot.weight_nbytes)
            operand = dot.operand(b, b.at(x, step * STEP_NBYTES))
            sums = dot.accumulate(b, sums, operand, weights)
        return [b.at(x, count * STEP_NBYTES), b.at(w, count * dot.weight_nbytes), sums]
