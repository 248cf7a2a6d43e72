"""The int8 form of every operator but products, against loops over Python integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.ops import (
    Add,
    AveragePool,
    Dequantize,
    LayerNormalization,
    Max,
    Min,
    Mul,
    Pad,
    PRelu,
    Quantize,
    ReduceMean,
    Rescale,
    Resize,
    Softmax,
    Sub,
    Table,
)
from quantglow.ir.types import DType, ElementType, QuantParams
from tests.support.effort import moderate
from tests.unit.ir.ops.exact import (
    constant,
    element,
    filled,
    floats,
    indices,
    scaled,
    single,
    stored,
    tensor,
)
from tests.unit.ir.ops.quantized_operands import (
    bounds,
    drawn,
    int8,
    outs,
    scale,
    scales,
    seeds,
    zero,
)

FUNCTIONS = {
    Add: lambda a, b: single(a + b),
    Sub: lambda a, b: single(a - b),
    Max: max,
    Min: min,
}


@moderate
@given(st.sampled_from([*FUNCTIONS]), st.tuples(outs, outs, outs), bounds, seeds)
def test_binary(op: Any, kinds: tuple[ElementType, ...], limits: Any, seed: int) -> None:
    left, right, out = kinds
    x, y = drawn(seed, left, 3, 4), drawn(seed + 1, right, 4)
    node = op(
        name="y", x=tensor(x.shape, left), y=tensor(y.shape, right, "z"), low=limits[0],
        high=limits[1], out=out,
    )  # fmt: skip

    def value(at: tuple[int, ...]) -> int:
        a = scaled(int(x[at]) - zero(left), scale(left) / scale(out))
        b = scaled(int(y[at[1]]) - zero(right), scale(right) / scale(out))
        return stored(FUNCTIONS[op](a, b), out, *limits)

    np.testing.assert_array_equal(node.evaluate(x, y), filled(node, value))


@moderate
@given(int8, int8, outs, seeds)
def test_mul(left: ElementType, right: ElementType, out: ElementType, seed: int) -> None:
    x, y = drawn(seed, left, 3, 4), drawn(seed + 1, right, 3, 1)
    node = Mul(name="y", x=tensor(x.shape, left), y=tensor(y.shape, right, "z"), out=out)

    def value(at: tuple[int, ...]) -> int:
        product = (int(x[at]) - zero(left)) * (int(y[at[0], 0]) - zero(right))
        return stored(scaled(product, scale(left) * scale(right) / scale(out)), out)

    np.testing.assert_array_equal(node.evaluate(x, y), filled(node, value))


@moderate
@given(st.sampled_from([Mul, Add]), outs, outs, seeds, st.booleans())
def test_binary_with_a_float_constant(
    op: Any, kind: ElementType, out: ElementType, seed: int, swap: bool
) -> None:
    x = drawn(seed, kind, 3, 4)
    c = np.random.default_rng(seed).uniform(-2, 2, 4).astype(np.float32)
    operands = (tensor(x.shape, kind), constant(c))
    node = op(name="y", x=operands[swap], y=operands[not swap], out=out)

    def value(at: tuple[int, ...]) -> int:
        q, factor = int(x[at]) - zero(kind), float(c[at[1]])
        if op is Mul:
            return stored(scaled(q, factor * scale(kind) / scale(out)), out)
        shifted = scaled(q, scale(kind) / scale(out)) + single(factor / scale(out))
        return stored(single(shifted), out)

    arrays = (c, x) if swap else (x, c)
    np.testing.assert_array_equal(node.evaluate(*arrays), filled(node, value))


@moderate
@given(outs, outs, seeds)
def test_prelu(kind: ElementType, out: ElementType, seed: int) -> None:
    x = drawn(seed, kind, 3, 4)
    slope = np.random.default_rng(seed).uniform(-1, 1, 4).astype(np.float32)
    node = PRelu(name="y", x=tensor(x.shape, kind), slope=constant(slope), out=out)

    def value(at: tuple[int, ...]) -> int:
        q = int(x[at]) - zero(kind)
        factor = float(slope[at[1]]) * scale(kind) if q < 0 else scale(kind)
        return stored(scaled(q, factor / scale(out)), out)

    np.testing.assert_array_equal(node.evaluate(x, slope), filled(node, value))


@moderate
@given(int8, outs, seeds, st.booleans())
def test_average_pool(kind: ElementType, out: ElementType, seed: int, padded: bool) -> None:
    x = drawn(seed, kind, 1, 4, 5, 2)
    node = AveragePool(
        name="y", x=tensor(x.shape, kind), kernel=(2, 3), strides=(1, 2), pads=(1, 1, 0, 1),
        count_include_pad=padded, out=out,
    )  # fmt: skip

    def value(at: tuple[int, ...]) -> int:
        _, i, j, c = at
        taps = [(i - 1 + di, 2 * j - 1 + dj) for di, dj in indices((2, 3))]
        inside = [(r, s) for r, s in taps if 0 <= r < 4 and 0 <= s < 5]
        total = sum(int(x[0, r, s, c]) - zero(kind) for r, s in inside)
        share = 1 / (6 if padded else len(inside))
        return stored(scaled(total, scale(kind) / scale(out) * share), out)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))


@moderate
@given(outs, outs, seeds)
def test_reduce_mean(kind: ElementType, out: ElementType, seed: int) -> None:
    x = drawn(seed, kind, 2, 3, 5, 2)
    node = ReduceMean(name="y", x=tensor(x.shape, kind), axes=(1, 2), keepdims=False, out=out)

    def value(at: tuple[int, ...]) -> int:
        n, c = at
        total = sum(int(x[n, i, j, c]) - zero(kind) for i, j in indices((3, 5)))
        return stored(scaled(total, scale(kind) / (scale(out) * 15)), out)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))


@moderate
@given(outs, outs, seeds)
def test_rescale(kind: ElementType, out: ElementType, seed: int) -> None:
    x = drawn(seed, kind, 40)
    node = Rescale(name="y", x=tensor(x.shape, kind), out=out)

    def value(at: tuple[int, ...]) -> int:
        return stored(scaled(int(x[at]) - zero(kind), scale(kind) / scale(out)), out)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))


@moderate
@given(outs, st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_quantize(out: ElementType, values: list[float]) -> None:
    x = np.array([*values, 0.5 * scale(out), 1.5 * scale(out), -2.5 * scale(out)], np.float32)
    node = Quantize(name="y", x=floats(x.shape), out=out)
    lowest, highest = out.dtype.limits

    def value(at: tuple[int, ...]) -> int:
        real = float(x[at])
        if math.isnan(real):
            return lowest
        if math.isinf(real) or abs(real / scale(out)) > 1e6:
            return highest if real > 0 else lowest
        return stored(single(real / scale(out)), out)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))


@moderate
@given(st.lists(st.tuples(scales, st.integers(-128, 127)), min_size=1, max_size=4), seeds)
def test_quantize_per_axis_is_quantize_per_tensor_of_each_slice(
    params: list[tuple[float, int]], seed: int
) -> None:
    x = np.random.default_rng(seed).normal(0, 20, (3, len(params), 2)).astype(np.float32)
    x[0, :, 0] = np.nan, *x[0, 1:, 0]
    quant = QuantParams(tuple(s for s, _ in params), tuple(z for _, z in params), 1)
    node = Quantize(name="y", x=floats(x.shape), out=ElementType(DType.I8, quant))
    actual = node.evaluate(x)
    for i, (s, z) in enumerate(params):
        one = Quantize(name="y", x=floats((3, 2)), out=element(s, z))
        np.testing.assert_array_equal(actual[:, i], one.evaluate(x[:, i]))


@moderate
@given(outs, seeds)
def test_dequantize(kind: ElementType, seed: int) -> None:
    x = drawn(seed, kind, 30)
    node = Dequantize(name="y", x=tensor(x.shape, kind))
    expected = filled(node, lambda at: scaled(int(x[at]) - zero(kind), scale(kind)))
    np.testing.assert_array_equal(node.evaluate(x), expected)


@moderate
@given(outs, outs, st.integers(1, 70), seeds)
def test_layer_normalization(kind: ElementType, out: ElementType, columns: int, seed: int) -> None:
    x = drawn(seed, kind, 2, columns)
    node = LayerNormalization(name="y", x=tensor(x.shape, kind), epsilon=0.5, out=out)

    def total(values: list[float]) -> float:
        sums = [0.0] * 64
        for index, value in enumerate(values):
            sums[index % 64] = single(sums[index % 64] + value)
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [single(a + b) for a, b in zip(sums[:half], sums[half:], strict=True)]
        return sums[0]

    def value(at: tuple[int, ...]) -> int:
        reals = [scaled(int(code) - zero(kind), scale(kind)) for code in x[at[0]]]
        mean = single(total(reals) / columns)
        centered = [single(real - mean) for real in reals]
        variance = single(total([single(c * c) for c in centered]) / columns)
        inverse = single(1 / single(math.sqrt(single(variance + 0.5))))
        return stored(single(single(centered[at[1]] * inverse) / scale(out)), out)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))


@moderate
@given(int8, outs, st.integers(1, 9), seeds)
def test_softmax(kind: ElementType, out: ElementType, columns: int, seed: int) -> None:
    x = drawn(seed, kind, 2, columns)
    node = Softmax(name="y", x=tensor(x.shape, kind), out=out)
    one = 2 ** (31 - columns.bit_length()) - 1

    def power(row: int, column: int) -> int:
        return round(one * math.exp(-scale(kind) * (int(x[row].max()) - int(x[row, column]))))

    def value(at: tuple[int, ...]) -> int:
        total = sum(power(at[0], c) for c in range(columns))
        assert total < 2**31
        share = single(single(power(*at)) / single(total))
        return stored(single(share * single(1 / scale(out))), out)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))


@moderate
@given(int8, seeds)
def test_table(kind: ElementType, seed: int) -> None:
    x, values = drawn(seed, kind, 30), drawn(seed + 1, element(0.5, 3, DType.I16), 256)
    node = Table(
        name="y", x=tensor(x.shape, kind), table=constant(values), out=element(0.5, 3, DType.I16)
    )
    expected = filled(node, lambda at: int(values[int(x[at]) + 128]))
    np.testing.assert_array_equal(node.evaluate(x, values), expected)


@moderate
@given(int8, st.sampled_from([0.0, 1.5, -3.0, 1e9, -1e9]), seeds)
def test_pad(kind: ElementType, real: float, seed: int) -> None:
    x = drawn(seed, kind, 2, 3)
    node = Pad(name="y", x=tensor(x.shape, kind), before=(1, 0), after=(0, 2), value=real)

    def value(at: tuple[int, ...]) -> int:
        i, j = at[0] - 1, at[1]
        inside = i >= 0 and j < 3
        return int(x[i, j]) if inside else stored(single(real / scale(kind)), kind)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))


@moderate
@given(int8, seeds)
def test_resize_by_two_averages_neighbours(kind: ElementType, seed: int) -> None:
    x = drawn(seed, kind, 1, 1, 4, 1)
    node = Resize(name="y", x=tensor(x.shape, kind), sizes=(1, 8), scales=(1.0, 2.0), mode="linear")

    def value(at: tuple[int, ...]) -> int:
        source = min(max((at[2] + 0.5) / 2 - 0.5, 0), 3)
        first = int(source)
        second, u = min(first + 1, 3), source - first
        a, b = (int(x[0, 0, i, 0]) - zero(kind) for i in (first, second))
        return stored(a * (1 - u) + b * u, kind)

    np.testing.assert_array_equal(node.evaluate(x), filled(node, value))
