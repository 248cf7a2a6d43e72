"""One program for all shapes of a graph that is cut: operators of onnxruntime, branches apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import open_model
from quantglow.importer.onnx.resolvers import inferred_types
from quantglow.ir.graph.attributes import encode
from quantglow.ir.graph.family import Case
from quantglow.ir.symbolic.size import size, to_expression
from quantglow.memory import planning
from quantglow.runtime.shapes import general_programs
from quantglow.runtime.shapes.general_segments import Retried, SegmentedProgram
from quantglow.runtime.shapes.specializations import FOR_ALL
from quantglow.support.arrays import Array
from tests.support.deformable import deformable, weights
from tests.support.free_network import image
from tests.unit.importer.onnx.onnx_models import by_onnxruntime
from tests.unit.importer.onnx.resolvers.test_free_externals import columns

SIZES = [(2, 3, 20, 24), (2, 3, 31, 26), (3, 3, 28, 33)]


def served(compiled: Any, feeds: dict[str, Array]) -> Any:
    """The program of a call."""
    return compiled.specialisations.at(feeds)


def agrees(compiled: Any, model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """Whether a model gives what onnxruntime gives."""
    for one, other in zip(compiled.run(None, feeds), by_onnxruntime(model, feeds), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 3])
def test_fifty_new_shapes_make_no_new_program(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = qg.compile(deformable(), num_threads=threads)
    for shape in [(2, 3, 80, 80), (2, 3, 20, 20), (2, 3, 40, 9), (2, 3, 9, 40), (2, 3, 80, 8)]:
        compiled(image(shape))
    programs = len(compiled.report.programs)

    def refused(*_: object) -> Any:
        pytest.fail("a shape was imported")

    monkeypatch.setattr("quantglow.importer.onnx.source.Source.scope", refused)
    monkeypatch.setattr(general_programs, "program_for_all", refused)
    for number in range(50):
        agrees(compiled, deformable(), {"x": image((2, 3, 20 + number, 75 - number))})
    assert len(compiled.report.programs) == programs


def test_the_report_says_what_the_segments_of_all_shapes_leave_to_onnxruntime() -> None:
    compiled = qg.compile(deformable(), num_threads=1)
    for shape in SIZES:
        compiled(image(shape))
    (entry,) = (each for each in compiled.report.programs if each.program == FOR_ALL)
    assert entry.shapes == "x [N, 3, H, W]"
    assert entry.elsewhere == "1 DeformConv in onnxruntime"


def test_sizes_are_operands_of_a_segment() -> None:
    model = columns()
    compiled = qg.compile(model, num_threads=1)
    for height, width in ((6, 9), (8, 7), (30, 11), (9, 40)):
        x = {"x": image((1, 4, height, width))}
        agrees(compiled, model, x)
    assert served(compiled, x).is_general
    assert len(compiled.report.programs) == 1


def choosing() -> onnx.ModelProto:
    """If(mean of x > 0): x @ a @ b, else x @ c; the number of rows is free."""
    known = [numpy_helper.from_array(weights(256, 256, seed=i, scale=0.06), n)
             for i, n in enumerate("abc")]  # fmt: skip
    known.append(numpy_helper.from_array(np.float32(0), "zero"))

    def result(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    two = [helper.make_node("MatMul", ["x", "a"], ["t"]), helper.make_node("MatMul", "tb", "u")]
    one = [helper.make_node("MatMul", "xc", "v")]
    bodies = {
        "then_branch": helper.make_graph(two, "two", [], [result("u")]),
        "else_branch": helper.make_graph(one, "one", [], [result("v")]),
    }
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["condition"]),
        helper.make_node("If", ["condition"], ["y"], **bodies),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 256])
    graph = helper.make_graph(nodes, "choosing", [x], [result("y")], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows(count: int, mean: float) -> dict[str, Array]:
    """As many rows of a mean."""
    x = weights(count, 256, seed=count, scale=1.0)
    return {"x": (x - x.mean() + np.float32(mean)).astype(np.float32)}


def test_branches_apart_are_segments_for_all_shapes() -> None:
    model = choosing()
    compiled = qg.compile(model, num_threads=1)
    for count in (300, 290, 320, 257, 400):
        for mean in (0.1, -0.1):
            agrees(compiled, model, rows(count, mean))
    actual = served(compiled, rows(400, 0.1))
    assert actual.is_general and isinstance(actual.build.executable, Retried)
    (program,) = compiled.specialisations.generals
    assert isinstance(program, SegmentedProgram)
    assert [bool(segment.branches) for segment in program.segments].count(True) >= 2
    assert program.fallback == ()


def test_a_shape_for_which_a_formula_is_wrong_gets_a_program_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = inferred_types.free_types

    def wrong(sizes: Any, types_at: Any) -> Any:
        actual = real(sizes, types_at)
        hint = {size.expression: size.hint for size in sizes}
        height = next(size for size in sizes if "H" in str(size.expression))
        for name, kind in actual.items():
            off = size(
                to_expression(height) + to_expression(-hint[height.expression]), sizes[0].guards
            )
            batch, channels, rows, columns = kind.dims
            actual[name] = replace(kind, dims=(batch, channels, rows + off, columns))
        return actual

    monkeypatch.setattr(inferred_types, "free_types", wrong)
    model = columns()
    compiled = qg.compile(model, num_threads=1)
    for height in (6, 8, 9, 11):
        agrees(compiled, model, {"x": image((1, 4, height, 10))})
    assert isinstance(served(compiled, {"x": image((1, 4, 11, 10))}).build.executable, Retried)


@pytest.mark.slow
def test_code_generators_of_others_get_graphs_of_one_shape() -> None:
    compiled = qg.compile(deformable(), num_threads=1, backends=[qg_reference()])
    for shape in SIZES:
        agrees(compiled, deformable(), {"x": image(shape)})
    assert {entry.program for entry in compiled.report.programs} == {"for this shape"}


def qg_reference() -> Any:
    """A code generator that takes nothing."""

    class Nothing:
        name = "nothing"

        def supports(self, node: object) -> bool:
            return False

        def compile(self, segment: object, target: str, num_threads: int) -> Any:
            raise AssertionError

    return Nothing()


def test_nodes_of_other_runtimes_in_graphs_of_all_shapes_are_checked(tmp_path: Path) -> None:
    compiled: Any = qg.compile(deformable(), num_threads=1)
    for shape in SIZES:
        compiled(image(shape))
    compiled.save(tmp_path / "m.qgm")
    qg.load(tmp_path / "m.qgm", num_threads=1)
    graphs = compiled.specialisations.generals.graphs
    model = next(n.model for n in graphs[0].at(graphs[0].hints)[0].nodes if n.op == "External")
    other = encode(model.replace(b"DeformConv", b"DeformConw"))
    graphs[0] = replace(graphs[0], text=graphs[0].text.replace(encode(model), other))
    compiled.save(tmp_path / "m.qgm")
    with pytest.raises(qg.FileFormatError, match="holds no valid ONNX model"):
        qg.load(tmp_path / "m.qgm", num_threads=1)


def test_a_graph_of_all_shapes_is_imported_with_its_operators_of_onnxruntime() -> None:
    graph = open_model(deformable()).at(Case.of({"x": SIZES[0]}))
    assert sum(node.op == "External" for node in graph.nodes) == 1


def test_segments_are_scheduled_as_the_user_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = planning.plan_program

    def planned(*arguments: Any, schedule: str) -> Any:
        asked.append(schedule)
        return real(*arguments, schedule=schedule)

    monkeypatch.setattr(planning, "plan_program", planned)
    compiled = qg.compile(deformable(), num_threads=1, schedule="memory")
    for shape in SIZES:
        compiled(image(shape))
    assert len(asked) >= 2 and set(asked) == {"memory"}
