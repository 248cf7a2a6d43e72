"""The end of a contraction: sums to results, in registers.

Integer sums become float32, times their channel's multiplier, plus the residual; an activation in
float32; one rounding; zero point; saturation.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.contraction.activation import activated
from quantglow.backends.llvm.kernels.contraction.channel_order import channel_order
from quantglow.backends.llvm.kernels.contraction.overflow import multipliers
from quantglow.backends.llvm.kernels.contraction.residual import Residual
from quantglow.backends.llvm.kernels.contraction.results import Results
from quantglow.backends.llvm.kernels.vector.partial import load_partial
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.errors import BackendError
from quantglow.foreign_types import Array
from quantglow.lazy import cached_property
from quantglow.ops import Conv
from quantglow.ops.arithmetic import is_integer
from quantglow.types import DType

STORED = (DType.U8, DType.I8, DType.I16)


@dataclass(frozen=True)
class Epilogue:
    """The end of one convolution on one target: sums to results."""

    op: Conv
    target: Target

    @cached_property
    def results(self) -> Results:
        """Rounding, limits and packing."""
        return Results(self.op, self.target)

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

    def values(self, b: Builder, sums: Value, scale: Value, residual: Value | None) -> Value:
        """Sums as float32 in output steps (or reals): times ``scale`` if there is one, plus the
        residual, through the activation.  Integers where ``Results.is_requantized``."""
        result, floats = sums, self.results.floats
        if self.results.is_requantized:
            return self.target.isa.requantized(b, self.results.lanes, sums, scale)
        if self.scaled:
            result = self.target.isa.scaled(b, self.results.lanes, sums, scale)
        if residual is not None:
            result = b.op("fadd", floats, result, residual)
        if self.op.activation is None:
            return result
        return activated(b, self.target, self.op, result)

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
