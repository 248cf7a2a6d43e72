"""Convolutions, pools and resizes on drawn shapes mean what onnxruntime says they mean."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.operators.tensor import resampling as resize
from quantglow.interpreter import interpret
from quantglow.support.errors import UnsupportedOpError
from tests.unit.importer.onnx.onnx_models import (
    Const,
    assert_agrees,
    by_onnxruntime,
    floats,
    ints,
    single,
    weights,
)


@st.composite
def windows(draw: st.DrawFn, rank: int) -> dict[str, Any]:
    """Attributes of a window op that fits images of 8 and more."""

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel = each(1, 3)
    strides = [draw(st.integers(1, k)) for k in kernel]  # onnxruntime refuses gaps with SAME
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    mode = draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if mode == "pads":
        limits = [st.integers(0, k - 1) for k in kernel * 2]
        attributes["pads"] = [draw(limit) for limit in limits]
    else:
        attributes["auto_pad"] = mode
    if mode in ("pads", "VALID"):
        attributes["dilations"] = each(1, 2)
    return attributes


def image(draw: st.DrawFn, channels: int, rank: int, smallest: int = 8) -> np.ndarray:
    sizes = draw(st.lists(st.integers(smallest, 11), min_size=rank, max_size=rank))
    return floats(draw(st.integers(1, 2)), channels, *sizes)


@given(st.data(), st.sampled_from([1, 2, 3]), st.integers(1, 3), st.booleans())
def test_conv_agrees_with_onnxruntime(
    data: st.DataObject, rank: int, group: int, biased: bool
) -> None:
    attributes = data.draw(windows(rank))
    x = image(data.draw, 2 * group, rank)
    w = weights(3 * group, 2, *attributes["kernel_shape"])
    bias = (weights(3 * group),) if biased else ()
    assert_agrees(*single("Conv", x, w, *bias, group=group, **attributes), tolerance=1e-4)


def test_depthwise_conv_agrees_with_onnxruntime() -> None:
    single_model = single(
        "Conv", floats(1, 6, 7, 7), weights(6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]
    )
    assert_agrees(*single_model)


@given(st.data(), st.sampled_from([1, 2, 3]), st.integers(1, 2))
def test_conv_transpose_agrees_with_onnxruntime(data: st.DataObject, rank: int, group: int) -> None:
    attributes = data.draw(windows(rank))
    if attributes.get("auto_pad") == "VALID" or rank == 3:
        attributes.pop("auto_pad", None)
    if "auto_pad" not in attributes:
        attributes["output_padding"] = [
            data.draw(st.integers(0, stride - 1)) for stride in attributes["strides"]
        ]
    x = image(data.draw, 2 * group, rank)
    w = weights(2 * group, 3, *attributes["kernel_shape"])
    single_model = single("ConvTranspose", x, w, weights(3 * group), group=group, **attributes)
    assert_agrees(*single_model, tolerance=1e-4)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("output_shape", [(8, 8), (9, 10), (10, 9)])
def test_conv_transpose_reaches_its_output_shape(auto_pad: str, output_shape: tuple) -> None:
    single_model = single(
        "ConvTranspose",
        floats(1, 2, 4, 4),
        weights(2, 3, 4, 4),
        strides=[2, 2],
        output_shape=output_shape,
        auto_pad=auto_pad,
    )
    assert_agrees(*single_model)


@given(st.data(), st.sampled_from([1, 2, 3]), st.booleans())
def test_max_pool_agrees_with_onnxruntime(data: st.DataObject, rank: int, ceil: bool) -> None:
    x = image(data.draw, 3, rank)
    assert_agrees(*single("MaxPool", x, ceil_mode=int(ceil), **data.draw(windows(rank))))


@given(
    st.data(), st.sampled_from([1, 2, 3]), st.booleans(), st.booleans(), st.sampled_from([11, 19])
)
def test_average_pool_agrees_with_onnxruntime(
    data: st.DataObject, rank: int, ceil: bool, padded: bool, opset: int
) -> None:
    attributes = data.draw(windows(rank))
    if opset < 19:
        attributes.pop("dilations", None)
    attributes |= {"ceil_mode": int(ceil), "count_include_pad": int(padded)}
    x = image(data.draw, 3, rank)
    assert_agrees(*single("AveragePool", x, opset=opset, **attributes))


COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
scale = st.sampled_from([0.5, 0.6, 1.0, 1.5, 2.0, 2.3])


@given(st.data(), st.sampled_from(["nearest", "linear"]), st.sampled_from([11, 13, 18]))
def test_resize_by_scales_agrees_with_onnxruntime(
    data: st.DataObject, mode: str, opset: int
) -> None:
    scales = np.array([1, 1, data.draw(scale), data.draw(scale)], np.float32)
    single_model = single(
        "Resize",
        image(data.draw, 2, 2, smallest=2),
        Const(np.zeros(0, np.float32)),
        Const(scales),
        opset=opset,
        **resize_attributes(data.draw, mode, opset),
    )
    assert_agrees(*single_model, tolerance=1e-4)


@given(st.data(), st.sampled_from(["nearest", "linear"]), st.sampled_from([13, 18]))
def test_resize_to_sizes_agrees_with_onnxruntime(
    data: st.DataObject, mode: str, opset: int
) -> None:
    x = image(data.draw, 2, 2, smallest=2)
    h, w = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    sizes, attributes = ints(*x.shape[:2], h, w), resize_attributes(data.draw, mode, opset)
    single_model = single("Resize", x, None, None, sizes, opset=opset, **attributes)
    rounding = attributes.get("nearest_mode", "")
    if attributes["coordinate_transformation_mode"] == "asymmetric" and "round" in rounding:
        assert_takes_neighbors(*single_model)
    else:
        assert_agrees(*single_model, 1e-4)


def assert_takes_neighbors(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Each element is the nearest; in the middle between two elements it is one of these.

    Whether i * 7 / 2 is 3.5 or one ulp less is up to how onnxruntime was compiled.
    """
    (actual,), (expected,) = interpret(import_model(model), feeds), by_onnxruntime(model, feeds)
    x = feeds["x0"]
    rows, columns = (list(nearest(x.shape[a], expected.shape[a])) for a in (2, 3))
    for i, j in np.ndindex(*expected.shape[2:]):
        near = [x[:, :, a, b] for a in rows[i] for b in columns[j]]
        for item in (actual, expected):
            assert any(np.array_equal(item[:, :, i, j], value) for value in near)


