"""The int8 form of every product, against loops over Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.ops import Conv, ConvTranspose, Gemm, MatMul
from quantglow.ir.types import ElementType
from tests.support.effort import moderate
from tests.unit.ir.ops.exact import (
    constant,
    element,
    filled,
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
    per_channel,
    scale,
    seeds,
    zero,
)


@moderate
@given(int8, st.one_of(outs), bounds, seeds, st.sampled_from([1, 2]), st.booleans())
def test_conv(
    kind: ElementType, out: ElementType, limits: Any, seed: int, group: int, add: bool
) -> None:
    x, (w, w_kind) = drawn(seed, kind, 1, 4, 3, 2), per_channel(seed, 2, 3, 2 // group, 4)
    b = np.random.default_rng(seed).integers(-2000, 2000, 4).astype(np.int32)
    other, r = element(0.037, 11), drawn(seed + 1, element(0.037, 11), 1, 3, 4, 4)
    node = Conv(
        name="y", x=tensor(x.shape, kind), w=constant(w, w_kind), b=constant(b),
        residual=tensor(r.shape, other) if add else None, strides=(2, 1), pads=(2, 1, 1, 2),
        group=group, low=limits[0], high=limits[1], out=out,
    )  # fmt: skip

    def value(at: tuple[int, ...]) -> int:
        n, i, j, o = at
        total = int(b[o])
        first = o // (4 // group) * (2 // group)
        for di, dj, c in indices(w.shape[:3]):
            row, column = i * 2 - 2 + di, j - 1 + dj
            if 0 <= row < 4 and 0 <= column < 3:
                total += (int(x[n, row, column, first + c]) - zero(kind)) * int(w[di, dj, c, o])
        assert w_kind.quant is not None
        steps = scaled(total, w_kind.quant.scales[o] * scale(kind) / scale(out))
        if add:
            steps = single(steps + scaled(int(r[at]) - 11, scale(other) / scale(out)))
        return stored(steps, out, *limits)

    arrays = (x, w, b, r) if add else (x, w, b)
    np.testing.assert_array_equal(node.evaluate(*arrays), filled(node, value))


@moderate
@given(int8, outs, seeds)
def test_conv_transpose(kind: ElementType, out: ElementType, seed: int) -> None:
    x, (w, w_kind) = drawn(seed, kind, 1, 2, 3, 2), per_channel(seed, 3, 2, 2, 2)
    node = ConvTranspose(
        name="y", x=tensor(x.shape, kind), w=constant(w, w_kind), strides=(2, 3),
        pads=(1, 0, 0, 1), output_padding=(1, 0), out=out,
    )  # fmt: skip
    sums = np.zeros((7, 9, 2), object)
    for i, j, c, di, dj, o in indices((2, 3, 2, 3, 2, 2)):
        product = (int(x[0, i, j, c]) - zero(kind)) * int(w[di, dj, c, o])
        sums[2 * i + di, 3 * j + dj, o] += product
    assert w_kind.quant is not None
    factors = w_kind.quant.scales

    def value(at: tuple[int, ...]) -> int:
        _, i, j, o = at
        return stored(scaled(sums[i + 1, j, o], factors[o] * scale(kind) / scale(out)), out)

    np.testing.assert_array_equal(node.evaluate(x, w), filled(node, value))


@moderate
@given(int8, outs, bounds, seeds)
def test_gemm(kind: ElementType, out: ElementType, limits: Any, seed: int) -> None:
    x, (w, w_kind) = drawn(seed, kind, 3, 5), per_channel(seed, 5, 4)
    node = Gemm(
        name="y", x=tensor(x.shape, kind), w=constant(w, w_kind), low=limits[0], high=limits[1],
        out=out,
    )  # fmt: skip
    assert w_kind.quant is not None
    factors = w_kind.quant.scales

    def value(at: tuple[int, ...]) -> int:
        i, j = at
        total = sum((int(x[i, k]) - zero(kind)) * int(w[k, j]) for k in range(5))
        return stored(scaled(total, factors[j] * scale(kind) / scale(out)), out, *limits)

    np.testing.assert_array_equal(node.evaluate(x, w), filled(node, value))


@moderate
@given(int8, int8, outs, seeds)
def test_matmul(left: ElementType, right: ElementType, out: ElementType, seed: int) -> None:
    x, y = drawn(seed, left, 2, 3, 4), drawn(seed + 1, right, 1, 4, 2)
    node = MatMul(name="y", x=tensor(x.shape, left), y=tensor(y.shape, right, "z"), out=out)

    def value(at: tuple[int, ...]) -> int:
        n, i, j = at
        pairs = ((int(x[n, i, k]) - zero(left), int(y[0, k, j]) - zero(right)) for k in range(4))
        return stored(
            scaled(sum(a * b for a, b in pairs), scale(left) * scale(right) / scale(out)), out
        )

    np.testing.assert_array_equal(node.evaluate(x, y), filled(node, value))
