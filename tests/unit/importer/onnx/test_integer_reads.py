"""Integers of QuantizeLinear that operators read as such: equal to onnxruntime on every level."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

import quantglow as qg
from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.support.arrays import Array
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

X = np.linspace(-1.3, 1.31, 2 * 8, dtype=np.float32).reshape(2, 8)
READS = {
    "relu": "y=Relu(q)",
    "clip": "y=Clip(q,low,high)",
    "max": "y=Max(q,k)",
    "add": "y=Add(q,k)",
    "abs": "y=Abs(q)",
    "where": "c=Less(x,half) y=Where(c,q,k)",
    "less": "b=Less(q,k) y=Cast<to=3>(b)",
    "condition": "b=Cast<to=9>(q) y=Cast<to=3>(b)",
    "unsigned": "b=Cast<to=2>(q) y=Cast<to=3>(b)",
    "float": "f=Cast<to=1>(q) g=Mul(f,half) y=Cast<to=3>(g)",
    "two readers": "a=Add(q,k) f=DequantizeLinear(q,s,z) b=QuantizeLinear(f,s,z) y=Max(a,b)",
}
WIDE_READS = {
    "shifted": "a=Cast<to=7>(q) b=Add(a,one) y=Concat<axis=1>(a,b)",
    "two types": "p=QuantizeLinear(x,s,u) a=Cast<to=7>(q) b=Cast<to=7>(p) y=Concat<axis=1>(a,b)",
    "two widths": "p=QuantizeLinear(x,s,w) a=Cast<to=7>(q) b=Cast<to=7>(p) y=Concat<axis=1>(a,b)",
    "index": "a=Cast<to=7>(q) b=Add(a,most) y=Gather(large,b)",
    "of an index": "a=Cast<to=7>(q) b=Add(a,most) c=Gather(large,b) y=Add(c,c)",
    "wider": "p=QuantizeLinear(x,s,v) a=Cast<to=7>(p) y=Add(a,one)",
}
LARGE = ",".join(str((2**25 + 1) * (i - 7)) for i in range(256))


def model(body: str, kind: str) -> ModelProto:
    constants = (
        "float s={0.02}, int8 z={12}, int8 low={-20}, int8 high={30}, int8 k={20}, uint8 u={100}, "
        "int16 w={0}, uint16 v={40}, float half={0.5}, int64 one={1}, int64 most={128}, "
        f"int64[256] large={{{LARGE}}}"
    )
    text = f"g (float[2,8] x) => ({kind}[A,B] y) <{constants}> {{ q=QuantizeLinear(x,s,z) {body} }}"
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')


def assert_equal(built: ModelProto) -> None:
    (expected,) = by_onnxruntime(built, {"x": X})
    for level in filter(runs_here, LEVELS):
        (actual,) = qg.compile(built, target=level, num_threads=1).run(None, {"x": X})
        np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("body", READS)
def test_readers_of_int8_get_its_integers(body: str) -> None:
    network = model(READS[body], "int8")
    assert_equal(network)
    results: list[Array] = qg.interpret(qg.import_model(network), {"x": X})
    np.testing.assert_array_equal(results[0], by_onnxruntime(network, {"x": X})[0])


@pytest.mark.parametrize("body", WIDE_READS)
def test_readers_of_wider_integers_get_them(body: str) -> None:
    assert_equal(model(WIDE_READS[body], "int64"))
