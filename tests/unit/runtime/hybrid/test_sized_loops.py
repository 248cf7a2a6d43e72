"""A Loop whose stacked size is declared, or follows from its trips, is compiled with its body."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import quantglow as qg

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,8] y)
<int64 trips = {70}, bool t = {1}, float[1,3] first = {1,2,3}, float[1,283] v> {
last, v = Loop(trips, t, x, first) <body = b (int64 i, bool c, float[1,4] s, float[1,R] all)
=> (bool co, float[1,4] next, float[1,S] more) {
co = Identity(c)
m = ReduceMean<axes=[1], keepdims=1>(all)
sm = Add(s, m)
next = Tanh(sm)
more = Concat<axis=1>(all, next) }>
y = MatMul(v, w) }"""


def network(is_declared: bool) -> onnx.ModelProto:
    """70 trips of four columns each behind three, and a product with all of them."""
    model = parser.parse_model(TEXT)
    weights = np.random.default_rng(0).normal(size=(283, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    del model.graph.value_info[:]
    if is_declared:
        size = helper.make_tensor_value_info("v", TensorProto.FLOAT, [1, 283])
        model.graph.value_info.append(size)
    return model


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("is_declared", [False, True])
def test_a_loop_of_a_known_size_is_compiled(
    is_declared: bool, is_int8: bool, tmp_path: Path
) -> None:
    """The file has what the model declares of values, by which it is imported again."""
    model, x = network(is_declared), np.ones((1, 4), np.float32)
    if is_int8:
        compiled = qg.quantize_and_compile(
            model, [x] * 2, num_threads=1, progress=False, verify=False
        )
    else:
        compiled = qg.compile(model, num_threads=1)
    (expected,) = compiled.run(None, {"x": x})
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    for threads in (1, 2, 3):
        (actual,) = loaded.with_num_threads(threads).run(None, {"x": x})
        np.testing.assert_array_equal(actual, expected)
    assert compiled.report.fallback == loaded.report.fallback == ()
