"""Large branches of conditions known at run time only: the one that is not taken does not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.interpreter.branches import find_branches
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Add, Mul, Relu, Tanh, Where
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.programs.segments import SegmentedExecutable, compile_segments
from quantglow.support.arrays import Array
from quantglow.transforms import partition as branches
from quantglow.transforms.partition import partition
from tests.generators.float_graphs.elementwise import SCALAR, Form, elementwise_graphs
from tests.support.feeds import feeds_of

WIDTH = 256


@dataclass
class Counting:
    """A backend that interprets, and remembers which nodes ran."""

    name: str = "counting"
    ran: list[str] = field(default_factory=list)

    def supports(self, node: Node) -> bool:
        return True

    def compile(self, segment: Graph, target: str, num_threads: int) -> CountingExecutable:
        return CountingExecutable(segment, self.ran)


@dataclass(frozen=True)
class CountingExecutable:
    segment: Graph
    ran: list[str]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        self.ran.extend(node.name for node in self.segment.compute_nodes())
        return interpret(self.segment, feeds)


choosing_graphs = elementwise_graphs(
    [Form(kind) for kind in (Relu, Add, Tanh, Mul, Where, Where)], most=16, conditions=[SCALAR] * 2
)
"""Graphs in which single conditions choose, also inside branches of others."""


@given(choosing_graphs, st.tuples(st.booleans(), st.booleans()))
def test_only_what_the_taken_branches_need_runs(graph: Graph, chosen: tuple[bool, bool]) -> None:
    backend, actual = Counting(), find_branches(graph)
    parts = compile_segments(graph, partition(graph, (backend,), actual), "native", 1)
    feeds = feeds_of(graph) | {f"c{i}": np.array(value) for i, value in enumerate(chosen)}
    (result,) = SegmentedExecutable(graph, parts).run(feeds)
    np.testing.assert_array_equal(result, interpret(graph, feeds)[0])
    vain = {n.name for b in actual if bool(feeds[b.condition.name]) != b.outcome for n in b.nodes}
    expected = {node.name for node in graph.compute_nodes()} - vain
    assert sorted(backend.ran) == sorted(expected)


def model(width: int, computed: bool) -> onnx.ModelProto:
    """If(condition): x @ a @ b, else x @ c; the condition is an input, or whether x sums to > 0."""
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(
            (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32), n
        )
        for n in "abc"
    ]

    def result(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [width, width])

    two = [helper.make_node("MatMul", ["x", "a"], ["t"]), helper.make_node("MatMul", "tb", "u")]
    bodies = {
        "then_branch": helper.make_graph(two, "two", [], [result("u")]),
        "else_branch": helper.make_graph(
            [helper.make_node("MatMul", "xc", "v")], "one", [], [result("v")]
        ),
    }
    nodes = [helper.make_node("If", ["condition"], ["y"], **bodies)]
    inputs = [result("x")]
    if computed:
        sums = helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0)
        nodes = [sums, helper.make_node("Greater", ["mean", "zero"], ["condition"]), *nodes]
        weights.append(numpy_helper.from_array(np.float32(0), "zero"))
    else:
        inputs.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    graph = helper.make_graph(nodes, "g", inputs, [result("y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_for(width: int, condition: bool, computed: bool) -> dict[str, Array]:
    x = np.random.default_rng(2).normal(size=(width, width)).astype(np.float32)
    x += (0.1 if condition else -0.1) - x.mean()
    return {"x": x} if computed else {"x": x, "condition": np.array(condition)}


@pytest.mark.parametrize("backend", ["llvm", "reference"])
@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("computed", [True, False])
def test_large_branches_have_programs_of_their_own(
    backend: str, condition: bool, computed: bool
) -> None:
    proto = model(WIDTH, computed)
    graph = qg.import_model(proto)
    build = Compiler.of(num_threads=1, backend=backend).compile(graph)
    assert sum(len(s.branches) == 1 for s in build.segments) == 2
    feeds = feeds_for(WIDTH, condition, computed)
    (expected,) = interpret(graph, feeds)
    np.testing.assert_allclose(build.executable.run(feeds)[0], expected, atol=1e-4)


def test_small_branches_stay_in_one_program() -> None:
    assert not Compiler.of(num_threads=1).compile(qg.import_model(model(8, True))).segments


def test_int8_branches_are_those_of_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(branches, "LEAST_OPERATIONS", 1000)
    samples = [feeds_for(32, condition, True) for condition in (True, False)]
    compiled = qg.quantize_and_compile(
        model(32, True), samples, num_threads=1, progress=False, verify=False
    )
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    assert any(s.branches for s in loaded.build.segments)
    for feeds in samples:
        (expected,) = qg.interpret(compiled.graph, feeds)
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], expected)
        np.testing.assert_array_equal(loaded.run(None, feeds)[0], expected)


def test_the_speed_of_layers_in_branches_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "LEAST_OPERATIONS", 1000)
    compiled = qg.quantize_and_compile(
        model(32, True),
        [feeds_for(32, condition, True) for condition in (True, False)],
        num_threads=1,
        progress=False,
        verify=False,
        measure_speed=True,
    )
    assert {"t", "u", "v"} <= {layer.name for layer in compiled.report.speeds}
