"""onnxruntime gets models in opsets that it knows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.export.onnx.compatibility import downgrade, means_the_same
from quantglow.ort import session as newer_opsets
from quantglow.ort.session import Session, open_session
from quantglow.support.errors import FallbackError


def too_new(op_type: str = "NonZero", opset: int = onnx.defs.onnx_opset_version()) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "g", [x], [y])
    stamp = helper.make_opsetid("", opset)
    return bytes(helper.make_model(graph, opset_imports=[stamp]).SerializeToString())


class OlderSession(Session):
    """A session of an onnxruntime that does not know ONNX's newest opset."""

    def __init__(self, model: bytes, num_threads: int = 1, **options: bool) -> None:
        stamps = onnx.ModelProto.FromString(model).opset_import
        if any(stamp.version >= onnx.defs.onnx_opset_version() for stamp in stamps):
            raise FallbackError("the opset is too new")
        super().__init__(model, num_threads, **options)


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed one may know it."""
    monkeypatch.setattr(newer_opsets, "Session", OlderSession)
    newer_opsets.cached_session.cache_clear()


@pytest.mark.usefixtures("older")
def test_a_model_newer_than_onnxruntime_runs_if_an_older_opset_says_the_same() -> None:
    (actual,) = open_session(too_new()).run({"x": np.eye(2, 3, dtype=np.float32)})
    assert actual.tolist() == [[0, 1], [0, 1]]


@pytest.mark.usefixtures("older")
def test_a_compiled_model_falls_back_from_a_newer_opset() -> None:
    compiled = qg.compile(too_new(), num_threads=1)
    (actual,) = compiled.run(None, {"x": np.eye(2, 3, dtype=np.float32)})
    assert actual.tolist() == [[0, 1], [0, 1]]


INT8_CONVOLUTION = """
<ir_version: 10, opset_import: ["" : 13]>
g (int8[1,2,4,8] x) => (int8[1,3,4,8] y)
<float s = {0.05}, int8 z = {3}, int8 o = {0}, int8[3,2,1,1] w = {120,-66,-51,121,-61,-5}> {
    y = QLinearConv(x, s, z, w, s, o, s, z)
}
"""


def test_a_convolution_runs_for_which_there_is_no_exact_kernel() -> None:
    model = onnx.parser.parse_model(INT8_CONVOLUTION).SerializeToString()
    x = np.random.default_rng(0).integers(-20, 20, (1, 2, 4, 8), np.int8)
    (plain,) = Session(model, optimize=False, exact_sums=False).run({"x": x})
    np.testing.assert_array_equal(open_session(model).run({"x": x})[0], plain)


def test_operators_that_changed_keep_their_opset() -> None:
    assert not means_the_same("Softmax", 13, 11)
    assert not means_the_same("ReduceSum", 13, 11)
    assert means_the_same("Relu", 14, 6)
    model = too_new("Softmax", 13)
    assert [onnx.ModelProto.FromString(m).opset_import[0].version for m in downgrade(model)] == [13]


def test_operators_that_nobody_defines_are_named() -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    node = helper.make_node("Own", ["x"], ["y"], domain="my.domain")
    graph = helper.make_graph([node], "g", [x], [y])
    stamps = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    model = helper.make_model(graph, opset_imports=stamps, ir_version=8).SerializeToString()
    samples = [np.ones((2, 3), np.float32)]
    for attempt in (lambda: qg.compile(model), lambda: qg.quantize_and_compile(model, samples)):
        with pytest.raises(FallbackError, match=r"Own 'y' of my\.domain\. Remedy"):
            attempt()


def test_onnxruntimes_message_on_a_refused_model_is_kept() -> None:
    with pytest.raises(FallbackError, match="onnxruntime cannot load"):
        open_session(b"no model")
