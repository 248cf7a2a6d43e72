"""Families of models in which nodes decide sizes: the graphs of samples, and recorded results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.api.models import late_families
from quantglow.api.models.families import open_float_family
from quantglow.api.models.late_families import LateFamily
from quantglow.interpreter import RecordedFeeds, interpret
from quantglow.ir.graph.family import LEAST_NBYTES, LateResults, constant_arrays
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.types import DType
from quantglow.quantization.shape_variants import ShapeVariant
from quantglow.runtime.shapes import late_programs
from quantglow.support.arrays import Array
from tests.support.late_models import BUILDERS
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats
from tests.unit.runtime.shapes.test_late_programs import choosing_largest, with_positives

node = helper.make_node
ROWS, COLUMNS = 12, 16


def chosen_twice() -> onnx.ModelProto:
    """Rows with a positive first element (``some``), of these the ones with a positive second
    element (``few``), and a layer on each."""
    nodes = [node("MatMul", ["x", "w0"], ["a"])]
    for number, (value, result) in enumerate([("a", "some"), ("some", "few")]):
        nodes += [
            node("Gather", [value, f"column{number}"], [f"c{number}"], axis=1),
            node("Greater", [f"c{number}", "zero"], [f"positive{number}"]),
            node("Compress", [value, f"positive{number}"], [result], axis=0),
            node("MatMul", [result, f"w{number + 1}"], [f"y{number}"]),
        ]
    tables = {
        "zero": np.float32(0),
        "column0": np.array(0),
        "column1": np.array(1),
        "w0": np.eye(COLUMNS, dtype=np.float32),
        "w1": floats(COLUMNS, 8),
        "w2": floats(COLUMNS, 4),
    }
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS])]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, columns])
        for name, columns in (("y0", 8), ("y1", 4))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in tables.items()]
    graph = helper.make_graph(nodes, "twice", infos, ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_chosen(some: int, few: int, seed: int = 0) -> dict[str, Array]:
    """A sample of which so many rows are chosen, and so many of these again."""
    x = floats(ROWS, COLUMNS, seed=seed)
    x[:, :2] = -1
    x[:some, 0] = 1
    x[:few, 1] = 1
    return {"x": x}


@pytest.fixture
def family() -> LateFamily:
    family = open_float_family(chosen_twice(), late_results=LateResults.SYMBOLIC)
    assert isinstance(family, LateFamily)
    return family


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of elements that operators of onnxruntime were given, one entry for each run."""
    sizes: list[int] = []
    run = late_families.run_model

    def count(model: bytes, arrays: tuple[Array, ...]) -> list[Array]:
        sizes.append(arrays[0].size)
        return run(model, arrays)

    monkeypatch.setattr(late_families, "run_model", count)
    return sizes


