"""One compiled model serves every shape that fits; each is compiled once, on first use."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import quantglow as qg
from quantglow.importer.onnx import open_model
from quantglow.ir.graph.family import Case, FreeCase
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.report import Report
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.errors import InputError
from tests.support.free_network import SHAPES, free_model, image, sum_model, wide_model
from tests.unit.forking import exit_code_of_child


@pytest.fixture(scope="module")
def compiled() -> qg.CompiledModel:
    return qg.compile(free_model(), num_threads=1)


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(free_model().SerializeToString())


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_what_onnxruntime_gives(compiled: Any, session: Any, shape: Any) -> None:
    feeds = {"x": image(shape)}
    for value, expected in zip(compiled.run(None, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_free_dimensions_are_described_as_in_onnxruntime(compiled: Any, session: Any) -> None:
    ours = [*compiled.get_inputs(), *compiled.get_outputs()]
    theirs = [*session.get_inputs(), *session.get_outputs()]
    assert [(i.name, i.shape, i.type) for i in ours] == [(i.name, i.shape, i.type) for i in theirs]


def test_a_dimension_without_a_name_is_none() -> None:
    model = sum_model([None, 3])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert qg.compile(model).get_inputs()[0].shape == session.get_inputs()[0].shape == [None, 3]


def test_input_shapes_fix_the_shape() -> None:
    fixed = qg.compile(free_model(), input_shapes={"x": (1, 3, 8, 8)}, num_threads=1)
    with pytest.raises(InputError, match=r"'x' must be float32 of shape \(1, 3, 8, 8\)"):
        fixed.run(None, {"x": image((1, 3, 8, 9))})


def test_a_free_batch_alone_is_compiled_for_one_at_once() -> None:
    compiled = qg.compile(sum_model(["N", 3]))
    assert compiled.graph.inputs[0].type.shape == (1, 3)
    assert compiled(np.ones((5, 3), np.float32)).shape == (5, 3)


def test_nothing_is_there_to_look_at_before_the_first_run() -> None:
    with pytest.raises(InputError, match=r"not run yet.*Remedy: run it once"):
        _ = qg.compile(free_model()).graph


@pytest.mark.parametrize("options", [None, {"weights": "int4", "group_size": 16}])
def test_a_model_that_was_not_run_is_saved(options: Any, tmp_path: Path) -> None:
    if options is None:
        compiled: Any = qg.compile(free_model(), num_threads=1)
    else:
        compiled = qg.quantize_and_compile(
            free_model(), None, num_threads=1, progress=False, verify=False, **options
        )
    compiled.save(tmp_path / "model.qgm")
    loaded = qg.load(tmp_path / "model.qgm", num_threads=1)
    loaded.save(tmp_path / "again.qgm")
    again = qg.load(tmp_path / "again.qgm", num_threads=1)
    for shape in SHAPES[:3]:
        for value in (loaded.run(None, {"x": image(shape)}), again.run(None, {"x": image(shape)})):
            for mine, right in zip(value, compiled.run(None, {"x": image(shape)}), strict=True):
                np.testing.assert_array_equal(mine, right)


def test_one_row_that_has_another_rank_is_no_piece_of_a_batch() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    nodes = [helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    graph = helper.make_graph(nodes, "squeezed", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    compiled = qg.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    for rows in (1, 2, 5, 1, 3):
        fed = np.full((rows, 3), 2, np.float32)
        np.testing.assert_array_equal(compiled(fed), fed.squeeze())


def test_a_symbol_has_one_size() -> None:
    compiled = qg.compile(sum_model(["N", "L"], ["N", "L"]))
    with pytest.raises(InputError, match="'L' is 3 in input 'x0' but 1 in input 'x1'"):
        compiled(np.ones((2, 3), np.float32), np.ones((2, 1), np.float32))


def test_question_marks_are_no_symbol() -> None:
    compiled = qg.compile(sum_model(["?", "?"], ["?", "?"]))
    assert compiled(np.ones((2, 3), np.float32), np.ones((1, 1), np.float32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((1, 4, 8, 8), np.float32), r"the model takes \(N, 3, H, W\)"),
        (np.ones((3, 8, 8), np.float32), r"the model takes \(N, 3, H, W\)"),
        (np.ones((0, 3, 8, 8), np.float32), "free dimensions are at least 1"),
        (np.ones((1, 3, 8, 7), np.float64), r"must be float32, got float64. Remedy: cast"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(compiled: Any, array: Any, message: str) -> None:
    compiled.run(None, {"x": image((1, 3, 8, 8))})
    with pytest.raises(InputError, match=message):
        compiled.run(None, {"x": array})


@pytest.mark.parametrize("feeds", [{}, {"x": image(SHAPES[0]), "z": image(SHAPES[0])}])
def test_wrong_names_are_refused(compiled: Any, feeds: Any) -> None:
    with pytest.raises(InputError, match=r"the model takes \['x'\]"):
        compiled.run(None, feeds)


def test_shapes_the_operators_refuse_are_reported_with_the_node() -> None:
    compiled = qg.compile(sum_model(["A"], ["B"]))
    for _ in range(2):
        with pytest.raises(InputError, match=r"'x0': .2.*node 'sum'.*Remedy"):
            compiled(np.ones(2, np.float32), np.ones(3, np.float32))


def test_changing_the_model_afterwards_changes_nothing(session: Any) -> None:
    model = free_model()
    compiled = qg.compile(model)
    del model.graph.node[:]
    feeds = {"x": image((1, 3, 4, 4))}
    np.testing.assert_allclose(compiled.run(None, feeds)[0], session.run(None, feeds)[0], rtol=1e-4)


def test_importing_again_is_importing_at_that_shape() -> None:
    source = open_model(free_model())
    for shape in SHAPES:
        shapes = {"x": shape}
        assert str(source.graph(shapes)) == str(qg.import_model(free_model(), shapes))


class Counted:
    """Programs of ``free_model`` on the reference backend; notes which shapes are compiled."""

    def __init__(self, **limits: int) -> None:
        source = open_model(free_model())
        self.compiled_widths: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

        def graph_at(case: Case) -> Graph:
            shapes = case.shape_map
            self.compiled_widths.append(shapes["x"][3])
            if shapes["x"][3] == 2:
                self.gate.wait(60)
            return source.graph(shapes)

        compiler = Compiler.of(backend="reference")
        self.programs = FreeShapes(source.signature, graph_at, compiler, **limits)

    def run(self, width: int) -> Any:
        feeds = {"x": image((1, 3, 2, width))}
        return self.programs.at(feeds).run(feeds)


def test_threads_compile_a_new_shape_once_and_others_go_on() -> None:
    counted = Counted()
    counted.run(1)
    counted.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(counted.run, 2) for _ in range(3)]
        assert counted.run(1)[0].shape == (1, 4)
        assert not any(future.done() for future in waiting)
        counted.gate.set()
        assert all(future.result()[0].shape == (1, 4) for future in waiting)
    assert counted.compiled_widths == [1, 2]


def test_the_programs_used_last_are_kept() -> None:
    counted = Counted(most_programs=2)
    for width in (1, 3, 4, 3, 4, 1):
        counted.run(width)
    assert [shapes["x"][3] for shapes in counted.programs.shapes] == [4, 1]
    assert counted.compiled_widths == [1, 3, 4, 3, 4]


def test_programs_beyond_the_bytes_are_dropped() -> None:
    counted = Counted(most_nbytes=1)
    for width in (1, 3, 4):
        counted.run(width)
    assert [shapes["x"][3] for shapes in counted.programs.shapes] == [1, 4]


def test_a_failed_shape_is_tried_again() -> None:
    counted = Counted()
    feeds = {"x": image((1, 5, 2, 2))}
    for _ in range(2):
        with pytest.raises(InputError):
            counted.programs.at(feeds)
    assert counted.programs.shapes == []


def test_an_error_of_the_program_for_all_shapes_is_no_error_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*_: object) -> None:
        raise TypeError("a size is no index")

    monkeypatch.setattr("quantglow.runtime.shapes.general_programs.program_for_all", wrong)
    compiled = qg.compile(sum_model(["N", "L"]))
    with pytest.raises(TypeError):
        compiled(np.ones((3, 3), np.float32))
    monkeypatch.setenv("QUANTGLOW_VERIFY", "0")
    assert compiled(np.ones((3, 3), np.float32)).shape == (3, 3)


@pytest.mark.parametrize("kind", ["float", "int8"])
def test_the_first_program_serves_a_second_shape(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "int8":
        data = [image((1, 3, 16, 24), seed) for seed in range(4)]
        compiled: Any = qg.quantize_and_compile(free_model(), data, num_threads=1, progress=False)
        assert {"lower", "plan", "generate code"} <= compiled.report.seconds.keys()
    else:
        compiled = qg.compile(free_model(), num_threads=1)
        compiled(image((1, 3, 16, 24)))
    assert compiled.report.memory.peak_nbytes > 0
    for name in (
        "quantglow.importer.onnx.Source.at",
        "quantglow.runtime.jit.library.KernelLibrary.compile",
        "quantglow.runtime.jit.library.KernelLibrary.load_symbols",
    ):
        monkeypatch.setattr(name, None)
    compiled(image((1, 3, 20, 18)))
    assert [each.program for each in compiled.report.programs] == ["for all shapes"]


@pytest.mark.slow
def test_few_programs_serve_ever_smaller_images() -> None:
    compiled = qg.compile(free_model(), num_threads=1)
    for size in (64, 50, 40, 33, 29, 26, 23, 20, 17, 15, 13, 11, 9, 8, 7, 6, 5, 4, 3):
        compiled(image((1, 3, size, size)))
    report: Any = compiled.report
    assert sum(value.program == "for all shapes" for value in report.programs) <= 4


def scaled_rows(last: str) -> onnx.ModelProto:
    """x [N, 4, L] times a factor for each row, then a layer that has the rows as channels."""
    rng = np.random.default_rng(0)
    if last == "Conv":
        behind = [helper.make_node("Conv", ["a", "w"], ["y"])]
    else:
        behind = [helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1])]
        behind.append(helper.make_node("MatMul", ["t", "w"], ["y"]))
    w = rng.normal(size=(5, 4, 3) if last == "Conv" else (4, 5)).astype(np.float32)
    c = rng.uniform(0.5, 1, (4, 1)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "c"], ["a"]), *behind],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 4, "L"])],
        [helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(value, name) for value, name in ((w, "w"), (c, "c"))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("last", ["Conv", "MatMul"])
def test_one_program_serves_all_batches_and_lengths_of_scaled_rows(last: str) -> None:
    compiled = qg.compile(scaled_rows(last), num_threads=1)
    for batch, length in ((1, 9), (2, 8), (3, 10), (5, 12), (6, 11)):
        compiled(image((batch, 4, length)))
    report: Any = compiled.report
    assert [each.shapes for each in report.programs] == ["x [1, 4, L]", "x [N, 4, L]"]


@pytest.mark.slow
def test_the_report_lists_the_programs_of_all_shapes() -> None:
    compiled = qg.compile(free_model(), num_threads=1)
    for shape in ((1, 3, 16, 24), (1, 3, 20, 18), (1, 3, 17, 21)):
        compiled(image(shape))
    report: Any = compiled.report
    (general,) = report.programs
    assert (general.shapes, general.program) == ("x [1, 3, H, W]", "for all shapes")
    assert all(">=" in text or "<" in text or "!=" in text for text in general.conditions)
    assert Report.from_json(report.to_json()) == report
    assert "Programs: 1 for the shapes so far" in str(report)


def test_programs_of_other_shapes_share_packed_weights() -> None:
    compiled = qg.compile(wide_model(), num_threads=1)

    def large(shape: tuple[int, ...]) -> set[int]:
        build = compiled.specialisations.at({"x": image(shape)}).build
        return {id(p) for p in build.executable.loaded.constant_arrays if p.nbytes > 4096}

    first = large((1, 64, 16, 16))
    assert first
    assert first == large((2, 64, 16, 16))  # the same register tile, so packed alike


def test_graphs_of_other_shapes_share_constants() -> None:
    compiled = qg.compile(wide_model(), num_threads=1)

    def weights(shape: tuple[int, ...]) -> set[int]:
        nodes = compiled.specialisations.at({"x": image(shape)}).graph.nodes
        return {id(n.value) for n in nodes if isinstance(n, Constant) and n.value.nbytes > 4096}

    first = weights((1, 64, 16, 16))
    assert first
    assert first == weights((2, 64, 16, 24))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_a_shape_is_compiled_compiles_it_itself() -> None:
    source = open_model(free_model())
    begun, parent = threading.Event(), os.getpid()

    def graph_at(case: Case) -> Graph:
        if os.getpid() == parent:
            begun.set()
            time.sleep(0.3)
        return source.at(case)

    programs = FreeShapes(source.signature, graph_at, Compiler.of(num_threads=1))
    feeds = {"x": image(SHAPES[0])}
    thread = threading.Thread(target=programs.at, args=(feeds,))
    thread.start()
    begun.wait()
    assert exit_code_of_child(lambda: programs.at(feeds).graph is not None) == 0
    thread.join()


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
def test_integers_are_reduced_along_any_length(op: str) -> None:
    """A mask's length in tokens, and the like: one program, and exact sums."""
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(op, ["x"], ["y"], axes=[1], keepdims=0)
    kind = onnx.TensorProto.INT64
    ends = [info("x", kind, ["B", "T", 3])], [info("y", kind, ["B", 3])]
    graph = onnx.helper.make_graph([node], "g", *ends)
    opsets = [onnx.helper.make_opsetid("", 11)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = qg.compile(model, num_threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch, length in ((2, 5), (3, 20), (2, 3), (5, 33)):
        x = np.random.default_rng(0).integers(-2, 3, (batch, length, 3))
        (actual,), (expected,) = (f.run(None, {"x": x}) for f in (compiled, session))
        np.testing.assert_array_equal(actual, expected)
    report: Any = compiled.report
    assert sum(actual.program == "for all shapes" for actual in report.programs) == 1


def shrinking_model() -> onnx.ModelProto:
    """x [N, C, W] -> two pools of wide strides, so that short rows end in one element."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m"], kernel_shape=[4], strides=[3], auto_pad=SAME),
        helper.make_node("AveragePool", ["m"], ["y"], kernel_shape=[2], strides=[2]),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, ["N", "C", f"{n}W"]) for n in "xy")
    graph = helper.make_graph(nodes, "pools", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SAME = "SAME_UPPER"


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_size_that_is_always_one_does_not_keep_batches_together(threads: int) -> None:
    """Pieces of a batch whose outputs have an axis of 1, by a guard."""
    compiled = qg.compile(shrinking_model(), num_threads=threads)
    session = onnxruntime.InferenceSession(shrinking_model().SerializeToString())
    for shape in ((4, 17, 5), (5, 18, 6), (6, 19, 7), (9, 35, 8)):
        x = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(compiled(x), session.run(None, {"x": x})[0], rtol=1e-6)


def test_a_reduced_axis_that_is_surely_a_multiple_has_no_rest() -> None:
    nodes = [
        helper.make_node("Concat", ["x"] * 4, ["four"], axis=1),
        helper.make_node("ReduceMax", ["four"], ["y"], axes=[1], keepdims=0),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
        for name, dims in (("x", [3, "N", 70]), ("y", [3, 70]))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = qg.compile(model, num_threads=1)
    for rows in (5, 6, 9):
        x = image((3, rows, 70))
        np.testing.assert_array_equal(compiled(x), x.max(axis=1))
    assert compiled.specialisations.at({"x": x}).is_general


@pytest.mark.parametrize("call", range(1, 16))
def test_ctrl_c_where_programs_are_looked_up_is_no_other_error(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qg.compile(sum_model(["N", 3], ["N", 3]), num_threads=1)
    feeds = [{f"x{i}": np.full((n, 3), i + 1, np.float32) for i in range(2)} for n in range(1, 5)]
    for value in feeds[:3]:
        model.run(None, value)
    hashed, calls = Case.__hash__, iter(range(1, 1000))

    def interrupted(case: Case) -> int:
        if next(calls) == call:
            raise KeyboardInterrupt
        return hashed(case)

    with monkeypatch.context() as patched:
        patched.setattr(Case, "__hash__", interrupted)
        with suppress(KeyboardInterrupt):
            model.run(None, feeds[3])
    for value in (*feeds, *feeds):
        (actual,) = model.run(None, value)
        np.testing.assert_array_equal(actual, value["x0"] + value["x1"])


def test_ctrl_c_in_one_call_ends_no_other_that_waits_for_its_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = qg.compile(free_model(), num_threads=1)
    x, usual, entered = image(SHAPES[0]), FreeShapes.shared_graph_at, threading.Event()

    def interrupted(programs: FreeShapes, case: FreeCase) -> Graph:
        if entered.is_set():
            return usual(programs, case)
        entered.set()
        time.sleep(0.2)  # the other call comes meanwhile
        raise KeyboardInterrupt

    monkeypatch.setattr(FreeShapes, "shared_graph_at", interrupted)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(model.run, None, {"x": x})
        assert entered.wait(60)
        other = pool.submit(model.run, None, {"x": x})
        assert isinstance(first.exception(60), KeyboardInterrupt)
        assert len(other.result(60)) == len(model.get_outputs())
