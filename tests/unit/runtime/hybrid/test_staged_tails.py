"""The part behind an operator that decides shapes is compiled once its shapes are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from quantglow.runtime.hybrid.tails import StagedTail

import quantglow as qg
from quantglow.importer.onnx import divide, open_model, split
from quantglow.runtime.hybrid.fallback_model import PartlyCompiledModel
from quantglow.runtime.shapes import general_programs
from quantglow.runtime.shapes.specializations import FOR_ALL
from tests.support.choosing_rows import choosing_rows, rows_of
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

pytestmark = pytest.mark.usefixtures("in_parts")

COUNTS = (20, 27, 40, 63, 33)


def agrees(compiled: Any, model: onnx.ModelProto, x: np.ndarray) -> None:
    """Whether a model gives what onnxruntime gives."""
    for one, other in zip(
        compiled.run(None, {"x": x}), by_onnxruntime(model, {"x": x}), strict=True
    ):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def stages(model: onnx.ModelProto, rows: int = 24) -> Any:
    """The parts of a model's tail."""
    parts = split(open_model(model), {"x": (rows, 16)})
    assert parts is not None
    return divide(parts.tail, parts.late)


def test_an_operator_that_decides_shapes_is_apart() -> None:
    behind = stages(choosing_rows("N"))
    assert [node.op_type for node in behind.first.graph.node] == ["NonZero"]
    assert {node.op_type for node in behind.suffix.graph.node} >= {
        "Squeeze",
        "Gather",
        "Gemm",
        "Relu",
    }
    assert [output.name for output in behind.suffix.graph.output] == ["y", "shape", "chosen"]
    for part in (behind.first, behind.suffix):
        open_model(part)


def test_a_rest_without_products_is_not_worth_it() -> None:
    assert stages(choosing_rows("N", heavy=False)) is None


def test_a_reader_of_a_sequence_stays_with_it() -> None:
    model = choosing_rows("N")
    model.graph.node.extend(
        [
            helper.make_node("SplitToSequence", ["chosen"], ["pieces"], axis=0),
            helper.make_node("SequenceLength", ["pieces"], ["count"]),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    behind = stages(model)
    firsts = {node.op_type for node in behind.first.graph.node}
    assert firsts >= {"NonZero"} and "Gemm" not in firsts
    compiled = qg.compile(model, num_threads=1)
    for count in COUNTS:
        agrees(compiled, model, rows_of(count))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", ["N", 40])
def test_the_rest_gives_what_onnxruntime_gives(rows: Any, threads: int) -> None:
    model = choosing_rows(rows)
    compiled = qg.compile(model, num_threads=threads)
    for seed, count in enumerate(COUNTS):
        agrees(compiled, model, rows_of(40 if rows == 40 else count, seed))


def test_no_rows_at_all_are_left_to_onnxruntime() -> None:
    model = choosing_rows("N")
    compiled = qg.compile(model, num_threads=1)
    for count in COUNTS:
        agrees(compiled, model, np.zeros((count, 16), np.float32))
        agrees(compiled, model, rows_of(count))


def test_one_row_has_a_program_too() -> None:
    model = choosing_rows("N")
    compiled = qg.compile(model, num_threads=1)
    x = np.zeros((9, 16), np.float32)
    x[4] = next(row for row in rows_of(30) if by_onnxruntime(model, {"x": row[None]})[0].size)
    agrees(compiled, model, x)


def test_shapes_that_are_decided_twice_are_cut_twice() -> None:
    model = choosing_rows("N", again=True)
    compiled = qg.compile(model, num_threads=1)
    for seed, count in enumerate(COUNTS):
        agrees(compiled, model, rows_of(count, seed))
    assert isinstance(compiled, PartlyCompiledModel) and isinstance(compiled.session, StagedTail)
    programs = [entry for entry in compiled.report.programs if entry.program == FOR_ALL]
    assert any("NonZero in onnxruntime" in entry.elsewhere for entry in programs), programs


def test_fifty_new_counts_make_no_new_program(monkeypatch: pytest.MonkeyPatch) -> None:
    model = choosing_rows("N")
    compiled = qg.compile(model, num_threads=1)
    for count in (200, 20, 100, 8, 12, 30):
        for seed in range(3):
            compiled(rows_of(count, seed))
    programs = len(compiled.report.programs)

    def refused(*_: object) -> Any:
        pytest.fail("a shape was imported")

    monkeypatch.setattr("quantglow.importer.onnx.source.Source.scope", refused)
    monkeypatch.setattr(general_programs, "program_for_all", refused)
    for number in range(50):
        agrees(compiled, model, rows_of(40 + 3 * number, number))
    assert len(compiled.report.programs) == programs


def test_the_report_has_the_programs_of_both_parts() -> None:
    compiled = qg.compile(choosing_rows("N"), num_threads=1)
    for seed, count in enumerate(COUNTS):
        compiled(rows_of(count, seed))
    entries = [entry.shapes for entry in compiled.report.programs if entry.program == FOR_ALL]
    assert "x [N, 16]" in entries
    assert any("chosen:found [1, " in shapes for shapes in entries), entries
    assert [node.op for node in compiled.report.fallback] == ["NonZero"]


def test_only_wanted_outputs_are_computed() -> None:
    compiled = qg.compile(choosing_rows("N"), num_threads=1)
    x = rows_of(25)
    (shape,) = compiled.run(["shape"], {"x": x})
    np.testing.assert_array_equal(shape, compiled(x)[1])


@pytest.mark.parametrize("rows", ["N", 40])
def test_a_saved_model_compiles_its_rest_again(rows: Any, tmp_path: Path) -> None:
    compiled = qg.compile(choosing_rows(rows), num_threads=1)
    compiled(rows_of(40))
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    assert isinstance(loaded, PartlyCompiledModel) and isinstance(loaded.session, StagedTail)
    for seed in range(3):
        for one, other in zip(loaded(rows_of(40, seed)), compiled(rows_of(40, seed)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def counting() -> onnx.ModelProto:
    """The first results, as many as the first chosen position says (modulo 3)."""
    model = choosing_rows("N")
    node = helper.make_node
    model.graph.node.extend(
        [
            node("Gather", ["chosen", "axis"], ["position"]),
            node("Mod", ["position", "three"], ["left"]),
            node("Add", ["left", "one"], ["end"]),
            node("Slice", ["y", "axis", "end"], ["few"]),
        ]
    )
    model.graph.initializer.extend(
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in (("three", 3), ("one", 1))
    )
    model.graph.output.append(helper.make_tensor_value_info("few", TensorProto.FLOAT, None))
    return model


def test_values_that_decide_sizes_make_no_programs_of_their_own() -> None:
    model = counting()
    compiled: Any = qg.compile(model, num_threads=1)
    for seed in range(12):
        agrees(compiled, model, rows_of(10, seed))
    remaining = compiled.session.suffix.specialisations
    assert all(case.values in ((), None) for case in remaining.cases)