@pytest.mark.parametrize(("some", "few"), [(12, 12), (7, 3), (7, 1), (1, 1), (5, 0), (0, 0)])
def test_the_graph_of_a_sample_has_its_sizes(family: LateFamily, some: int, few: int) -> None:
    feeds = with_chosen(some, few)
    graph = family.fitting(feeds)
    assert not graph.symbols
    assert [end.type.fixed_shape for _, end in graph.outputs] == [(some, 8), (few, 4)]
    for one, other in zip(
        interpret(graph, feeds), by_onnxruntime(chosen_twice(), feeds), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_case_of_a_sample_has_the_shapes_that_it_leads_to(family: LateFamily) -> None:
    case = family.case_of(with_chosen(7, 3))
    assert case.shape_map == {"x": (ROWS, COLUMNS)}
    assert dict(case.late) == {"some": (7, COLUMNS), "few": (3, COLUMNS)}


def test_a_node_that_decides_runs_once_for_a_sample(family: LateFamily, runs: list[int]) -> None:
    feeds = RecordedFeeds(with_chosen(7, 3))
    family.fitting(feeds)
    assert runs == [ROWS * COLUMNS, 7 * COLUMNS]
    family.case_of(feeds)
    family.case_of(with_chosen(7, 3))  # an equal one
    assert len(runs) == 2
    assert {name: array.shape for name, array in feeds.results.items()} == {
        "some": (7, COLUMNS),
        "few": (3, COLUMNS),
    }


def test_samples_of_many_sizes_share_a_graph_that_is_imported_once(family: LateFamily) -> None:
    cases = []
    make = family.make
    family.make = lambda case: cases.append(case) or make(case)  # type: ignore[func-returns-value]
    for some, few in ((7, 3), (9, 2), (12, 12), (5, 4)):
        family.fitting(with_chosen(some, few))
    assert len(cases) == 3, "before and between the nodes that decide, and behind them"


def test_graphs_share_their_constants(family: LateFamily) -> None:
    family.make = lambda case, make=family.make: with_large_constants(make(case))
    pairs = [(7, 3), (1, 1), (0, 0), (9, 2)]
    graphs = [family.fitting(with_chosen(*sizes)) for sizes in pairs]
    large = [[a for a in constant_arrays(g) if a.nbytes >= LEAST_NBYTES] for g in graphs]
    assert all(len(arrays) == 1 for arrays in large)
    assert len({id(array) for arrays in large for array in arrays}) == 1


def with_large_constants(graph: Graph) -> Graph:
    """The graph with an output more, which is a large constant."""
    constant = Constant(name="large", value=np.ones(LEAST_NBYTES, np.float32))
    return replace(graph, outputs=(*graph.outputs, ("large", constant)))


def test_a_run_takes_recorded_results(family: LateFamily) -> None:
    """Here the graph of one sample, on another one, which would choose other rows."""
    feeds = RecordedFeeds(with_chosen(7, 3))
    graph = family.fitting(feeds)
    other = RecordedFeeds(with_chosen(2, 1, seed=1), feeds.results)
    results = interpret(graph, other)
    assert [array.shape for array in results] == [(7, 8), (3, 4)]
    np.testing.assert_array_equal(results[1], interpret(graph, feeds)[1])
    assert ShapeVariant(other, graph).results is feeds.results


def near_the_border(seed: int) -> dict[str, Array]:
    """A sample of which about half of the rows are chosen, each by a hair: rounded numbers choose
    other rows."""
    feeds = with_chosen(ROWS, ROWS, seed)
    feeds["x"][:, :2] = 0.001 * floats(ROWS, 2, seed=seed)
    return feeds


def border_samples() -> Iterator[dict[str, Array]]:
    yield from (with_chosen(ROWS, ROWS // 2, seed) for seed in range(2))
    yield from map(near_the_border, range(10))


@pytest.mark.parametrize("options", [{}, {"max_drop": 0.9}, {"measure_speed": True}], ids=str)
def test_where_rounded_numbers_choose_otherwise_the_model_is_calibrated_all_the_same(
    options: dict[str, object],
) -> None:
    compiled = qg.quantize_and_compile(
        chosen_twice(), list(border_samples()), progress=False, num_threads=2, **options
    )
    assert isinstance(compiled, qg.CompiledModel)
    layers = {layer.name: layer for layer in compiled.report.layers}
    assert {"y0", "y1"} <= layers.keys()
    if not options:
        assert layers["y0"].precision == layers["y1"].precision == "int8"
        assert any("has another shape than in float" in note for note in compiled.report.notes)
    for some, few in ((0, 0), (1, 1), (9, 4)):
        feeds = with_chosen(some, few, seed=50)
        results, expected = compiled.run(None, feeds), by_onnxruntime(chosen_twice(), feeds)
        assert [r.shape for r in results] == [e.shape for e in expected]


def test_a_profile_has_the_sizes_of_its_samples(tmp_path: object) -> None:
    profile = qg.profile(chosen_twice(), [with_chosen(7, 3), with_chosen(9, 0)], progress=False)
    path = f"{tmp_path}/late.npz"
    profile.save(path)
    loaded = qg.Profile.load(path)
    assert loaded == profile
    assert loaded.main_cases[0].late == (("few", (3, COLUMNS)), ("some", (7, COLUMNS)))
    compiled = qg.quantize_and_compile(chosen_twice(), profile, progress=False, num_threads=1)
    assert compiled.report.int8_share is not None and compiled.report.int8_share.share == 1.0


def test_the_graph_of_a_file_is_one_of_plain_sizes_and_no_program(tmp_path: object) -> None:
    compiled = qg.quantize_and_compile(
        chosen_twice(), list(border_samples()), progress=False, num_threads=1
    )
    compiled.save(f"{tmp_path}/late.qgm")
    loaded = qg.load(f"{tmp_path}/late.qgm", num_threads=1)
    saved_again = f"{tmp_path}/again.qgm"
    loaded.save(saved_again)
    again = qg.load(saved_again, num_threads=3)
    for some, few in ((9, 4), (0, 0), (1, 1), (1, 0), (12, 12)):
        feeds = with_chosen(some, few, seed=70)
        expected = compiled.run(None, feeds)
        for other in (loaded, again, loaded.with_num_threads(2)):
            for one, array in zip(other.run(None, feeds), expected, strict=True):
                np.testing.assert_array_equal(one, array)


def test_int8_results_do_not_depend_on_the_programs_that_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Sizes of none, one and many rows have programs of their own, more than are held here."""
    monkeypatch.setattr(late_programs, "MOST_PROGRAMS", 2)
    compiled = qg.quantize_and_compile(
        chosen_twice(), list(border_samples()), progress=False, num_threads=1
    )
    compiled.save(f"{tmp_path}/late.qgm")
    sizes = [(7, 3), (1, 1), (0, 0), (5, 0), (7, 3), (4, 1), (1, 0), (7, 3), (0, 0), (1, 1)]
    for some, few in sizes:
        feeds = with_chosen(some, few, seed=some)
        fresh = qg.load(f"{tmp_path}/late.qgm", num_threads=1)
        for one, other in zip(compiled.run(None, feeds), fresh.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(compiled.specialisations.late.programs) == 2


def has_opaque_values(compiled: Any) -> bool:
    return any(node.type.dtype is DType.OPAQUE for node in compiled.graph.nodes)


def test_where_each_size_would_have_a_program_results_are_opaque(tmp_path: object) -> None:
    model = choosing_largest()
    samples = [{"x": with_positives(2 * count, seed=count)} for count in range(1, 9)]
    compiled = qg.quantize_and_compile(model, samples, progress=False, num_threads=1)
    assert has_opaque_values(compiled)
    compiled.save(f"{tmp_path}/opaque.qgm")
    for feeds in samples:
        fresh = qg.load(f"{tmp_path}/opaque.qgm", num_threads=1)
        for one, other in zip(compiled.run(None, feeds), fresh.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)


def test_other_threads_give_the_same_bits_after_a_run_another_way() -> None:
    """A product of rows chosen by two columns: of no rows by some, its size is read by nothing."""
    nodes = [node("MatMul", ["x", "w0"], ["a"])]
    for number, result in enumerate(("some", "few")):
        nodes += [
            node("Gather", ["x", f"column{number}"], [f"c{number}"], axis=1),
            node("Greater", [f"c{number}", "zero"], [f"positive{number}"]),
            node("Compress", ["a", f"positive{number}"], [result], axis=0),
        ]
    nodes += [node("Transpose", ["few"], ["turned"]), node("MatMul", ["some", "turned"], ["y"])]
    model = chosen_twice()
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    model.graph.output.append(y)
    samples = [with_chosen(some, few, seed=some) for some, few in ((7, 5), (9, 3), (12, 12))]
    compiled = qg.quantize_and_compile(model, samples, progress=False, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    (expected,) = compiled.run(None, samples[0])
    empty = with_chosen(0, 0)
    empty["x"][:3, 1] = 1
    assert compiled.run(None, empty)[0].shape == (0, 3)
    np.testing.assert_array_equal(compiled.with_num_threads(2).run(None, samples[0])[0], expected)


def test_a_size_that_what_is_behind_asks_for_is_a_symbol() -> None:
    """All rows are chosen, which a bias for so many of them asks for."""
    model = chosen_twice()
    del model.graph.node[4:], model.graph.output[1:]
    model.graph.node.append(node("Add", ["some", "rows"], ["sum"]))
    model.graph.node.append(node("MatMul", ["sum", "w1"], ["y0"]))
    table = floats(ROWS, COLUMNS, seed=1)
    model.graph.initializer.append(numpy_helper.from_array(table, "rows"))
    samples = [with_chosen(ROWS, 1, seed) for seed in range(3)]
    compiled = qg.quantize_and_compile(model, samples, progress=False, num_threads=1)
    assert not has_opaque_values(compiled)
    (result,), (expected,) = compiled.run(None, samples[0]), by_onnxruntime(model, samples[0])
    assert np.abs(result - expected).max() < 0.1 * np.abs(expected).max()


def test_a_file_knows_which_values_decide_beside_late_sizes(tmp_path: object) -> None:
    model = chosen_twice()
    model.graph.input.append(helper.make_tensor_value_info("times", TensorProto.INT64, [2]))
    model.graph.node.append(node("Tile", ["y1", "times"], ["tiled"]))
    info = helper.make_tensor_value_info("tiled", TensorProto.FLOAT, [None, None])
    model.graph.output.append(info)

    def sample(count: int, seed: int) -> dict[str, Array]:
        return {**with_chosen(7, 3, seed), "times": np.array([count, 1])}

    samples = [sample(2, seed) for seed in range(3)]
    compiled = qg.quantize_and_compile(model, samples, progress=False, num_threads=1)
    compiled.save(f"{tmp_path}/late.qgm")
    loaded = qg.load(f"{tmp_path}/late.qgm", num_threads=1)
    for count in (3, 1, 2):
        feeds = sample(count, seed=5)
        for one, other in zip(loaded.run(None, feeds), compiled.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)


def test_weights_in_groups_are_compared_with_float_behind_late_sizes() -> None:
    samples = [with_chosen(some, few, seed=some) for some, few in ((7, 3), (9, 0), (12, 12))]
    compiled = qg.quantize_and_compile(
        chosen_twice(), samples, weights="int4", progress=False, num_threads=1
    )
    assert isinstance(compiled, qg.CompiledModel)
    assert [output.name for output in compiled.report.outputs] == ["y0", "y1"]


def test_a_graph_with_late_sizes_is_no_model() -> None:
    """Its program continues in those of other graphs."""
    compiled = qg.compile(BUILDERS["detector"]().model, num_threads=1)
    assert compiled.graph.has_free_sizes
    for call in (qg.compile, lambda graph: qg.profile(graph, [], progress=False)):
        with pytest.raises(qg.OptionError, match=r"nodes of the graph decide sizes.*Remedy: pass"):
            call(compiled.graph)
