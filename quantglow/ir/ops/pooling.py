"""Pooling and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from quantglow.ir.graph.kinds import CODES, NUMBERS, REALS, Kind, Trait, taking
from quantglow.ir.graph.node import Node, op
from quantglow.ir.ops.arithmetic import is_integer, multiplier, saturate
from quantglow.ir.ops.windows import Pads, Pair, check_windows, fixed_pads
from quantglow.ir.symbolic.size import Dim, Shape, decide, likely, maximum, minimum, prod
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array


class Pool(Node):
    """Windows over H and W of NHWC x.  Attributes as ONNX has them."""

    x: Node
    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    ceil_mode: bool

    def for_samples(self, shape: Shape) -> dict[str, Any]:
        return {}

    @property
    def table_entries(self) -> int:
        """The places of all taps along each axis."""
        sizes = map(likely, self.type.shape[1:3])
        return sum(size * taps for size, taps in zip(sizes, self.kernel, strict=True))

    def result_shape(self) -> Shape:
        if self.x.type.rank != 4:
            raise self.refuse("x must have 4 dimensions")
        check_windows(self, self.kernel, self.strides, self.dilations, self.pads)
        n, h, w, c = self.x.type.shape
        sizes = tuple(self.count(axis, size) for axis, size in enumerate((h, w)))
        if any(decide(size < 1) for size in sizes):
            raise self.refuse("the window is larger than the padded input")
        return (n, *sizes, c)

    def count(self, axis: int, size: Dim) -> Dim:
        """Windows along H (0) or W (1); the last must start inside the input or left padding."""
        before, after = self.pads[axis], self.pads[axis + 2]
        stride = self.strides[axis]
        reach = self.dilations[axis] * (self.kernel[axis] - 1) + 1
        room = size + before + after - reach
        if not self.ceil_mode:
            return room // stride + 1
        windows = -(-room // stride) + 1
        starts_inside = (size + before - 1) // stride + 1
        return maximum((windows - 1, minimum((windows, starts_inside))))

    def windows(self, x: Array, fill: Any) -> Array:
        """[N, OH, OW, C, KH, KW] views of x, with ``fill`` outside."""
        _, oh, ow, _ = self.type.shape
        spans = [self.dilations[i] * (self.kernel[i] - 1) + 1 for i in (0, 1)]
        widths = [(0, 0)]
        for i, count in enumerate((oh, ow)):
            before = int(self.pads[i])
            needed = (count - 1) * self.strides[i] + spans[i] - x.shape[i + 1] - before
            widths.append((before, max(needed, 0)))
        padded = np.pad(x, [*widths, (0, 0)], constant_values=fill)
        views = sliding_window_view(padded, spans, axis=(1, 2))
        views = views[:, :: self.strides[0], :: self.strides[1]][:, :oh, :ow]
        return views[..., :: self.dilations[0], :: self.dilations[1]]


@op
class MaxPool(Pool):
    """The largest value of each window; quantization parameters pass through."""

    x: Node
    kernel: Pair
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)
    ceil_mode: bool = False

    takes = taking(x=NUMBERS)
    traits = frozenset({Trait.CHOOSES, Trait.KEEPS_ZERO, Trait.KEEPS_QUANTIZATION})

    def infer(self) -> TensorType:
        return self.x.type.with_shape(self.result_shape())

    def reference(self, x: Array) -> Array:
        return np.asarray(self.windows(x, self.x.type.dtype.ends[0]).max(axis=(4, 5)))


@op
class AveragePool(Pool):
    """The mean of each window; quantized: the exact integer sum, one multiplier, one rounding.

    Padding counts as zeros when ``count_include_pad``, else not at all.
    """

    x: Node
    kernel: Pair
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False
    out: ElementType | None = None

    takes = taking(x=REALS, out=CODES)
    traits = frozenset({Trait.KEEPS_ZERO})

    def infer(self) -> TensorType:
        if (self.out is None) == is_integer(self.x.type):
            raise self.refuse("`out` must be given exactly when x is quantized")
        shaped = self.x.type.with_shape(self.result_shape())
        return shaped if self.out is None else shaped.with_element(self.out)

    def divisors(self) -> Array:
        """Elements that count in each window, float64 [OH, OW, 1]."""
        counts = []
        for i in (0, 1):
            size = self.x.type.fixed_shape[i + 1]
            pads = fixed_pads(self.pads)
            before, after = (pads[i], pads[i + 2]) if self.count_include_pad else (0, 0)
            starts = np.arange(self.type.fixed_shape[i + 1]) * self.strides[i] - pads[i]
            taps = starts[:, None] + np.arange(self.kernel[i]) * self.dilations[i]
            counts.append(((taps >= -before) & (taps < size + after)).sum(axis=1))
        elements: Array = np.maximum(np.outer(*counts), 1)
        return elements.astype(np.float64)[..., None]

    def reference(self, x: Array) -> Array:
        if self.out is None:
            sums = self.windows(x, np.float32(0)).sum(axis=(4, 5), dtype=np.float32)
            return np.asarray(sums / self.divisors().astype(np.float32))
        params = self.x.type.params
        sums = self.windows(x, params.zero_point).sum(axis=(4, 5), dtype=np.int32)
        taps = self.kernel[0] * self.kernel[1]
        centered = sums - np.int32(taps * params.zero_point)
        return saturate(
            centered.astype(np.float32) * self.output_scale(), self.out, *self.out.dtype.limits
        )

    def output_scale(self) -> Array:
        """float32 [OH, OW, 1]: multiplier from the centered integer sum to output steps."""
        return self.output_scales(self.divisors())

    def output_scales(self, elements: Array) -> Array:
        """The multiplier of windows of so many elements, float64."""
        return multiplier(self.step_ratio, 1.0 / elements)

    @property
    def step_ratio(self) -> float:
        """Steps of the result in one of x."""
        return self.x.type.params.scale / self.type.params.scale


class Reduce(Node):
    """Reduce ``axes`` (sorted, not negative)."""

    x: Node
    axes: tuple[int, ...]
    keepdims: bool

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return None if 0 in self.axes else {}

    def result_shape(self) -> Shape:
        if list(self.axes) != sorted(set(self.axes)) or any(
            not 0 <= a < self.x.type.rank for a in self.axes
        ):
            raise self.refuse(f"axes {self.axes} must be sorted and within the rank of x")
        sizes = enumerate(self.x.type.shape)
        if self.keepdims:
            return tuple(1 if i in self.axes else d for i, d in sizes)
        return tuple(d for i, d in sizes if i not in self.axes)

    def choose_type(self) -> TensorType:
        """The type of elements of x; integers with parameters for each index of an axis are plain
        integers, for the axis may be gone."""
        chosen = self.x.type.with_shape(self.result_shape())
        is_per_axis = chosen.quant is not None and chosen.quant.axis is not None
        return TensorType(chosen.dtype, chosen.shape) if is_per_axis else chosen

    def infer(self) -> TensorType:
        return TensorType(DType.F32, self.result_shape())


@op
class ReduceMean(Reduce):
    """The mean; quantized: the exact integer sum, one multiplier, one rounding."""

    x: Node
    axes: tuple[int, ...]
    keepdims: bool = True
    out: ElementType | None = None

    takes = taking(x=REALS, out=CODES)
    traits = frozenset({Trait.KEEPS_ZERO})

    def infer(self) -> TensorType:
        if (self.out is None) == is_integer(self.x.type):
            raise self.refuse("`out` must be given exactly when x is quantized")
        shaped = self.x.type.with_shape(self.result_shape())
        return shaped if self.out is None else shaped.with_element(self.out)

    @property
    def count(self) -> Dim:
        """Elements averaged into one."""
        return prod(self.x.type.shape[a] for a in self.axes)

    def reference(self, x: Array) -> Array:
        if self.out is None:
            return np.asarray(x.mean(axis=self.axes, keepdims=self.keepdims, dtype=np.float32))
        total = x.sum(axis=self.axes, keepdims=self.keepdims, dtype=np.int64)
        centered = (total - self.count * self.x.type.params.zero_point).astype(np.int32)
        steps = centered.astype(np.float32) * self.output_scale()
        return saturate(steps, self.out, *self.out.dtype.limits)

    def output_scale(self) -> Array:
        """float32 multiplier from the centered integer sum to output steps."""
        divisor = self.type.params.scale * float(self.count)
        return multiplier(self.x.type.params.scale, divisor=divisor)


@op
class ReduceSum(Reduce):
    """The sum; float only."""

    x: Node
    axes: tuple[int, ...]
    keepdims: bool = True

    takes = taking(x=Kind.FLOAT)
    traits = frozenset({Trait.KEEPS_ZERO})

    def reference(self, x: Array) -> Array:
        return np.asarray(x.sum(axis=self.axes, keepdims=self.keepdims, dtype=np.float32))


@op
class ReduceMax(Reduce):
    """The maximum; quantization parameters of a whole tensor pass through."""

    x: Node
    axes: tuple[int, ...]
    keepdims: bool = True

    takes = taking(x=NUMBERS)
    traits = frozenset({Trait.CHOOSES, Trait.KEEPS_ZERO, Trait.KEEPS_QUANTIZATION})

    def infer(self) -> TensorType:
        return self.choose_type()

    def reference(self, x: Array) -> Array:
        lowest, _ = self.x.type.dtype.ends
        return np.asarray(x.max(axis=self.axes, keepdims=self.keepdims, initial=lowest))


@op
class ReduceMin(Reduce):
    """The minimum; quantization parameters of a whole tensor pass through."""

    x: Node
    axes: tuple[int, ...]
    keepdims: bool = True

    takes = taking(x=NUMBERS)
    traits = frozenset({Trait.CHOOSES, Trait.KEEPS_ZERO, Trait.KEEPS_QUANTIZATION})

    def infer(self) -> TensorType:
        return self.choose_type()

    def reference(self, x: Array) -> Array:
        _, highest = self.x.type.dtype.ends
        return np.asarray(x.min(axis=self.axes, keepdims=self.keepdims, initial=highest))
