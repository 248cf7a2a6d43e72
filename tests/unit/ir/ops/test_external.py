"""A node of another runtime computes the same wherever its graph is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.graph.text import parse_graph, print_graph, text_constants
from quantglow.ir.ops import Abs, External
from quantglow.ir.types import f32
from quantglow.support.arrays import Array
from tests.unit.forking import exit_code_of_child

SHAPE = (2, 3)
X = np.array([[1, -5, 3], [-2, 0, 1]], np.float32)
EXPECTED = np.eye(3, dtype=np.float32)[[1, 0]]
"""Hardmax of the magnitudes of X."""


def hardmax() -> bytes:
    """A model of one node."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "ab"]
    node = helper.make_node("Hardmax", ["a"], ["b"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 13)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString()


def graph_with_external() -> Graph:
    x = Input(name="x", tensor=f32(*SHAPE))
    magnitudes = Abs(name="magnitudes", x=x)
    node = External(
        name="y",
        args=(magnitudes,),
        model=hardmax(),
        output=0,
        result=f32(*SHAPE),
        op_type="Hardmax",
        reason="",
    )
    return Graph((x,), (("y", node),), "test")


def result(graph: Graph) -> Array:
    return np.asarray(interpret(graph, {"x": X})[0])


def parsed(graph: Graph) -> Graph:
    return parse_graph(print_graph(graph), text_constants(graph))


def renamed(graph: Graph) -> Graph:
    (_, node), *_ = graph.outputs
    return Graph(graph.inputs, (("y", replace(node, name="z")),), graph.source_hash)


@pytest.mark.parametrize("change", [parsed, renamed, deepcopy])
def test_parsed_and_copied_nodes_compute_the_same(change: Callable[[Graph], Graph]) -> None:
    np.testing.assert_array_equal(result(change(graph_with_external())), EXPECTED)


def test_a_node_computes_the_same_in_other_threads() -> None:
    graph, results = graph_with_external(), list[Array]()
    threads = [threading.Thread(target=lambda: results.append(result(graph))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results, [EXPECTED] * 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a platform without fork")
def test_a_node_computes_the_same_in_a_forked_child() -> None:
    graph = graph_with_external()
    result(graph)  # the parent has a session, which the child must not share
    assert exit_code_of_child(lambda: bool((result(graph) == EXPECTED).all())) == 0


def test_a_process_that_only_reads_the_graph_computes_it(tmp_path: Path) -> None:
    (tmp_path / "graph.ir").write_text(print_graph(graph_with_external()), "utf-8")
    program = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from quantglow.interpreter import interpret\n"
        "from quantglow.ir.graph.text import parse_graph\n"
        "graph = parse_graph(Path(sys.argv[1]).read_text('utf-8'), {})\n"
        "assert not any(name.startswith('quantglow.ort') for name in sys.modules)\n"
        f"x = np.array({X.tolist()}, np.float32)\n"
        "print(interpret(graph, {'x': x})[0].tolist())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "graph.ir")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(EXPECTED.tolist())
