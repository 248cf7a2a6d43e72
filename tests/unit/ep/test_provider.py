"""Sessions of onnxruntime with the provider compute what quantglow computes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow import ep
from quantglow.ep import hooks
from quantglow.ep.interface import IN_MACHINE_CODE
from quantglow.support.arrays import Array
from tests.support.plug_in import PROVIDER, session
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

node = helper.make_node

INVALID = onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument


def network(batch: int | str = "N", height: int | str = "H") -> onnx.ModelProto:
    """A convolution, a pool, and a product, at free sizes."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(8, 3, 3, 3)) / 5,
        "v": rng.normal(size=(8, 5)) / 3,
    }
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "v"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, height, 8]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def picture(batch: int, height: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, 3, height, 8)).astype(np.float32)


def count(name: str) -> int:
    return ep.counts()[name]


def test_a_session_gives_the_bits_of_a_compiled_model() -> None:
    model = network(1, 8)
    opened, compiled = session(model, optimize=False), qg.compile(model, num_threads=1)
    before = count("native")
    for seed in range(4):
        x = picture(1, 8, seed)
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], compiled(x))
    assert count("native") == before + 4
    assert str(ep.claims()[-1]) == "quantglow takes 6 of 6 nodes in 1 part(s)"


def test_a_quantized_model_keeps_its_integers(tmp_path: Any) -> None:
    model = network(1, 8)
    samples = [picture(1, 8, seed) for seed in range(8)]
    quantized = qg.quantize_and_compile(
        model, samples, num_threads=1, effort="fast", verify=False, progress=False
    )
    quantized.export_onnx(tmp_path / "qdq.onnx")
    opened = session(str(tmp_path / "qdq.onnx"))
    compiled = qg.compile(str(tmp_path / "qdq.onnx"), num_threads=1)
    for seed in range(20, 24):
        x = picture(1, 8, seed)
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], compiled(x))


def test_one_session_takes_a_stream_of_shapes() -> None:
    model = network()
    opened = session(model)
    for batch, height in ((1, 8), (1, 6), (2, 8), (3, 9), (1, 8), (2, 5)):
        x = picture(batch, height, height)
        (expected,) = by_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(opened.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_a_shape_that_quantglow_refuses_is_answered_and_the_session_goes_on() -> None:
    """onnxruntime's pool takes a window that is larger than what it reads."""
    model = network()
    opened = session(model)
    for height in (8, 1, 8):
        x = picture(1, height)
        (expected,) = by_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(opened.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_feeds_that_nobody_takes_are_an_error_of_the_caller() -> None:
    """On errors of a provider ``InferenceSession.run`` gives it up and goes on with the CPU's."""
    ends = [
        helper.make_tensor_value_info("i", TensorProto.INT64, ["N"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4]),
    ]
    table = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "t")
    nodes = [node("Gather", ["t", "i"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [table])
    opened = session(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    opened.enable_fallback()
    fine = np.array([0, 2])
    for wrong in ([0, 3], [-4, 0]):
        np.testing.assert_array_equal(opened.run(None, {"i": fine})[0][:, 0], [0, 8])
        with pytest.raises(INVALID, match="out of range"):
            opened.run(None, {"i": np.array(wrong)})
    np.testing.assert_array_equal(opened.run(None, {"i": fine})[0][:, 0], [0, 8])
    assert opened.get_providers()[0] == PROVIDER


def test_nodes_that_are_left_have_a_reason() -> None:
    model = network(1, 8)
    model.graph.node.insert(2, node("Unique", ["r"], ["u", "", "", ""]))
    model.graph.node[2].output[:] = ["u"]
    model.graph.output.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [None]))
    opened = session(model)
    claim = ep.claims()[-1]
    assert claim.claimed == claim.nodes - 1 and "Unique" in str(claim)
    x = picture(1, 8)
    for one, other in zip(opened.run(None, {"x": x}), by_onnxruntime(model, {"x": x}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_are_not_copied() -> None:
    """Bound ones, too: what the code reads and writes are the caller's arrays."""
    model = network(1, 8)
    opened = session(model)
    x = onnxruntime.OrtValue.ortvalue_from_numpy(picture(1, 8))
    y = onnxruntime.OrtValue.ortvalue_from_numpy(np.full((1, 5), np.nan, np.float32))
    binding = opened.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    opened.run_with_iobinding(binding)
    (expected,) = by_onnxruntime(model, {"x": x.numpy()})
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_sessions_at_changing_shapes(threads: int) -> None:
    model = network()
    sessions = [session(model, threads=threads) for _ in range(2)]
    cases = [picture(1 + n % 3, 4 + n % 5, n) for n in range(15)]
    expected = [by_onnxruntime(model, {"x": x})[0] for x in cases]
    wrong: list[int] = []

    def work(first: int) -> None:
        for n in range(60):
            number = (first + n) % len(cases)
            (actual,) = sessions[n % 2].run(None, {"x": cases[number]})
            if not np.allclose(actual, expected[number], rtol=1e-4, atol=1e-5):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("batch", ["N", 2])
def test_float64_stays_with_onnxruntime(batch: int | str) -> None:
    """Quantglow would compute it in float32."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, 4)), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, [batch, 4]) for n in ("x", "y")]
    graph = helper.make_graph(
        [node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(1).normal(size=(2, 4))
    (actual,) = session(model).run(None, {"x": x})
    np.testing.assert_array_equal(actual, by_onnxruntime(model, {"x": x})[0])
    assert "float64" in ep.claims()[-1].reasons[0]


def test_many_shapes_leave_as_many_programs_as_are_kept() -> None:
    plain = network("N", "H")
    opened = session(plain)
    for height in range(2, 102):
        opened.run(None, {"x": picture(1, height)})
    plugged = hooks._models[max(hooks._models)]
    assert len(plugged.programs) <= 64
    assert len(plugged.part.counts.programs) <= 64
    assert plugged.part.counts.of(IN_MACHINE_CODE) >= 98
