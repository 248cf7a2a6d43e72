"""Programs whose sizes are known when a part of them has run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.evaluation.macs import count_by_run
from quantglow.importer.onnx import open_model
from quantglow.interpreter import interpret
from quantglow.ir.graph.family import Case, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.convolution import MatMul
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import LARGEST, symbol
from quantglow.ir.symbolic.size import decide, find_guards, size
from quantglow.ort.products import count_products
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.programs.segments import CompiledSegment
from quantglow.runtime.shapes import late_programs
from quantglow.runtime.shapes.late_programs import LatePrograms
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from quantglow.transforms.size_sources import late_sizes
from tests.generators.late_points import add_point
from tests.support.effort import expensive
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats
from tests.unit.runtime.shapes.test_general_segments import choosing, rows

node = helper.make_node
ROWS, COLUMNS = 6, 4
CASE = Case.of({"x": (ROWS, COLUMNS)})


def pairing(rows: Any = ROWS, columns: Any = COLUMNS) -> onnx.ModelProto:
    """The largest positive element (``most``), a product of the positive ones in pairs (``y``), and
    all elements with those doubled (``whole``)."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Greater", ["r", "zero"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Transpose", ["places"], ["index"], perm=[1, 0]),
        node("GatherND", ["r", "index"], ["values"]),
        node("ReduceMax", ["values"], ["most"], keepdims=0),
        node("Reshape", ["values", "pair"], ["pairs"]),
        node("MatMul", ["pairs", "w"], ["y"]),
        node("Add", ["values", "values"], ["doubled"]),
        node("ScatterND", ["x", "index", "doubled"], ["whole"]),
    ]
    constants = {"zero": np.float32(0), "pair": np.array([-1, 2]), "w": floats(2, 5)}
    ends = {"most": [], "y": [None, 5], "whole": [rows, columns]}
    graph = helper.make_graph(
        nodes,
        "pairing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, columns])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in ends.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_positives(count: int, rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> Array:
    """An array of which so many elements are positive."""
    flat = -1 - np.abs(floats(rows * columns, seed=seed))
    flat[np.random.default_rng(seed).permutation(rows * columns)[:count]] *= -1
    return flat.reshape(rows, columns)


def programs_of(model: onnx.ModelProto, threads: int = 1, **options: Any) -> LatePrograms:
    source, compiler = open_model(model), Compiler.of(num_threads=threads, **options)
    return LatePrograms(
        source.signature, lambda c: optimize(source.at(c, LateResults.SYMBOLIC)), compiler
    )


def run(programs: LatePrograms, x: Array) -> list[Array]:
    return programs.executable(Case.of({"x": x.shape})).run({"x": x})


def agree(actual: list[Array], expected: list[Array], tolerance: float = 1e-5) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_the_graph_goes_to_the_end_of_the_model() -> None:
    source = open_model(pairing())
    graph = source.at(CASE, LateResults.SYMBOLIC)
    late = late_sizes(graph)
    assert [(each.node.name, each.axis) for each in late.values()] == [("places", 1)]
    assert [n.name for n in graph.nodes if isinstance(n, External)] == ["places"]
    assert [name for name, _ in graph.outputs] == ["most", "y", "whole"]


def test_results_without_elements_are_known() -> None:
    source = open_model(pairing())
    case = Case((("x", (ROWS, COLUMNS)),), late=(("places", (2, 0)),))
    graph = source.at(case, LateResults.SYMBOLIC)
    assert not graph.symbols
    assert {name: end.type.fixed_shape for name, end in graph.outputs} == {
        "most": (),
        "y": (0, 5),
        "whole": (ROWS, COLUMNS),
    }


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_stream_of_counts_has_few_programs(threads: int) -> None:
    model = pairing()
    programs = programs_of(model, threads)
    for seed, count in enumerate((8, 2, 0, 24, 0, 4, 12, 2, 6, 10, 14, 16, 18, 20, 22, 8)):
        x = with_positives(count, seed=seed)
        agree(run(programs, x), by_onnxruntime(model, {"x": x}))
    # Vectors of some processors are too long for few pairs: these have a program of their own.
    assert len(programs.programs) <= 4, "for many, for few, for one pair, for nothing"


@given(st.integers(0, 12), st.integers(2, 9), st.integers(2, 9), st.integers(0, 99))
@expensive
def test_one_model_serves_all_sizes(pairs: int, rows: int, columns: int, seed: int) -> None:
    x = with_positives(min(2 * pairs, rows * columns // 2 * 2), rows, columns, seed)
    agree(run(SHARED, x), by_onnxruntime(FREE, {"x": x}))


FREE = pairing("rows", "columns")
SHARED = programs_of(FREE, threads=2)


class Products:
    """A code generator of matrix products, whose graphs have plain sizes."""

    name = "products"

    def supports(self, node: Node) -> bool:
        return isinstance(node, MatMul)

    def compile(self, segment: Graph, target: str, num_threads: int) -> Any:
        assert not segment.symbols
        return SimpleNamespace(run=lambda feeds: interpret(segment, feeds))


@pytest.mark.parametrize(
    "options",
    [{"backend": "reference"}, {"backends": [Products()]}],
    ids=["reference", "another code generator"],
)
def test_other_backends_get_graphs_of_plain_sizes(options: dict[str, Any]) -> None:
    model = pairing()
    programs = programs_of(model, **options)
    for seed, count in enumerate((8, 0, 2, 6, 8)):
        x = with_positives(count, seed=seed)
        agree(run(programs, x), by_onnxruntime(model, {"x": x}))


def test_no_segment_runs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Counter[str]()
    results = CompiledSegment.results

    def counted(segment: CompiledSegment, values: Mapping[str, Array]) -> dict[str, Array]:
        runs.update(n.name for n in segment.segment.nodes)
        return results(segment, values)

    programs = programs_of(pairing())
    monkeypatch.setattr(CompiledSegment, "results", counted)
    run(programs, with_positives(2))
    assert set(runs.values()) == {1}
    assert len(programs.programs) == 2, "the first one is for more pairs"


def test_values_that_are_only_called_alike_are_computed_again() -> None:
    model = pairing()
    executable = programs_of(model).executable(CASE)
    next(each for each in model.graph.node if each.op_type == "Relu").op_type = "Abs"
    other = programs_of(model).executable(CASE)
    computed = {name: np.zeros(1) for name in ("x", "r", "places", "positive")}
    late = {"places": (2, 4)}
    assert executable._reusable(other.program, computed, late).keys() == {"x", "places"}
    assert executable._reusable(executable.program, computed, late).keys() == computed.keys()


def test_onnxruntime_runs_sizes_without_a_program() -> None:
    """An odd number of values has no pairs."""
    compiled = qg.compile(FREE, num_threads=1)
    x = with_positives(4)
    agree(compiled.run(None, {"x": x}), by_onnxruntime(FREE, {"x": x}))
    with pytest.raises(qg.InputError, match="node 'pairs'"):
        compiled(with_positives(3))
    agree(compiled.run(None, {"x": x}), by_onnxruntime(FREE, {"x": x}))


def choosing_largest() -> onnx.ModelProto:
    """The largest half of the positive elements: how many is a size that no symbol stands for."""
    nodes = [
        node("Greater", ["x", "zero"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Transpose", ["places"], ["index"], perm=[1, 0]),
        node("GatherND", ["x", "index"], ["values"]),
        node("Shape", ["values"], ["count"]),
        node("Div", ["count", "two"], ["half"]),
        node("TopK", ["values", "half"], ["largest", "at"], axis=0),
        node("Reshape", ["largest", "column"], ["rows"]),
        node("MatMul", ["rows", "w"], ["y"]),
    ]
    constants = {"zero": np.float32(0), "two": np.array([2]), "column": np.array([-1, 1])}
    constants["w"] = floats(1, 3)
    graph = helper.make_graph(
        nodes,
        "largest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
def test_sizes_that_decide_the_graph_make_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Counter[str]()
    plan = late_programs.cut_program

    def counted(*arguments: Any) -> Any:
        plans["plans"] += 1
        return plan(*arguments)

    monkeypatch.setattr(late_programs, "cut_program", counted)
    model = choosing_largest()
    compiled = qg.compile(model, num_threads=1)
    for count in range(4, 60):
        x = with_positives(count, 8, 8 + count % 3, seed=count)
        agree(compiled.run(None, {"x": x}), by_onnxruntime(model, {"x": x}))
    assert plans["plans"] <= late_programs.MOST_OF_ONE_SIZE + 1


def test_a_size_that_no_symbol_has_is_refused() -> None:
    case = replace(CASE, late=(("places", (2, LARGEST + 1)),))
    with pytest.raises(qg.UnsupportedOpError, match="'places' has more than"):
        programs_of(pairing()).executable(case)


def test_an_observer_is_shown_all_products() -> None:
    compiled, feeds = qg.compile(FREE, num_threads=1), {"x": with_positives(8)}
    expected = count_products(FREE.SerializeToString(), feeds)
    assert count_by_run(lambda: compiled.run(None, feeds)).total == expected == 4 * 2 * 5


@pytest.mark.parametrize("counts", [(0, 2), (2, 0), (0, 1), (3, 2)])
def test_results_that_do_not_fit_each_other_are_refused(counts: tuple[int, int]) -> None:
    nodes = [
        *(node("NonZero", [name], [f"{name} places"]) for name in "xy"),
        *(node("Reshape", [f"{name} places", "flat"], [f"{name} flat"]) for name in "xy"),
        node("Add", ["x flat", "y flat"], ["sum"]),
    ]
    graph = helper.make_graph(
        nodes,
        "unequal",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n} size"]) for n in "xy"],
        [helper.make_tensor_value_info("sum", TensorProto.INT64, [None])],
        [numpy_helper.from_array(np.array([-1]), "flat")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    programs = programs_of(model)
    feeds = {
        n: np.repeat([1, 0], [k, 6 - k]).astype(np.float32)
        for n, k in zip("xy", counts, strict=True)
    }
    key = Case.of({name: array.shape for name, array in feeds.items()})
    if 1 in counts:
        agree(programs.executable(key).run(feeds), by_onnxruntime(model, feeds))
        return
    with pytest.raises(qg.QuantglowError):
        programs.executable(key).run(feeds)


def test_a_model_that_reads_only_the_size_of_a_result_is_left_to_onnxruntime() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("NonZero", ["r"], ["places"]),
        node("Shape", ["places"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "counting",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = qg.compile(model, num_threads=1)
    for count in (3, 0, 5):
        np.testing.assert_array_equal(compiled(with_positives(count)), [2, count])


def test_an_operator_that_passes_a_size_on_does_not_decide_it() -> None:
    """Det runs in onnxruntime, too, and comes first: it reads the number of places only."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Shape", ["places"], ["count"], start=1),
        node("Concat", ["count", "matrix"], ["size"], axis=0),
        node("Expand", ["one", "size"], ["ones"]),
        node("Det", ["ones"], ["det"]),
    ]
    graph = helper.make_graph(
        nodes,
        "matrices",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"])],
        [
            helper.make_tensor_value_info("det", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("places", TensorProto.INT64, [2, None]),
        ],
        [
            numpy_helper.from_array(np.array([4, 4]), "matrix"),
            numpy_helper.from_array(np.float32([1]), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    programs = programs_of(model)
    for count in (5, 2, 7):
        x = with_positives(count)
        agree(run(programs, x), by_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("least", [0, 4])
def test_a_size_of_what_nothing_reads_does_not_decide_the_graph(least: int) -> None:
    """More positive values than ``least`` let all be added to one; no program knows how many."""
    one = {
        op: helper.make_graph([node(op, ["x", "one"], ["r"])], op, [], []) for op in ("Add", "Sub")
    }
    for graph in one.values():
        graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, None))
    nodes = [
        node("Relu", ["x"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Size", ["places"], ["count"]),
        node("Greater", ["count", "least"], ["many"]),
        node("If", ["many"], ["y"], then_branch=one["Add"], else_branch=one["Sub"]),
    ]
    graph = helper.make_graph(
        nodes,
        "deciding",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array(2 * least), "least"),
            numpy_helper.from_array(np.float32(1), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(qg.UnsupportedOpError, match=r"nothing reads decide .*: places_1"):
        run(programs_of(model), with_positives(8))
    compiled = qg.compile(model, num_threads=1)
    for count in (8, 2, 0, 5):
        x = with_positives(count)
        agree([compiled(x)], by_onnxruntime(model, {"x": x}))


def distinct(*results: str) -> onnx.ModelProto:
    """A product of the distinct elements, which has tiles for several rows; ``results``: names of
    the other results of Unique, which nothing reads."""
    nodes = [
        node("Unique", ["x"], ["values", *results]),
        node("Reshape", ["values", "column"], ["rows"]),
        node("MatMul", ["rows", "w"], ["y"]),
    ]
    constants = {"column": np.array([-1, 1]), "w": floats(1, 16)}
    graph = helper.make_graph(
        nodes,
        "distinct",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["size"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 16])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_guards_hold_where_a_size_beside_is_read_by_nothing() -> None:
    model = distinct("indices", "inverse", "counts")
    programs = programs_of(model)
    for count in (9, 3, 2, 1, 20, 5):
        x = np.arange(24, dtype=np.float32) % count
        agree(run(programs, x), by_onnxruntime(model, {"x": x}))
    for program in programs.programs:
        *_, symbols = program.symbols_before
        assert all(guard.expression.names <= symbols for guard in program.guards.recorded)
    assert len(programs.programs) > 1, "tiles of eight rows do not serve three"


def test_a_guard_about_a_size_that_nothing_gives_is_refused() -> None:
    source = open_model(distinct())

    def graph_at(case: Any) -> Graph:
        graph = optimize(source.at(case, LateResults.SYMBOLIC))
        (late,) = late_sizes(graph).values()
        guards = find_guards([late.node.type.shape[late.axis]])
        assert guards is not None
        decide(size(symbol(guards.add_symbol("other", 9)), guards) >= 8)
        return graph

    programs = LatePrograms(source.signature, graph_at, Compiler.of(num_threads=1))
    with pytest.raises(qg.UnsupportedOpError, match="nothing reads decide what is computed: other"):
        run(programs, np.arange(9, dtype=np.float32))


@pytest.mark.slow
def test_large_branches_are_segments_that_run_where_they_are_taken() -> None:
    model = choosing()
    add_point(model.graph, "x", (300, 256), np.random.default_rng(0))
    programs = programs_of(model)
    for mean in (0.1, -0.1, 0.1):
        feeds = rows(300, mean)
        agree(run(programs, feeds["x"]), by_onnxruntime(model, feeds), tolerance=1e-3)
    (program,) = programs.programs
    assert any(segment.branches for segment in program.segments)


def test_the_report_lists_the_programs_by_their_conditions() -> None:
    compiled = qg.compile(FREE, num_threads=1)
    compiled(with_positives(4))
    programs = compiled.report.programs
    assert programs and {each.elsewhere for each in programs} == {"1 NonZero in onnxruntime"}
    assert any("places_1" in condition for each in programs for condition in each.conditions)
