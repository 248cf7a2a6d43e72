"""The residual of a contraction: a second operand added to its sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.interface import RAISED
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS, widen
from quantglow.foreign_types import Array
from quantglow.instr.program import Compute, View
from quantglow.ops import Conv
from quantglow.ops.arithmetic import is_integer, multiplier
from quantglow.types import DType


@dataclass(frozen=True)
class Residual:
    """The residual of one convolution, if it has one."""

    op: Conv
    target: Target

    @property
    def reads_params(self) -> bool:
        """Whether ``params`` are an operand of the kernel."""
        return self.op.residual is not None and is_integer(self.op.residual.type)

    @property
    def count(self) -> int:
        """How many operands of a kernel belong to it."""
        return (self.op.residual is not None) + self.reads_params

    def operands(self, step: Compute) -> tuple[View | Array, ...]:
        """The last operands of a kernel: its parameters and itself."""
        return (*self.params(), *step.inputs[3:4])

    def pointers(self, pointers: Sequence[Value]) -> tuple[Value, Value]:
        """The pointers to its parameters and to itself among all of a kernel; empty where there are
        none."""
        params = pointers[-2] if self.reads_params else ""
        return params, pointers[-1] if self.op.residual is not None else ""

    def params(self) -> tuple[Array, ...]:
        """The residual's zero point, its step in steps of the float32 sum, and ``RAISED`` plus its
        zero point, a vector of each as int32 [3, lanes], where it is quantized.  As literals they
        would make a kernel for each layer.
        """
        if not self.reads_params:
            return ()
        assert self.op.residual is not None
        params = self.op.residual.type.params
        ratio = multiplier(params.scale, divisor=self.op.sum_step)
        raised = np.float32(RAISED + params.zero_point).view(np.int32)
        found = np.array([params.zero_point, ratio.view(np.int32), raised], np.int32)
        return (np.repeat(found[:, None], self.target.f32_lanes, axis=1),)

    def steps(self, b: Builder, data: Value, order: Array, params: Value) -> list[Value]:
        """Vectors of residual in steps of the float32 sum, or reals, from one vector of all their
        elements.

        ``order`` [vectors, lanes]: where each lane's element lies; ``params``: pointer to those.
        """
        if not self.reads_params:
            if len(order) == 1:
                return [data]  # one vector lies in order
            return [self._picked(b, data, order.size, places) for places in order]
        nbytes, floats = self.target.vector_nbytes, vector(self.target.f32_lanes, "float")
        steps = []
        for places in order:
            reals = self._reals(b, data, order.size, places, params)
            ratio = b.load(floats, b.at(params, nbytes), align=nbytes)
            steps.append(b.op("fmul", floats, reals, ratio))
        return steps

    def _reals(self, b: Builder, data: Value, count: int, places: Array, params: Value) -> Value:
        """The integers at ``places`` of a vector of ``count``, less the zero point, as float32."""
        assert self.op.residual is not None
        lanes, nbytes = self.target.f32_lanes, self.target.vector_nbytes
        floats, ints = vector(lanes, "float"), vector(lanes, "i32")
        if self.op.residual.type.dtype is DType.U8 and count == nbytes:
            raised = self.target.isa.raised_bytes(b, data, places.tolist())
            if raised is not None:
                zero_point = b.load(floats, b.at(params, 2 * nbytes), align=nbytes)
                return b.op("fsub", floats, raised, zero_point)
        wide = self._spread(b, data, count, places)
        moved = b.op("sub", ints, wide, b.load(ints, params, align=nbytes))
        return b.cast("sitofp", ints, moved, floats)

    def _spread(self, b: Builder, data: Value, count: int, places: Array) -> Value:
        """The integers at ``places`` of a vector of ``count``, widened to int32."""
        assert self.op.residual is not None
        dtype, lanes = self.op.residual.type.dtype, len(places)
        if dtype is DType.U8 and count == 4 * lanes and self.target.isa.shuffles_bytes:
            mask = [int(places[i // 4]) if i % 4 == 0 else count for i in range(count)]
            kind = vector(count, ELEMENTS[dtype])
            spread = b.shuffle(kind, data, "zeroinitializer", mask)
            return b.cast("bitcast", kind, spread, vector(lanes, "i32"))
        picked = self._picked(b, data, count, places)
        return widen(b, lanes, ELEMENTS[dtype], picked, dtype is not DType.U8)

    def _picked(self, b: Builder, data: Value, count: int, places: Array) -> Value:
        """The elements at ``places`` of a vector of ``count``."""
        assert self.op.residual is not None
        kind = vector(count, ELEMENTS[self.op.residual.type.dtype])
        return b.shuffle(kind, data, "poison", places.tolist())
