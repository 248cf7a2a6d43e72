"""Division by a constant: every mantissa gives the bits of a division."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.kernels.vector.vectors import divides_exactly, quotient
from quantglow.codegen.llvm.targets import resolve, runs_here
from quantglow.codegen.llvm.values import FLOAT, vector
from quantglow.runtime.jit.library import addresses
from quantglow.support.arrays import Array

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
FUSED = [name for name in ("avx2", "avx512vnni") if runs_here(name)]
ONES = np.arange(2**23, 2**24, dtype=np.uint32)
"""Every mantissa of a float32."""
DIVISORS = (
    1.0, 1.5, 1.4142135, 1.4142136, 1.9999999, 1.9999998, 1.0000001, 0.0078740157, 0.007120743,
    0.017658, 1 / 3, 6.0, 12345.678, 2.0**-20,
)  # fmt: skip


def quotients(x: Array, divisor: float, target: str, limit: int) -> Array:
    """``x / divisor`` by generated code; the length of x is a multiple of 16."""
    lanes = resolve(target).f32_lanes
    b = Builder()
    y_at, x_at = b.kernel(2)
    kind = vector(lanes, FLOAT)
    with b.loop("%begin", "%end") as item:
        offset = b.mul(item, 4 * lanes)
        value = quotient(b, lanes, b.load(kind, b.at(x_at, offset)), divisor, (-limit, limit))
        b.store(kind, value, b.at(y_at, offset))
    (address,) = addresses(resolve(target), [b.finish()])
    y = np.empty_like(x)
    pointers = np.array([y.ctypes.data, x.ctypes.data], np.uint64)
    ENTRY(address)(pointers.ctypes.data, 0, x.size // lanes)
    return y


@pytest.mark.slow_variants
@pytest.mark.parametrize("divisor", DIVISORS)
def test_every_mantissa_is_divided_exactly(divisor: float) -> None:
    x = (ONES.astype(np.float64) * 2.0**-23 * divisor).astype(np.float32)
    x = np.ldexp(np.frexp(x)[0], 1).astype(np.float32)  # all mantissas, whatever the divisor
    mantissas = (ONES & 0x7FFFFF | 0x3F800000).view(np.float32)
    for values in (mantissas, x, -mantissas):
        scaled = (values * np.float32(2.0 ** np.floor(np.log2(divisor)))).astype(np.float32)
        actual = quotients(scaled, divisor, FUSED[-1], 255)
        np.testing.assert_array_equal(actual, scaled / np.float32(divisor))


@given(st.floats(2.0**-60, 2.0**60, width=32), st.integers(0, 2**16), st.sampled_from(FUSED))
def test_any_divisor_divides_exactly(divisor: float, seed: int, target: str) -> None:
    rng = np.random.default_rng(seed)
    near = rng.integers(-600, 600, 4096) / np.float32(2) * np.float32(divisor)
    x = np.nextafter(near.astype(np.float32), rng.choice([-np.inf, np.inf], 4096)).astype("f4")
    with np.errstate(under="ignore"):
        expected = x / np.float32(divisor)
    normal = np.abs(expected) > 1e-9
    actual = quotients(x, divisor, target, 1000)
    np.testing.assert_array_equal(actual[normal], expected[normal])


@given(st.floats(2.0**-60, 2.0**60, width=32), st.integers(1, 2**20 - 1))
def test_values_beyond_the_limit_round_to_it(divisor: float, limit: int) -> None:
    edge = np.float32(limit) * np.float32(divisor)
    beyond = [edge, np.nextafter(edge, np.float32(np.inf)), 2 * edge, np.inf]
    x = np.array([*beyond, *np.negative(beyond), *[np.nan] * 8], np.float32)
    actual = np.rint(quotients(x, divisor, FUSED[0], limit))
    np.testing.assert_array_equal(actual, [limit] * 4 + [-limit] * 12)


def test_divisors_that_lose_bits_are_refused() -> None:
    resolved, limits = resolve(FUSED[0]), (-128.0, 127.0)
    assert not divides_exactly(resolved, 1e-30, limits)
    assert not divides_exactly(resolved, 1e30, limits)
    assert not divides_exactly(resolved, 1.0, (0.0, 2.0**20))
    assert not divides_exactly(resolve("x86-64"), 1.0, limits)
