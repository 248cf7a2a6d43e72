"""Corners of operators: models as text, whose outputs are onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

import quantglow as qg
from quantglow.support.arrays import Array
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats

OWN = 'opset_import: ["" : %d, "com.microsoft" : 1]'


def model(opset: int, text: str) -> ModelProto:
    return parser.parse_model(f"<ir_version: 8, {OWN % opset}> g {text}")


def assert_agrees(built: ModelProto, **feeds: Array) -> None:
    compiled = qg.compile(built, num_threads=1).run(None, feeds)
    for one, other in zip(compiled, by_onnxruntime(built, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("pads", ["[0,0,0,0]", "[1,1,1,1]", "[0,1,1,0]"])
@pytest.mark.parametrize("strides", ["[1,2]", "[3,2]", "[2,3]"])
def test_norms_of_windows_that_end_outside(power: int, pads: str, strides: str) -> None:
    attributes = f"kernel_shape=[3,3], ceil_mode=1, p={power}, pads={pads}, strides={strides}"
    text = f"(float[1,3,5,8] x) => (float[A,B,C,D] y) {{ y=LpPool<{attributes}>(x) }}"
    assert_agrees(model(18, text), x=floats(1, 3, 5, 8))


@pytest.mark.parametrize("pads", [(-2, 2), (2, -2), (-1, 2), (2, -1), (-3, 4), (1, -3), (-1, -1)])
@pytest.mark.parametrize("size", [2, 3])
def test_pads_that_cut_on_one_side(pads: tuple[int, int], size: int) -> None:
    if size + sum(pads) < 1:
        return  # onnxruntime gives no elements
    text = "(float[%d] x) => (float[A] y) <int64[2] p={%d,%d}, float v={1.5}> { y=Pad(x,p,v) }"
    assert_agrees(model(18, text % (size, *pads)), x=floats(size))


def test_largest_of_opset_9() -> None:
    text = "(float[2,7] x) => (float[A,B] y, int64[A,B] i) { y, i = TopK<k=3>(x) }"
    assert_agrees(model(9, text), x=floats(2, 7))


@pytest.mark.parametrize(
    "body",
    [
        "y=Tile(x,zero)",
        "k=Constant<value_ints=[0]>() y, i = TopK(x,k)",
    ],
)
def test_results_without_elements_are_those_of_onnxruntime(body: str) -> None:
    text = f"(float[2,3] x) => (float[A,B] y) <int64[2] zero={{0,1}}> {{ {body} }}"
    assert_agrees(model(18, text), x=floats(2, 3))


def test_the_sign_of_nan_is_nan() -> None:
    x = np.float32([-np.inf, -2, -0.0, 0, 3, np.inf, np.nan])
    assert_agrees(model(18, "(float[7] x) => (float[7] y) { y=Sign(x) }"), x=x)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_large_exponents_of_integers(kind: str) -> None:
    text = f"({kind}[2,3] x) => ({kind}[A,B] y) {{ y=ReduceLogSumExp(x) }}"
    assert_agrees(model(18, text), x=np.array([[98, 1, 2], [3, 97, 98]], kind))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_the_bias_of_a_quantized_product_is_scaled_with_it(alpha: float) -> None:
    constants = (
        "float s={0.1}, uint8 z={0}, int8[2,1] w={3,-2}, int8 wz={0}, int32[1] b={1000}, "
        "float o={0.5}, uint8 oz={10}"
    )
    body = f"y=com.microsoft.QGemm<alpha={alpha}>(x,s,z,w,s,wz,b,o,oz)"
    text = f"(uint8[1,2] x) => (uint8[1,1] y) <{constants}> {{ {body} }}"
    assert_agrees(model(18, text), x=np.array([[20, 5]], np.uint8))


def test_integers_of_onnxruntime_that_are_constant() -> None:
    """As onnxruntime's quantizer writes the initial states of an LSTM."""
    text = """(float[2,4] x) => (float[A,B] y)
        <float s={0.1}, uint8 z={128}, uint8[1,4] a={1,128,255,7}> {
            c=com.microsoft.QLinearConcat<axis=0>(s,z,a,s,z,a,s,z)
            d=DequantizeLinear(c,s,z)
            y=Add(x,d)
        }"""
    network = model(17, text)
    assert isinstance(qg.compile(network, num_threads=1), qg.CompiledModel)
    assert_agrees(network, x=floats(2, 4))
