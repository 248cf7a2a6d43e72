"""``quantglow.ep.report`` says of one session what runs where, and why."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow import ep
from quantglow.ep.interface import IN_ONNXRUNTIME
from tests.support.plug_in import CPU, session
from tests.unit.ep.test_provider import network, node, picture


def interrupted() -> onnx.ModelProto:
    """Two products, with an operator between them that quantglow leaves."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(8, 8)).astype(np.float32) for name in ("u", "v")}
    nodes = [
        node("MatMul", ["x", "u"], ["a"]),
        node("Inverse", ["a"], ["b"], domain="com.microsoft"),
        node("MatMul", ["b", "v"], ["c"]),
        node("Inverse", ["c"], ["d"], domain="com.microsoft"),
        node("Relu", ["d"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xy"]
    tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_the_text_reads_well(tmp_path: Any) -> None:
    path = tmp_path / "interrupted.onnx"
    onnx.save(interrupted(), path)
    opened = session(str(path))
    for seed in range(3):
        opened.run(None, {"x": np.random.default_rng(seed).normal(size=(8, 8)).astype("f4")})
    reason = next(each for each in ep.claims()[-1].reasons if each.startswith("Inverse: "))
    assert str(ep.report(opened)).splitlines() == [
        "interrupted.onnx: quantglow runs 2 of 5 nodes in 2 parts, 100.0% of the "
        "multiply-accumulates",
        "",
        "part  nodes  answers  calls in machine code  calls in Python  calls by onnxruntime",
        "   1      1        1                      3                0                     0",
        "   2      1        1                      3                0                     0",
        "",
        "left to onnxruntime:",
        f"  2 Inverse  {reason.removeprefix('Inverse: ')}",
        "  1 Relu     parts without a product or a recurrence are not worth the way into them",
    ]


def test_sessions_of_one_model_have_reports_of_their_own() -> None:
    first, second = session(network(1, 8)), session(network())
    first.run(None, {"x": picture(1, 8)})
    for height in (6, 7, 7):
        second.run(None, {"x": picture(1, height)})
    one, other = (ep.report(each).parts[0] for each in (first, second))
    assert (one.answers, sum(one.calls.values())) == (1, 1)
    assert (other.answers, sum(other.calls.values())) == (2, 3)


def test_sessions_that_threads_make_at_once_are_told_apart() -> None:
    """Each has a part of as many nodes as its model has products."""
    sessions: dict[int, Any] = {}

    def make(count: int) -> None:
        model = interrupted()
        del model.graph.node[1:]
        for number in range(1, count):
            model.graph.node.append(
                node("MatMul", [f"a{number - 1}" if number > 1 else "a", "u"], [f"a{number}"])
            )
        model.graph.output[0].name = model.graph.node[-1].output[0]
        sessions[count] = session(model, optimize=False)

    session(network(1, 8))  # the plug-in is built once
    threads = [threading.Thread(target=make, args=(count,)) for count in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {count: ep.report(opened).claim.nodes for count, opened in sessions.items()} == {
        count: count for count in range(1, 7)
    }


def test_calls_that_quantglow_refuses_are_counted_apart() -> None:
    opened = session(network())
    for height in (8, 1, 8):
        opened.run(None, {"x": picture(1, height)})
    assert ep.report(opened).parts[0].calls[IN_ONNXRUNTIME] == 1


def test_operators_that_are_left_count_with_their_products() -> None:
    """A product of a type that quantglow does not compile is as large as the one that it takes."""
    model = interrupted()
    model.graph.node[1].CopyFrom(node("Einsum", ["a", "u"], ["b"], equation="ij,jk->ik"))
    report = ep.report(session(model))
    assert report.claim.macs + report.claim.macs_left >= 2 * 8**3


def test_a_session_without_the_provider_is_refused_with_a_remedy() -> None:
    plain = onnxruntime.InferenceSession(network(1, 8).SerializeToString(), providers=[CPU])
    with pytest.raises(qg.OptionError, match=r"Remedy: onnxruntime_ep_quantglow.register"):
        ep.report(plain)
    with pytest.raises(qg.OptionError, match=r"takes an onnxruntime.InferenceSession, not int"):
        ep.report(1)


def test_a_report_outlives_its_session() -> None:
    opened = session(network(1, 8))
    report = ep.report(opened)
    del opened
    gc.collect()
    assert "6 of 6 nodes" in str(report)
