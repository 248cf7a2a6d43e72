"""The proof that sums of two products stay within 16 bits."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.kernels.contraction.geometry import ContractionRuns
from quantglow.codegen.llvm.kernels.conv.pair_products import step_offsets
from quantglow.codegen.llvm.targets import level_target
from quantglow.support.arrays import Array

NEAR_BOUNDS = st.sampled_from([-128, -127, -65, -64, -63, -1, 0, 1, 2, 63, 64, 65, 126, 127])
QUADS = arrays(np.int8, (4,), elements=NEAR_BOUNDS | st.integers(-128, 127))


PRODUCT = level_target("avx2").isa.pair_product(Core())
assert PRODUCT is not None


def pair_sums(octets: Array, quad: Array) -> Array:
    """Sums of the first two and the last two products, exact."""
    return (octets.astype(np.int64) * quad.astype(np.int64)).reshape(2, 2).sum(axis=1)


def saturates(sums: Array) -> bool:
    limits = np.iinfo(np.int16)
    return bool((sums < limits.min).any() or (sums > limits.max).any())


@given(quad=QUADS)
@example(quad=np.array([64, 64, -64, -64], np.int8))
@example(quad=np.array([1, 127, -1, -127], np.int8))
@example(quad=np.array([2, 127, 0, 0], np.int8))
@example(quad=np.array([0, 0, -128, -1], np.int8))
@example(quad=np.array([-128, 127, 127, -128], np.int8))
def test_weights_fit_exactly_if_no_extreme_activation_saturates(quad: Array) -> None:
    extremes = itertools.product([0, 255], repeat=4)
    expected = not any(saturates(pair_sums(np.array(octets), quad)) for octets in extremes)
    assert bool(PRODUCT.fits(quad)) == expected


@given(quad=QUADS, octets=arrays(np.uint8, (4,)))
def test_weights_that_fit_never_saturate(quad: Array, octets: Array) -> None:
    assert not (PRODUCT.fits(quad) and saturates(pair_sums(octets, quad)))


def test_each_step_of_a_batch_is_judged_alone() -> None:
    quads = np.array([[[64, 64, 0, 0], [65, 64, 0, 0]], [[0, 64, 65, -127], [0, 0, 1, -128]]])
    np.testing.assert_array_equal(
        PRODUCT.fits(quads.astype(np.int8)), [[True, False], [True, True]]
    )


def test_steps_read_run_after_run() -> None:
    runs = ContractionRuns(outer=2, outer_pitch=1000, inner=2, inner_pitch=100, nbytes=9)
    expected = [0, 4, 8, 100, 104, 108, 1000, 1004, 1008, 1100, 1104, 1108]
    np.testing.assert_array_equal(step_offsets(runs), expected)
