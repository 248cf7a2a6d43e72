"""Tensor types and quantization parameters."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if not dtype.is_object])
def test_an_element_type_is_found_again_from_its_array(dtype: DType) -> None:
    assert DType.of(np.zeros(1, dtype.numpy)) is dtype


@pytest.mark.parametrize("dtype", [DType.STRING, DType.OPAQUE])
def test_objects_are_no_constants_and_have_no_scale(dtype: DType) -> None:
    with pytest.raises(TypeError, match="object"):
        DType.of(np.zeros(1, dtype.numpy))
    with pytest.raises(ValueError, match="no quantization parameters"):
        TensorType(dtype, (), QuantParams.per_tensor(1.0, 0))


def test_an_opaque_value_has_no_axes() -> None:
    with pytest.raises(ValueError, match="no axes"):
        TensorType(DType.OPAQUE, (2,))


def test_an_array_without_element_type_is_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        DType.of(np.zeros(1))


@pytest.mark.parametrize(
    ("dtype", "limits"),
    [(DType.I8, (-128, 127)), (DType.U8, (0, 255)), (DType.I16, (-32768, 32767))],
)
def test_limits_are_those_of_two_s_complement(dtype: DType, limits: tuple[int, int]) -> None:
    assert dtype.limits == limits


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300])
def test_a_scale_that_float32_cannot_hold_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="finite and positive"):
        QuantParams((scale,), (0,))


def test_scales_are_rounded_to_float32() -> None:
    assert QuantParams((0.1,), (0,)) == QuantParams.per_tensor(float(np.float32(0.1)), 0)


@pytest.mark.parametrize("fields", [((0.1,), (0, 0), 1), ((0.1, 0.2), (0, 0), None)])
def test_scales_zero_points_and_axis_must_fit(fields: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="scale"):
        QuantParams(*fields)  # type: ignore[arg-type]


def test_a_per_axis_quantization_has_no_single_scale() -> None:
    with pytest.raises(ValueError, match="no single scale"):
        _ = QuantParams.symmetric([0.1], 0).scale


def test_sizes_count_elements_and_bytes() -> None:
    kind = TensorType(DType.I16, (2, 3, 4))
    assert (kind.size, kind.nbytes, kind.rank) == (24, 48, 3)


def test_the_text_shows_element_quantization_and_shape() -> None:
    per_tensor = TensorType(DType.I8, (1, 3), QuantParams.per_tensor(0.1, -5))
    per_axis = TensorType(DType.I8, (2,), QuantParams.symmetric([1, 2], 0))
    assert [*map(str, (f32(), per_tensor, per_axis))] == [
        "f32[]",
        "i8<0.1,-5>[1x3]",
        "i8<axis0x2>[2]",
    ]


def test_the_element_can_be_exchanged() -> None:
    element = ElementType(DType.I8, QuantParams.per_tensor(0.5, 1))
    assert f32(2).with_element(element) == TensorType(DType.I8, (2,), element.quant)
