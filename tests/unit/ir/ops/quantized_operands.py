"""Hypothesis: operands of int8 and int16 operators."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array
from tests.unit.ir.ops.exact import element

scales = st.floats(2.0**-12, 8, width=32)
int8 = st.builds(element, scales, st.integers(-128, 127))
int16 = st.builds(element, scales, st.just(0), st.just(DType.I16))
outs = st.one_of(int8, int16)
seeds = st.integers(0, 2**16)
bounds = st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0), (-0.3, 0.3)])


def scale(kind: ElementType) -> float:
    assert kind.quant is not None
    return kind.quant.scale


def zero(kind: ElementType) -> int:
    assert kind.quant is not None
    return kind.quant.zero_point


def drawn(seed: int, kind: ElementType, *shape: int) -> Array:
    random = np.random.default_rng(seed)
    low, high = kind.dtype.limits
    codes = random.choice([low, high, zero(kind), *random.integers(low, high, 20)], shape)
    return codes.astype(kind.dtype.numpy)


def per_channel(seed: int, *shape: int) -> tuple[Array, ElementType]:
    random = np.random.default_rng(seed)
    codes = random.integers(-127, 128, shape).astype(np.int8)
    values = random.uniform(0.0005, 0.05, shape[-1])
    return codes, ElementType(DType.I8, QuantParams.symmetric(values, len(shape) - 1))
