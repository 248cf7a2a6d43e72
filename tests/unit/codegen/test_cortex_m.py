"""Code for Cortex-M is made on any machine, and runs on none that has Python."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.compiler import assembly
from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.isa.cortex_m.instructions import LEVELS
from quantglow.codegen.llvm.targets import level_target, resolve
from quantglow.codegen.llvm.values import FLOAT, I32, Value
from quantglow.runtime.jit.library import addresses
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError
from tests.matrix.harness import ENTRY, planned
from tests.support.effort import moderate
from tests.support.pinned import pinned

NAMES = [level.name for level in LEVELS]
SMALLEST = "cortex-m0plus"
LARGE = 2.0**23


@pytest.mark.parametrize("level", NAMES)
def test_a_process_of_python_refuses_them(level: str) -> None:
    with pytest.raises(BackendError, match="this processor is"):
        resolve(level)


@pytest.mark.parametrize("level", NAMES)
def test_triples_have_four_parts(level: str) -> None:
    """LLVM takes shorter ones for soft-float systems."""
    assert level_target(level).triple.count("-") == 3


@pytest.mark.parametrize("level", NAMES)
def test_indices_have_the_width_of_registers(level: str) -> None:
    texts = emit_program(*planned(pinned("tables"), unsigned=False), level_target(level)).texts
    assert not [t for t in texts if re.search(r"(phi|mul|udiv) i64|ptr %\w+, i64", t)]


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", [name for name in NAMES if name != SMALLEST])
def test_integer_networks_need_no_library(level: str) -> None:
    target = level_target(level)
    texts = emit_program(*planned(pinned("tables"), unsigned=False), target).texts
    called = {n for t in texts for n in re.findall(r"\tblx?\t(\w+)", assembly(target, t))}
    assert not called


def integers_of(emit: Callable[[Builder, Value, Value], Value], x: Array, y: Array) -> Array:
    """int32 results of a function of two int32 operands, executed on this machine."""
    b = Builder()
    out, left, right = b.kernel(3)
    with b.loop("%begin", "%end") as index:
        at = b.mul(index, 4)
        operands = (b.load(I32, b.at(pointer, at)) for pointer in (left, right))
        b.store(I32, emit(b, *operands), b.at(out, at))
    array = np.zeros(x.size, np.int32)
    pointers = np.array([array.ctypes.data for array in (array, x, y)], np.uint64)
    (address,) = addresses(resolve("native"), [b.finish()])
    ENTRY(address)(pointers.ctypes.data, 0, x.size)
    return array


def requantized(b: Builder, total: Value, scale: Value) -> Value:
    scale = b.cast("bitcast", I32, scale, FLOAT)
    return level_target(SMALLEST).isa.requantized(b, 1, total, scale)


def rounded(b: Builder, bits: Value, _: Value) -> Value:
    return level_target(SMALLEST).isa.round_to_int(b, 1, b.cast("bitcast", I32, bits, FLOAT))


SUMS = arrays(np.int32, 64, elements=st.one_of(
    st.integers(-(2**31), 2**31 - 1), st.integers(-70_000, 70_000),
    st.builds(lambda n, d: n * 2**8 + d, st.integers(-(2**22), 2**22), st.integers(-1, 1)),
))  # fmt: skip
"""Sums of any size, and those half way between two float32."""
SCALES = st.one_of(
    st.floats(0, 4, width=32), st.integers(-40, 4).map(lambda n: 2.0**n),
    st.sampled_from([1e-45, 2.0**-127, 2.0**-126, 1e30, 3.4e38]),
    st.integers(1, 2**24).map(lambda n: n / 2**24),
)  # fmt: skip


@moderate
@given(sums=SUMS, scales=arrays(np.float32, 64, elements=SCALES))
def test_integer_requantization_is_that_of_float32(sums: Array, scales: Array) -> None:
    """One rounding after the other, as NumPy's float32 does them."""
    with np.errstate(over="ignore"):
        steps = np.rint(sums.astype(np.float32) * scales).astype(np.float64)
    actual = integers_of(requantized, sums, scales.view(np.int32)).astype(np.float64)
    small = np.abs(steps) < LARGE
    np.testing.assert_array_equal(actual[small], steps[small])
    np.testing.assert_array_equal(actual[~small], (np.sign(steps) * LARGE)[~small])


@moderate
@given(values=arrays(np.float32, 64, elements=st.one_of(
    st.floats(width=32), st.floats(-200, 200, width=32), st.integers(-300, 300).map(lambda n: n / 2)
)))  # fmt: skip
def test_integer_rounding_is_half_to_even(values: Array) -> None:
    actual = integers_of(rounded, values.view(np.int32), values.view(np.int32))
    inside = np.abs(values) < 2.0**31
    np.testing.assert_array_equal(actual[inside], np.rint(values[inside]).astype(np.int32))
    assert (actual[~inside] == np.iinfo(np.int32).min).all()


def flushed(values: Array) -> Array:
    """float32 as vectors of Cortex-M55 take and give it: zeros for what is below 2**-126."""
    return np.where(np.abs(values) < np.float32(2.0**-126), np.float32(0), values)


@moderate
@given(sums=SUMS, scales=arrays(np.float32, 64, elements=SCALES))
def test_flushing_small_numbers_changes_no_integer(sums: Array, scales: Array) -> None:
    with np.errstate(over="ignore", under="ignore"):
        exact = np.rint(sums.astype(np.float32) * scales)
        actual = np.rint(flushed(sums.astype(np.float32) * flushed(scales)))
    np.testing.assert_array_equal(actual, exact)
