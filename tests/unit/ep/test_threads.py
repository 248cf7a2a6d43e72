"""Calls on several threads, and batches in pieces, run without Python and give equal bits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow import ep
from quantglow.ep import hooks
from quantglow.support.arrays import Array
from tests.support.harsh import harsh
from tests.support.plug_in import session
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

node = helper.make_node

SIDE = 24


def network(batch: int | str, *, gathers: bool = False) -> onnx.ModelProto:
    """Convolutions and a product; ``gathers``: then rows of a table, at indices that are fed."""
    rng = np.random.default_rng(0)
    arrays = {
        "w0": rng.normal(size=(16, 3, 3, 3)) / 5,
        "w1": rng.normal(size=(16, 16, 3, 3)) / 12,
        "v": rng.normal(size=(16, 8)) / 4,
        "t": rng.normal(size=(4, 8)),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["d"]),
        node("GlobalAveragePool", ["d"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "v"], ["m" if gathers else "y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, "H", SIDE])]
    if gathers:
        nodes += [node("Gather", ["t", "i"], ["r"]), node("Add", ["m", "r"], ["y"])]
        inputs.append(helper.make_tensor_value_info("i", TensorProto.INT64, [batch]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8])
    names = arrays if gathers else list(arrays)[:3]
    tensors = [numpy_helper.from_array(arrays[n].astype(np.float32), n) for n in names]
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def picture(batch: int, height: int = SIDE, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, 3, height, SIDE)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_calls_without_python_have_the_bits_of_one_thread(threads: int) -> None:
    with harsh():
        model = network("N")
        opened = session(model, threads=threads, optimize=False)
        compiled = qg.compile(model, num_threads=1)
        before = ep.counts()
        for batch in (1, 2, 5, 2):
            for seed in range(2):
                x = picture(batch, seed=seed)
                np.testing.assert_array_equal(opened.run(None, {"x": x})[0], compiled(x))
    after = ep.counts()
    assert after["native"] == before["native"] + 8 and after["python"] == before["python"]
    calls = [program.call for program in hooks._programs.values()][-3:]
    assert [(call.threads, call.rows == 1) for call in calls] == [
        (threads, is_in_pieces) for is_in_pieces in (False, True, True)
    ]


def own_threads(number: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = number
    return options


def threads_between() -> onnxruntime.SessionOptions:
    options = own_threads(2)
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 2
    return options


@pytest.mark.parametrize("make", [lambda: own_threads(1), lambda: own_threads(4), threads_between])
def test_sessions_of_any_threads_run_calls(make: Callable[[], onnxruntime.SessionOptions]) -> None:
    """On one thread onnxruntime runs the parts of a call one after the other."""
    with harsh():
        model = network("N")
        model.graph.node.insert(2, node("Unique", ["x"], ["u"]))
        model.graph.output.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [None]))
        opened = session(model, threads=3, options=make())
        before = ep.counts()["native"]
        for batch in (1, 2, 5):
            x = picture(batch)
            actual, expected = opened.run(None, {"x": x}), by_onnxruntime(model, {"x": x})
            for one, other in zip(actual, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert ep.counts()["native"] >= before + 3


@pytest.mark.parametrize("threads", [1, 3])
def test_an_index_of_any_sample_is_checked(threads: int) -> None:
    with harsh():
        opened = session(network("N", gathers=True), threads=threads)
        x, fine = picture(4), np.array([3, 0, 1, 2])
        (expected,) = opened.run(None, {"x": x, "i": fine})
        for wrong in range(4):
            indices = fine.copy()
            indices[wrong] = 9
            with pytest.raises(Exception, match="out of range"):
                opened.run(None, {"x": x, "i": indices})
            np.testing.assert_array_equal(opened.run(None, {"x": x, "i": fine})[0], expected)


def test_callers_share_sessions_of_several_threads() -> None:
    with harsh():
        model = network("N")
        sessions = [session(model, threads=2) for _ in range(2)]
        cases = [picture(1 + n % 3, 8 + 4 * (n % 4), n) for n in range(12)]
        expected = [by_onnxruntime(model, {"x": x})[0] for x in cases]
        wrong: list[int] = []

        def work(first: int) -> None:
            for n in range(40):
                number = (first + n) % len(cases)
                (actual,) = sessions[n % 2].run(None, {"x": cases[number]})
                if not np.allclose(actual, expected[number], rtol=1e-4, atol=1e-5):
                    wrong.append(number)

        callers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong
