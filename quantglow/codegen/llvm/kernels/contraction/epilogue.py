"""Epilogue of a contraction: sums to results, in registers.

Integer sums become float32, times their channel's multiplier, plus the residual (a second operand);
an activation in float32; one rounding; zero point; saturation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.interface import RAISED
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.contraction.results import ContractionResults, multipliers
from quantglow.codegen.llvm.kernels.contraction.tiling import channel_order
from quantglow.codegen.llvm.kernels.vector.access import load_partial
from quantglow.codegen.llvm.kernels.vector.scalars import Scalars
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, widen
from quantglow.codegen.llvm.values import (
    ABSENT,
    FLOAT,
    I32,
    Operand,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops import Conv
from quantglow.ir.ops.arithmetic import is_integer, multiplier
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.unary import X
from quantglow.ir.program.program import Compute, View
from quantglow.ir.symbolic.size import decide
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import BackendError

STORED = (DType.U8, DType.I8, DType.I16)


@dataclass(frozen=True)
class Epilogue:
    """The end of one convolution on one target: sums to results."""

    op: Conv
    target: Target

    @cached_property
    def results(self) -> ContractionResults:
        """Rounding, limits and packing."""
        return ContractionResults(self.op, self.target)

    @cached_property
    def residual(self) -> Residual:
        """The second operand of the sum."""
        return Residual(self.op, self.target)

    @property
    def scaled(self) -> bool:
        """Whether sums are integers that need a multiplier for each channel."""
        return is_integer(self.op.x.type)

    def check(self) -> None:
        """Raise ``BackendError`` for element types that are not stored."""
        residual, integer = self.op.residual, self.op.out is not None
        if integer and self.op.type.dtype not in STORED:
            raise BackendError(f"{self.op!r}: results of {self.op.type.dtype} are not supported")
        if residual is not None and is_integer(residual.type) != integer:
            raise BackendError(f"{self.op!r}: the residual and the result differ in precision")

    def channel_order(self, vectors: int) -> Array:
        """int [vectors, lanes]: the channel (within a panel) of each lane of each vector."""
        return channel_order(self.target.isa, vectors, self.results.joined)

    def multipliers(self) -> Array:
        """float32 [O]: from sums to steps of the result (or reals)."""
        return multipliers(self.op)

    @property
    def facts(self) -> str:
        """Everything in the values of constants and the parameters of quantization that the code
        depends on; the rest are operands.
        """
        if self.op.out is None:
            return ""
        results = self.results
        step = None if self.op.activation is None else self.op.type.params.scale
        return f"{results.may_overflow} {results.bounds} {results.zero_point} {step}"

    def values(self, b: Builder, sums: Value, scale: Operand, residual: Value | None) -> Value:
        """Sums as float32 in output steps (or reals): times ``scale`` if there is one, plus the
        residual, through the activation.  Integers where ``ContractionResults.is_requantized``."""
        # Sum to float32, product, residual and activation are rounded one by one, in this order on
        # every target, as the interpreter rounds them: no flag allows LLVM to contract or to
        # reorder them.
        result, floats = sums, self.results.floats
        if self.results.is_requantized:
            return self.target.isa.requantized(b, self.results.lanes, sums, scale)
        if self.scaled:
            result = self.target.isa.scaled(b, self.results.lanes, sums, scale)
        if residual is not None:
            result = b.op("fadd", floats, result, residual)
        if self.op.activation is None:
            return result
        return _apply_activation(b, self.target, self.op, result)

    def residual_steps(self, b: Builder, data: Value, vectors: int, params: Value) -> list[Value]:
        """``vectors`` of residual, in steps of the float32 sum (or reals), from one vector of their
        elements; ``params``: pointer to ``Residual.params``."""
        return self.residual.steps(b, data, self.channel_order(vectors), params)

    def residual_at(
        self, b: Builder, place: Value, vectors: int, valid: int, params: Value
    ) -> list[Value]:
        """``residual_steps`` of the ``valid`` elements at an address."""
        assert self.op.residual is not None
        element, lanes = ELEMENTS[self.op.residual.type.dtype], vectors * self.target.f32_lanes
        data = load_partial(b, self.target, element, lanes, valid, place)
        return self.residual_steps(b, data, vectors, params)


def _apply_activation(b: Builder, target: Target, op: Conv, sums: Value) -> Value:
    """The activation of ``op`` on a vector of sums, in output steps (or reals)."""
    assert op.activation is not None
    expression = op.activation.expression(None if op.out is None else op.type.params.scale)
    scalars = Scalars(b, target, target.f32_lanes, [sums], [DType.F32])
    if near := _limited_factor(expression):
        bound = splat(vector(target.f32_lanes, FLOAT), f32(float(near.args[1].value)))
        if limited := target.isa.nearest_within(b, sums, bound):
            scalars.done[near] = limited
    return scalars.value(expression)


def _limited_factor(expr: Expr) -> Expr | None:
    """``min(max($0, -c), c)`` within a factor of a product with ``$0``.  There it may be c for NaN:
    the product is NaN anyway."""
    if expr.op == "mul" and expr.args[0] == X:
        return next(filter(_is_symmetric, expr.args[1].parts()), None)
    return next(filter(None, map(_limited_factor, expr.args)), None)


def _is_symmetric(expr: Expr) -> bool:
    match expr:
        case Expr("min", (Expr("max", (x, Expr("f", value=low))), Expr("f", value=high))):
            return x == X and decide(low == -high)
    return False


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
        """The pointers to its parameters and to itself among all of a kernel; ``ABSENT`` where
        there are none."""
        params = pointers[-2] if self.reads_params else ABSENT
        return params, pointers[-1] if self.op.residual is not None else ABSENT

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
        params_by_row = np.array([params.zero_point, ratio.view(np.int32), raised], np.int32)
        return (np.repeat(params_by_row[:, None], self.target.f32_lanes, axis=1),)

    def steps(self, b: Builder, data: Value, order: Array, params: Value) -> list[Value]:
        """Vectors of residual in steps of the float32 sum, or reals, from one vector of all their
        elements.

        ``order`` [vectors, lanes]: where each lane's element lies; ``params``: pointer to those.
        """
        if not self.reads_params:
            if len(order) == 1:
                return [data]  # one vector lies in order
            return [self._picked(b, data, order.size, places) for places in order]
        nbytes, floats = self.target.vector_nbytes, vector(self.target.f32_lanes, FLOAT)
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
        floats, ints = vector(lanes, FLOAT), vector(lanes, I32)
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
            return b.cast("bitcast", kind, spread, vector(lanes, I32))
        picked = self._picked(b, data, count, places)
        return widen(b, lanes, ELEMENTS[dtype], picked, dtype is not DType.U8)

    def _picked(self, b: Builder, data: Value, count: int, places: Array) -> Value:
        """The elements at ``places`` of a vector of ``count``."""
        assert self.op.residual is not None
        kind = vector(count, ELEMENTS[self.op.residual.type.dtype])
        return b.shuffle(kind, data, "poison", places.tolist())
