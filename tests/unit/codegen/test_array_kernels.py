"""Native code of calibration, beside NumPy: at every level that runs here, and at guard pages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantglow.codegen.llvm.targets import LEVELS, resolve, runs_here
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import OPS, Constant, Input
from quantglow.ir.ops import Abs, Clip, Conv, Gemm, HardSigmoid, HardSwish, LeakyRelu, Neg, Relu
from quantglow.ir.ops import windows as window_products
from quantglow.ir.ops.arithmetic import round_reals
from quantglow.ir.ops.native import Ends, computing_with
from quantglow.ir.ops.unary import Unary
from quantglow.ir.ops.windows import Images, conv2d, products
from quantglow.ir.types import DType, ElementType, QuantParams, f32
from quantglow.profiling import Histogram
from quantglow.quantization.search.range_errors import Grids, energies
from quantglow.runtime.native.array_ops import array_kernels
from quantglow.support.arrays import Array
from quantglow.transforms.float.fusion import fuse_functions
from tests.generators.quantized_graphs.convolutions import Case, cases, floats, integers
from tests.support.effort import moderate
from tests.support.guarded import guarded

HERE = [level for level in LEVELS if runs_here(level)]
FUSED = [level for level in HERE if resolve(level).isa.has_fma]
CHANNELS = [1, 2, 3, 7, 15, 16, 17, 31, 33, 65]

levels = st.sampled_from(HERE)


class Windows(NamedTuple):
    """A convolution: padded images, weights, strides, dilations, groups."""

    x: Array
    w: Array
    strides: tuple[int, int]
    dilations: tuple[int, int]
    group: int


@st.composite
def windows(draw: st.DrawFn, depthwise: bool | None = None, integers: bool = True) -> Windows:
    """Windows of any geometry; groups are single channels, all channels, or between."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, strides, dilations = draw(pair), draw(pair), draw(pair)
    extra = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    size = [d * (k - 1) + 1 + e for d, k, e in zip(dilations, kernel, extra, strict=True)]
    is_depthwise = draw(st.booleans()) if depthwise is None else depthwise
    group = draw(st.sampled_from(CHANNELS if is_depthwise else [1, 1, 2, 3]))
    inputs, outputs = (1, 1) if is_depthwise else draw(st.tuples(*2 * [st.sampled_from(CHANNELS)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = (draw(st.integers(1, 3)), *size, group * inputs), (*kernel, inputs, group * outputs)
    x, w = (
        rng.integers(-9, 10, shape) if integers else rng.standard_normal(shape) for shape in shapes
    )
    return Windows(x.astype(np.float32), w.astype(np.float32), strides, dilations, group)


@pytest.mark.slow
@moderate
@given(levels, windows(), st.booleans())
def test_sums_of_integers_are_exact(level: str, given_: Windows, at_end: bool) -> None:
    x, w, *geometry = given_
    expected = conv2d(Images.of(x.astype(np.float64)), w.astype(np.float64), *geometry)
    bias = np.arange(w.shape[-1], dtype=np.float32)
    ends = Ends(guarded(bias, at_end), -20.0, 50.0)
    with computing_with(array_kernels(level)):
        actual = conv2d(Images.of(guarded(x, at_end)), guarded(w, at_end), *geometry)
        ended = conv2d(Images.of(guarded(x, at_end)), guarded(w, at_end), *geometry, ends=ends)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(ended, np.clip(expected + bias, -20, 50))
    np.testing.assert_array_equal(ended, conv2d(Images.of(x), w, *geometry, ends=ends))


@moderate
@given(windows(integers=False))
def test_sums_are_the_same_at_every_level_with_fused_multiply_add(given_: Windows) -> None:
    collected = []
    for level in FUSED:
        with computing_with(array_kernels(level)):
            collected.append(conv2d(Images.of(given_.x), *given_[1:]))
    for other in collected[1:]:
        np.testing.assert_array_equal(collected[0], other)
    exact = conv2d(Images.of(given_.x.astype(np.float64)), given_.w.astype(np.float64), *given_[2:])
    for sums in collected:
        np.testing.assert_allclose(sums, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("level", HERE)
def test_results_end_at_a_guard_page(level: str) -> None:
    rng, ops = np.random.default_rng(0), array_kernels(level)
    for channels, count in ((1, 1), (17, 3), (33, 9)):
        x = rng.standard_normal((1, 1, count, channels)).astype(np.float32)
        w = rng.standard_normal((1, 1, channels, channels)).astype(np.float32)
        result = guarded(np.empty_like(x), at_end=True)
        ops.conv2d(x, w, (1, 1), (1, 1), None, result)
        np.testing.assert_allclose(result, x @ w[0, 0], rtol=1e-4, atol=1e-5)


@moderate
@given(
    st.sampled_from([False, True]).flatmap(lambda wide: cases(wide=wide)),
    st.sampled_from([1, 5, window_products.PART_PIXELS]),
    st.booleans(),
)
def test_int8_convolutions_are_those_of_numpy(case: Case, pixels: int, unsigned: bool) -> None:
    if unsigned:
        bytes_ = [DType.U8 if dtype is DType.I8 else dtype for dtype in case.dtypes]
        case = replace(case, dtypes=tuple(bytes_), zero_points=tuple(np.abs(case.zero_points)))
    graph, feeds = integers(case)
    parts = {"NATIVE_PART_NBYTES": 0, "PART_PIXELS": pixels}
    with computing_with(array_kernels()), mock.patch.multiple(window_products, **parts):
        results = interpret(graph, feeds)
    for one, other in zip(results, interpret(graph, feeds), strict=True):
        np.testing.assert_array_equal(one, other)


@moderate
@given(cases())
def test_float_convolutions_are_those_of_numpy_up_to_rounding(case: Case) -> None:
    graph, feeds = floats(case)
    with computing_with(array_kernels()):
        results = interpret(graph, feeds)
    for one, other in zip(results, interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_residual", [False, True])
def test_functions_of_layers_are_applied(has_residual: bool) -> None:
    rng = np.random.default_rng(0)
    x, r = (Input(name=name, tensor=f32(1, 5, 6, 7)) for name in "xr")
    w = Constant(name="w", value=rng.standard_normal((3, 3, 7, 7)).astype(np.float32))
    layer = Conv(name="c", x=x, w=w, residual=r if has_residual else None, pads=(1, 1, 1, 1))
    inputs = (x, r) if has_residual else (x,)
    graph = Graph(inputs, (("y", HardSwish(name="y", x=layer)),), source_hash="layer")
    fused = fuse_functions(graph, {"y"})
    (built,) = (node for node in fused.nodes if isinstance(node, Conv))
    assert built.activation is not None
    feeds = {node.name: rng.standard_normal((1, 5, 6, 7)).astype(np.float32) for node in inputs}
    with computing_with(array_kernels()):
        (actual,) = interpret(fused, feeds)
    np.testing.assert_allclose(actual, interpret(graph, feeds)[0], rtol=1e-4, atol=1e-4)


@given(levels, st.tuples(*[st.sampled_from([0, 1, 2, 17, 40])] * 3), st.booleans())
def test_matrix_products_are_those_of_numpy(
    level: str, size: tuple[int, int, int], biased: bool
) -> None:
    rows, inputs, outputs = size
    rng = np.random.default_rng(0)
    x, w, b = (
        rng.integers(-9, 10, shape).astype(np.float32)
        for shape in ((rows, inputs), (inputs, outputs), (outputs,))
    )
    given_, weights = Input(name="x", tensor=f32(rows, inputs)), Constant(name="w", value=w)
    node = Gemm(name="g", x=given_, w=weights, b=Constant(name="b", value=b) if biased else None)
    expected = np.maximum(x @ w + b * biased, -20)
    with computing_with(array_kernels(level)):
        actual = replace(node, low=-20.0).evaluate(x, w, b if biased else None)
    np.testing.assert_array_equal(actual, expected)


@given(st.tuples(st.integers(1, 3), *[st.sampled_from([0, 1, 2, 17, 40])] * 3), st.integers(0, 99))
def test_products_of_groups_are_the_same_at_every_level_with_fused_multiply_add(
    size: tuple[int, int, int, int], seed: int
) -> None:
    groups, rows, inputs, outputs = size
    rng = np.random.default_rng(seed)
    x, w = (
        rng.standard_normal((groups, *shape)).astype(np.float32)
        for shape in ((rows, inputs), (inputs, outputs))
    )
    collected = []
    for level in FUSED:
        with computing_with(array_kernels(level)):
            collected.append(products(x, w))
    for other in collected[1:]:
        np.testing.assert_array_equal(collected[0], other)
    for sums in collected:
        np.testing.assert_allclose(sums, x @ w, rtol=1e-4, atol=1e-4)


def test_not_a_number_stays_in_sums_and_bounds() -> None:
    x, w = np.full((1, 1, 3, 5), np.nan, np.float32), np.ones((1, 1, 5, 4), np.float32)
    with computing_with(array_kernels()):
        assert np.isnan(conv2d(Images.of(x), w, (1, 1), (1, 1), 1, ends=Ends(None, 0.0, 6.0))).all()


reals = st.one_of(
    st.floats(-300, 300, width=32),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 2.0**-149, 3.4e38]),
)
arrays = hnp.arrays(np.float32, st.integers(0, 100), elements=reals)
elements = st.builds(
    lambda scale, zero, kind: ElementType(kind, QuantParams.per_tensor(scale, zero)),
    st.floats(2.0**-10, 10, width=32),
    st.integers(-100, 100),
    st.sampled_from([DType.I8, DType.I16]),
)


@given(levels, arrays, elements)
def test_rounding_is_that_of_numpy(level: str, x: Array, element: ElementType) -> None:
    expected = round_reals(x, element)
    with computing_with(array_kernels(level)):
        np.testing.assert_array_equal(round_reals(guarded(x, at_end=True), element), expected)


@given(levels, arrays)
def test_histograms_are_those_of_numpy(level: str, x: Array) -> None:
    expected = Histogram.of(x)
    with computing_with(array_kernels(level)):
        assert Histogram.of(guarded(x, at_end=True)) == expected


@given(levels, arrays)
def test_counts_stay_in_their_tables(level: str, x: Array) -> None:
    counts = guarded(np.zeros(5, np.int64), at_end=True)
    some = np.resize(x, 64) if x.size else np.zeros(64, np.float32)
    array_kernels(level).count(some, 1.0, -2, counts)
    assert counts.sum() == 64


@given(levels, st.integers(1, 9), st.sampled_from(CHANNELS), st.integers(0, 99))
def test_reaches_are_those_of_numpy(level: str, rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    np.testing.assert_array_equal(
        array_kernels(level).reaches(guarded(x, at_end=True)), np.abs(x).max(axis=0)
    )


@given(levels, st.integers(1, 9), st.sampled_from(CHANNELS), st.sampled_from([0.5, math.inf]))
def test_quotients_are_those_of_numpy(level: str, rows: int, columns: int, high: float) -> None:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    divisors = rng.uniform(0.1, 1, columns).astype(np.float32)
    result = guarded(np.empty_like(x), at_end=True)
    array_kernels(level).quotients(guarded(x, at_end=True), divisors, high, result)
    np.testing.assert_array_equal(result, np.minimum(x / divisors, np.float32(high)))


@given(levels, st.integers(0, 70), st.sampled_from([(0.0, 6.0), (-math.inf, 1.0)]))
def test_missing_sums_are_those_of_numpy(
    level: str, count: int, bounds: tuple[float, float]
) -> None:
    rng, (low, high) = np.random.default_rng(count), bounds
    reference, now = rng.choice(
        np.float32([np.nan, -np.inf, -1, -0.0, 0, 0.5, 1, 6, 7, np.inf]), (2, count)
    )
    sums = guarded(now, at_end=True)
    array_kernels(level).missing_sums(guarded(reference, at_end=True), sums, low, high)
    with np.errstate(invalid="ignore"):
        expected = reference - now
    expected[(reference <= low) & (now <= low) | (reference >= high) & (now >= high)] = 0
    np.testing.assert_array_equal(sums, expected)


KINDS = (np.float32, np.int8, np.uint8)


@moderate
@given(
    levels,
    st.sampled_from(KINDS),
    st.tuples(*[st.integers(0, n) for n in (3, 5, 5)], st.sampled_from([0, *CHANNELS])),
    st.tuples(*4 * [st.integers(0, 3)]),
    st.tuples(st.integers(0, 12), st.integers(1, 12)),
    st.booleans(),
)
def test_padded_lines_are_those_of_numpy(
    level: str,
    kind: type,
    shape: tuple[int, ...],
    pads: tuple[int, int, int, int],
    lines: tuple[int, int],
    at_end: bool,
) -> None:
    x = np.random.default_rng(sum(shape)).integers(0, 100, shape).astype(kind)
    images = Images(guarded(x, at_end), np.float32, 0 if kind is np.float32 else 9, pads)
    first = min(lines[0], max(images.shape[1] - 1, 0))
    selected = slice(min(1, len(x)), None), first, min(first + lines[1], images.shape[1])
    expected = images.lines(*selected)
    with computing_with(array_kernels(level)):
        np.testing.assert_array_equal(images.lines(*selected), expected)


@given(levels, hnp.arrays(np.float32, st.integers(1, 100), elements=st.floats(-99, 99, width=32)))
def test_errors_of_rounding_are_those_of_numpy(level: str, x: Array) -> None:
    types = [ElementType(DType.I8, QuantParams.per_tensor(s, z)) for s, z in ((0.3, 7), (1.5, -90))]
    grids = Grids.of(types)
    expected, squares = grids.measure(x)
    with computing_with(array_kernels(level)):
        actual, sums = grids.measure(x)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_allclose(sums, squares, rtol=1e-9)


@given(
    levels,
    st.tuples(*[st.sampled_from(sizes) for sizes in ([1, 3], [1, 2], [1, 5, 40], CHANNELS)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_energies_are_those_of_numpy(
    level: str, shape: tuple[int, ...], centered: bool, seed: int
) -> None:
    x = (np.random.default_rng(seed).standard_normal(shape) + 1).astype(np.float32)
    expected = energies(x.astype(np.float64), centered)
    with computing_with(array_kernels(level)):
        np.testing.assert_allclose(energies(x, centered), expected, rtol=1e-5, atol=1e-9)


@moderate
@given(levels, windows(depthwise=True), st.integers(1, 3))
def test_moments_of_integers_are_exact(level: str, given_: Windows, times: int) -> None:
    x, w, strides, dilations, group = given_
    x = x * 28  # Up to 252, as of 8 bits less a zero point.
    kernel, ops = w.shape[:2], array_kernels(level)
    shape = conv2d(Images.of(x), w, strides, dilations, group).shape
    beside = np.random.default_rng(1).integers(-99, 99, shape).astype(np.float32)
    sums = ops.no_moments(kernel, group)
    for _ in range(times):
        ops.add_moments(sums, guarded(x, True), guarded(beside, True), kernel, strides, dilations)
    actual = ops.select_products(sums, kernel, group)
    taps = [
        conv2d(Images.of(x), one_tap(w, i, j), strides, dilations, group)
        for i, j in np.ndindex(*kernel)
    ]
    terms = np.stack([*taps, beside, np.ones_like(beside)]).reshape(len(taps) + 2, -1, group)
    expected = np.einsum("apc,bpc->cab", terms.astype(np.float64), terms.astype(np.float64))
    np.testing.assert_array_equal(actual, times * expected)


def one_tap(w: Array, i: int, j: int) -> Array:
    """Weights that give the values of one tap."""
    actual = np.zeros_like(w)
    actual[i, j] = 1
    return actual


X = Input(name="x", tensor=f32(1))
FUNCTIONS: list[Unary] = [
    Relu(name="y", x=X),
    Clip(name="y", x=X, low=-1.0, high=2.5),
    Neg(name="y", x=X),
    Abs(name="y", x=X),
    LeakyRelu(name="y", x=X, alpha=0.3),
    HardSigmoid(name="y", x=X, alpha=0.17, beta=0.4),
    HardSwish(name="y", x=X),
]


@given(
    levels,
    st.sampled_from(FUNCTIONS),
    hnp.arrays(np.float32, st.integers(1, 70), elements=st.floats(width=32)),
    st.booleans(),
)
def test_functions_in_exact_steps_give_the_numbers_of_numpy(
    level: str, function: Unary, values: Array, at_end: bool
) -> None:
    with np.errstate(all="ignore"):
        expected = function.reference(values)
    with computing_with(array_kernels(level)):
        actual = function.reference(guarded(values, at_end))
    np.testing.assert_array_equal(actual, expected)


def test_every_function_in_exact_steps_is_tried() -> None:
    unary = [kind for kind in OPS.values() if issubclass(kind, Unary)]
    exact = {kind for kind in unary if Trait.EXACT_STEPS in kind.traits}
    assert exact == {type(function) for function in FUNCTIONS}
