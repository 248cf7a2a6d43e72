"""The part behind operators that decide shapes is int8 where calibration samples reach it."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantglow.api.pipeline.int8_tail import int8_tail
from quantglow.runtime.hybrid.tails import StagedTail

import quantglow as qg
from quantglow.runtime.hybrid.fallback_model import PartlyCompiledModel
from quantglow.runtime.saved.members import Allowance
from quantglow.support.processes.interrupts import LATE, Deadline
from tests.support.choosing_rows import choosing_rows, rows_of
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

pytestmark = pytest.mark.usefixtures("in_parts")

ROWS = 40


def quantized(again: bool = False, data: Any = None, threads: int = 1, **options: Any) -> Any:
    """An int8 model of both parts."""
    samples = [rows_of(ROWS, seed) for seed in range(6)] if data is None else data
    return qg.quantize_and_compile(
        choosing_rows("N", again=again),
        samples,
        num_threads=threads,
        verify=False,
        progress=False,
        **options,
    )


def tail_of(compiled: Any) -> StagedTail:
    """The tail of a model that is cut."""
    assert isinstance(compiled, PartlyCompiledModel)
    assert isinstance(compiled.session, StagedTail)
    return compiled.session


@cache
def models(again: bool) -> list[Any]:
    """The same model with 1, 2 and 3 threads."""
    return [quantized(again, threads=threads) for threads in (1, 2, 3)]


@pytest.mark.slow_variants
@pytest.mark.parametrize("again", [False, True])
def test_the_rest_is_int8(again: bool) -> None:
    tail = tail_of(models(again)[0])
    kinds = {
        node.op: node.operands[0].type.quant for node in first_graph(tail).nodes if node.operands
    }
    assert tail.is_int8 and kinds["Gemm"] is not None
    assert "in int8" in str(models(again)[0].report)


@pytest.mark.slow
def test_the_rest_runs_on_the_threads_that_were_asked_for() -> None:
    compiled, x = models(False)[0], rows_of(ROWS, 9)
    on_three = compiled.with_num_threads(3)
    assert tail_of(on_three).suffix.num_threads == on_three.head.num_threads == 3
    assert tail_of(on_three).is_int8 and tail_of(compiled).suffix.num_threads == 1
    for one, other in zip(compiled(x), on_three(x), strict=True):
        np.testing.assert_array_equal(one, other)


def first_graph(tail: StagedTail) -> Any:
    """The graph of the rest at its first shapes."""
    return tail.suffix.specialisations.first.graph


@pytest.mark.slow
@given(st.integers(2, 90), st.integers(0, 1000), st.booleans())
def test_all_threads_and_counts_give_the_integers_of_the_interpreter(
    count: int, seed: int, again: bool
) -> None:
    x = rows_of(count, seed)
    results = [compiled(x) for compiled in models(again)]
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
    tail, head = tail_of(models(again)[0]), models(again)[0].head
    early = dict(zip([o.name for o in head.get_outputs()], head.run(None, {"x": x}), strict=True))
    values = tail.first.run({n: early[n] for n in tail.first.input_names})
    given_ = dict(zip(tail.first_names, values, strict=True))
    feeds = {info.name: {**early, **given_}[info.name] for info in tail.suffix.get_inputs()}
    if again or not all(array.size for array in feeds.values()):
        return  # the interpreter knows shapes that are decided once
    shapes = {name: array.shape for name, array in feeds.items()}
    graph = tail.suffix.specialisations.graph_for(shapes)
    names = [name for name, _ in graph.outputs]
    expected = dict(zip(names, qg.interpret(graph, feeds), strict=True))
    np.testing.assert_array_equal(results[0][0], expected["y"])


def test_the_results_are_near_those_of_float() -> None:
    for seed in range(20, 24):
        x = rows_of(50, seed)
        actual, _, chosen = models(False)[0](x)
        expected, _, positions = by_onnxruntime(choosing_rows("N"), {"x": x})
        both = sorted({*chosen} & {*positions})  # rounding may change who is chosen
        assert len(both) > 0.8 * len(positions)
        pairs = ((actual, chosen), (expected, positions))
        one, two = (array[np.isin(numbers, both)] for array, numbers in pairs)
        assert np.linalg.norm(one - two) < 0.1 * np.linalg.norm(two)


@pytest.mark.slow_variants
@pytest.mark.parametrize("again", [False, True])
def test_a_saved_model_gives_the_same_integers(again: bool, tmp_path: Path) -> None:
    compiled = models(again)[0]
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=2)
    assert tail_of(loaded).is_int8
    loaded.save(tmp_path / "again.qgm")
    for model in (loaded, qg.load(tmp_path / "again.qgm", num_threads=3)):
        for count in (9, 30, 41):
            for one, two in zip(model(rows_of(count)), compiled(rows_of(count)), strict=True):
                np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_one_shot_samples_reach_the_rest() -> None:
    assert tail_of(quantized(data=(rows_of(ROWS, seed) for seed in range(6)))).is_int8


def nothing_chosen() -> list[np.ndarray]:
    """Samples of which no row is chosen."""
    zero = np.zeros((ROWS, 16), np.float32)
    return [zero, zero]


def test_a_rest_that_no_sample_reaches_stays_float() -> None:
    compiled = quantized(data=nothing_chosen())
    assert not tail_of(compiled).is_int8
    assert "in float: no calibration sample leads to values of it" in compiled.report.notes[-1]


def test_a_profile_has_no_samples_for_the_rest() -> None:
    samples = [rows_of(ROWS, seed) for seed in range(4)]
    profile = qg.profile(choosing_rows("N"), samples, progress=False)
    assert not tail_of(quantized(data=profile)).is_int8


@pytest.mark.slow
def test_the_rest_has_the_minutes_that_accuracy_control_left() -> None:
    collected: list[float | None] = []

    def noted(cut: Any, samples: Any, request: Any, *others: Any) -> Any:
        collected.append(request.max_minutes)
        return int8_tail(cut, samples, request, *others)

    with patch("quantglow.api.quantize_and_compile.int8_tail", noted):
        quantized(max_drop=0.5, validation_fn=lambda model: 1.0, max_minutes=30.0)
        quantized(max_drop=0.5, validation_fn=lambda model: 1.0)
    assert collected[0] == 30.0
    assert collected[1] is not None and 0 < collected[1] < 30.0
    assert collected[2:] == [None, None]


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_model_under_a_contract_is_saved_with_its_int8_rest(threads: int, tmp_path: Path) -> None:
    compiled = quantized(max_drop=0.5, validation_fn=lambda model: 1.0)
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=threads)
    assert tail_of(loaded).is_int8
    for count in (9, 30, 41):
        for one, two in zip(loaded(rows_of(count)), compiled(rows_of(count)), strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_contract_that_holds_with_the_rest_in_int8_keeps_it() -> None:
    figures = itertools.repeat(1.0)
    compiled = quantized(max_drop=0.5, validation_fn=lambda model: next(figures))
    assert tail_of(compiled).is_int8
    notes = compiled.report.notes
    assert any("the part behind the cut in int8 the drop is 0" in note for note in notes)
    assert not any("before the cut" in note for note in notes)


def test_a_rest_that_would_break_the_contract_in_int8_stays_float() -> None:
    def figure(model: Any) -> float:
        return 0.0 if tail_of(model).is_int8 else 1.0

    compiled = quantized(max_drop=0.5, validation_fn=figure)
    assert not tail_of(compiled).is_int8
    assert "in float: in int8 the drop would be 1" in compiled.report.notes[-1]


def test_time_that_is_up_leaves_the_rest_float() -> None:
    late = patch.object(Deadline, "reason", property(lambda self: LATE))
    with late:
        compiled = quantized(max_drop=0.5, validation_fn=lambda model: 1.0)
    assert not tail_of(compiled).is_int8
    assert "in float: max_minutes ended accuracy control before it" in compiled.report.notes[-1]


def test_without_a_figure_of_the_whole_model_a_contract_leaves_the_rest_float() -> None:
    compiled = quantized(max_drop=0.9)
    assert not tail_of(compiled).is_int8
    assert "in float: without validation_fn accuracy control" in compiled.report.notes[-1]


def test_the_figure_of_accuracy_control_is_that_of_the_first_part() -> None:
    notes = quantized(max_drop=0.9).report.notes
    assert any("measured on the outputs of the part before the cut" in note for note in notes)


def test_options_that_name_no_operator_of_the_rest_leave_it_float() -> None:
    compiled = quantized(op_types_to_quantize=["ReduceMean", "Gemm"])
    assert isinstance(compiled, PartlyCompiledModel)
    excluded = quantized(nodes_to_exclude=["h"])
    assert not tail_of(excluded).is_int8


def test_files_inside_of_files_have_an_end(tmp_path: Path) -> None:
    models(False)[0].save(tmp_path / "m.qgm")
    none = staticmethod(lambda archive: Allowance(1 << 30, files=0))
    with patch.object(Allowance, "of", none), pytest.raises(qg.FileFormatError, match="inside"):
        qg.load(tmp_path / "m.qgm")
