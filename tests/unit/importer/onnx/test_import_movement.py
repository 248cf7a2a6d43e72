"""Operators that move or choose values, in the forms of all opsets, do as onnxruntime does."""

from __future__ import annotations

import numpy as np
import pytest

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import (
    IMAGE,
    SCALAR,
    Const,
    assert_agrees,
    floats,
    ints,
    single,
    weights,
)


@pytest.mark.parametrize("opset", [7, 14, 21])
@pytest.mark.parametrize("shape", [(0, -1), (2, 20, 0), (0, 0, -1), (240,), (-1, 6)])
def test_reshape_keeps_and_infers_dimensions(opset: int, shape: tuple) -> None:
    x = floats(2, 20, 6)
    assert_agrees(*single("Reshape", x, ints(*shape), opset=opset))


def test_reshape_with_allowzero_agrees_with_onnxruntime() -> None:
    assert_agrees(*single("Reshape", IMAGE, ints(4, -1), opset=14, allowzero=1))


@pytest.mark.parametrize("op_type", ["Squeeze", "Unsqueeze"])
def test_axes_may_be_an_operand(op_type: str) -> None:
    assert_agrees(*single(op_type, floats(2, 1, 3, 1), ints(1, -1), opset=13))


def test_squeeze_takes_axes_as_attribute() -> None:
    assert_agrees(*single("Squeeze", floats(2, 1, 3, 1), opset=11, axes=[1]))


@pytest.mark.parametrize("axis", [1, -2])
def test_concat_agrees_with_onnxruntime(axis: int) -> None:
    assert_agrees(*single("Concat", floats(2, 3, 1, 4), floats(2, 3, 1, 4), axis=axis))


def test_concat_takes_constants() -> None:
    assert_agrees(*single("Concat", floats(2, 3), weights(2, 5), axis=1))


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 1), (1,), (5, 2, 1, 4)])
def test_expand_broadcasts_both_ways(shape: tuple) -> None:
    assert_agrees(*single("Expand", floats(2, 1, 4), ints(*shape)))


def test_tile_agrees_with_onnxruntime() -> None:
    assert_agrees(*single("Tile", floats(2, 1, 3), ints(2, 3, 1)))


@pytest.mark.parametrize(
    ("opset", "outputs", "operands", "attributes"),
    [
        (11, 2, (), {"axis": 1}),
        (11, 2, (), {"axis": 1, "split": [1, 3]}),
        (13, 3, (ints(1, 2, 1),), {"axis": -3}),
        (13, 2, (), {"axis": 1}),
        (18, 2, (), {"axis": 2, "num_outputs": 2}),
        (18, 2, (ints(2, 3),), {"axis": 2}),
    ],
)
def test_split_takes_sizes_of_all_forms(
    opset: int, outputs: int, operands: tuple, attributes: dict
) -> None:
    model = single("Split", IMAGE, *operands, opset=opset, outputs=outputs, **attributes)
    assert_agrees(*model)


def test_slice_takes_attributes() -> None:
    single_model = single("Slice", IMAGE, opset=9, starts=[1, -4], ends=[3, 9999], axes=[1, 3])
    assert_agrees(*single_model)


def test_pad_takes_attributes() -> None:
    single_model = single("Pad", IMAGE, opset=10, pads=[0, 1, 2, 0, 0, 0, 1, 3], value=1.5)
    assert_agrees(*single_model)


def test_pad_takes_axes() -> None:
    assert_agrees(*single("Pad", IMAGE, ints(1, 2, 0, 1), SCALAR, ints(2, -1), opset=18))


def test_space_to_depth_agrees_with_onnxruntime() -> None:
    assert_agrees(*single("SpaceToDepth", floats(2, 3, 4, 6), opset=13, blocksize=2))


@pytest.mark.parametrize("opset", [7, 9])
def test_upsample_takes_scales_of_both_forms(opset: int) -> None:
    scales = [1.0, 1.0, 2.0, 3.0]
    operands = (Const(np.array(scales, np.float32)),) if opset == 9 else ()
    attributes = {} if opset == 9 else {"scales": scales}
    assert_agrees(*single("Upsample", IMAGE, *operands, opset=opset, mode="nearest", **attributes))


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (6,), (5, 1), ()])
@pytest.mark.parametrize("sides", [(IMAGE, SCALAR), (weights(6), IMAGE), (IMAGE, floats(6))])
def test_where_of_a_known_condition_agrees_with_onnxruntime(shape: tuple, sides: tuple) -> None:
    assert_agrees(*single("Where", Const(np.asarray(floats(*shape) > 0)), *sides))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    "indices", [1, [0], [1, 0], [0, 1, 1], [[0, 1], [-1, 0]], [0, 1, -1, 0, 1, 0]]
)
def test_gather_of_known_indices_agrees_with_onnxruntime(axis: int, indices: list) -> None:
    assert_agrees(*single("Gather", IMAGE, Const(np.array(indices)), axis=axis))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_by_1_copies_infinities(mode: str) -> None:
    x = np.where(floats(1, 2, 4, 4) > 0, np.inf, floats(1, 2, 4, 4)).astype(np.float32)
    scales = Const(np.ones(4, np.float32))
    model, feeds = single("Resize", x, Const(np.zeros(0, np.float32)), scales, opset=13, mode=mode)
    np.testing.assert_array_equal(qg.compile(model)(*feeds.values()), x)