def nearest(length: int, size: int) -> Iterator[set[int]]:
    """The elements of an axis that lie nearest to each element of the resized one: two in ties."""
    for i in range(size):
        place = Fraction(i * length, size)
        nearest_below, nearest_above = ceil(place - Fraction(1, 2)), floor(place + Fraction(1, 2))
        yield {min(a, length - 1) for a in (nearest_below, nearest_above)}


def resize_attributes(draw: st.DrawFn, mode: str, opset: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": draw(st.sampled_from(COORDINATES)),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = draw(st.sampled_from(NEAREST))
    elif opset >= 18 and draw(st.booleans()):
        attributes |= {"antialias": 1, "exclude_outside": draw(st.integers(0, 1))}
    return attributes


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10_agrees_with_onnxruntime(mode: str) -> None:
    scales = Const(np.array([1, 1, 2, 1.5], np.float32))
    assert_agrees(*single("Resize", floats(1, 2, 3, 4), scales, opset=10, mode=mode))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_takes_signals(mode: str) -> None:
    scales = Const(np.array([1, 1, 2], np.float32))
    assert_agrees(*single("Resize", floats(1, 2, 3), None, scales, mode=mode))


def test_antialiasing_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of an axis are its pixels times its results."""
    inputs: dict[str, Any] = {"opset": 18, "mode": "linear", "antialias": 1}
    model, _ = single("Resize", floats(1, 2, 3, 4), None, None, ints(1, 2, 6, 8), **inputs)
    monkeypatch.setattr(resize, "MAX_WEIGHTS", 32)
    assert "AntialiasedResize" in {node.op for node in import_model(model).nodes}
    monkeypatch.setattr(resize, "MAX_WEIGHTS", 31)
    with pytest.raises(UnsupportedOpError, match="more than 31 weights"):
        import_model(model)


def test_resize_takes_axes() -> None:
    x, sizes = floats(1, 2, 3, 4), ints(6, 8)
    assert_agrees(*single("Resize", x, None, None, sizes, opset=18, axes=[2, 3], mode="linear"))


forwards = st.tuples(st.sampled_from([-(2**63), -9, -4, 0, 1]), st.sampled_from([-1, 3, 2**63 - 1]))
backwards = st.tuples(st.sampled_from([-1, 3, 9, 2**63 - 1]), st.sampled_from([-(2**63), -9, -4]))
bounds = st.one_of(
    st.tuples(forwards, st.sampled_from([1, 2, 7])), st.tuples(backwards, st.sampled_from([-1, -3]))
).map(lambda drawn: (*drawn[0], drawn[1]))


@given(st.data(), st.sampled_from([10, 13]))
def test_slice_clamps_as_onnxruntime(data: st.DataObject, opset: int) -> None:
    axes = data.draw(st.permutations([0, -2, 2]))[: data.draw(st.integers(1, 3))]
    columns = [data.draw(bounds) for _ in axes]
    shape = (5, 4, 6)
    starts, ends, steps = (ints(*column) for column in zip(*columns, strict=True))
    assert_agrees(*single("Slice", floats(*shape), starts, ends, ints(*axes), steps, opset=opset))


@given(st.data(), st.sampled_from(["constant", "reflect", "edge"]))
def test_pad_agrees_with_onnxruntime(data: st.DataObject, mode: str) -> None:
    shape = (1, 4, 3, 5)
    smallest = -2 if mode == "constant" else 0
    pads = [data.draw(st.integers(smallest, d - 1)) for d in shape * 2]
    assume(all(b + a + d > 0 for b, a, d in zip(pads[:4], pads[4:], shape, strict=True)))
    value = (Const(np.array(-1.25, np.float32)),) if mode == "constant" else ()
    assert_agrees(*single("Pad", floats(*shape), ints(*pads), *value, opset=13, mode=mode))


def test_pad_wraps_as_onnxruntime() -> None:
    pads = ints(0, 2, 1, 0, 1, 3)
    assert_agrees(*single("Pad", floats(2, 3, 4), pads, opset=19, mode="wrap"))


@pytest.mark.parametrize("coordinates", ["asymmetric", "align_corners", "half_pixel"])
def test_infinities_are_interpolated_as_by_onnxruntime(coordinates: str) -> None:
    """Infinities with a weight of 0 at the edges are not read, nor along an axis of one pixel."""
    image = floats(2, 3, 1, 8)
    image[image < 0] = -np.inf
    inputs = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    scales = Const(np.array([1, 1, 3, 2], np.float32))
    model, feeds = single("Resize", image, None, scales, opset=13, **inputs)
    assert_agrees(model, feeds)
