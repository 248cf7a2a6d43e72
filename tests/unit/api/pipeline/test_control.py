"""The whole way under an accuracy contract, on a network with one value that int8 cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.api.pipeline.accuracy_control import describe_steps
from quantglow.evaluation.metrics import sqnr_db
from quantglow.quantization.accuracy_control import INT16, AccuracySearch, PrecisionStep
from quantglow.report import Report
from quantglow.support.processes.interrupts import Deadline, TimeUp
from tests.unit.quantization.quantization_networks import samples_for
from tests.unit.quantization.search.test_choose_int16 import network

GRAPH = network()
SAMPLES = samples_for(GRAPH, 6)
PLAIN: dict[str, Any] = {"calibrate_method": "minmax", "num_threads": 1, "progress": False}


@pytest.fixture(scope="module")
def plain() -> Any:
    """The network in int8 without a contract."""
    return qg.quantize_and_compile(GRAPH, SAMPLES, **PLAIN)


@pytest.fixture(scope="module")
def better(plain: Any) -> Any:
    """The network under a contract of 3 dB more."""
    expected = 10 ** (-(figure(plain) + 3) / 20)
    return qg.quantize_and_compile(GRAPH, SAMPLES, max_drop=expected, **PLAIN)


@pytest.fixture(scope="module")
def report() -> Report:
    """The report under a contract without any drop."""
    return qg.quantize_and_compile(GRAPH, SAMPLES, max_drop=0.0, **PLAIN).report


def figure(compiled: Any) -> float:
    """SQNR in dB over all samples."""
    pairs = [(qg.interpret(GRAPH, f)[0], compiled.run(None, f)[0]) for f in SAMPLES]
    return min(sqnr_db(expected, value) for expected, value in pairs)


def precisions(compiled: qg.CompiledModel) -> dict[str, str]:
    return {layer.name: layer.precision for layer in compiled.report.layers}


@pytest.mark.slow
def test_int16_comes_before_float(plain: Any, better: Any) -> None:
    precision = precisions(better)
    assert precision["thin"] == "int16"
    assert "float" not in precision.values()
    assert figure(better) > figure(plain) + 2.5


@pytest.mark.slow
def test_the_validation_function_decides() -> None:
    shown: list[float] = []

    def validation(compiled: Any) -> float:
        shown.append(min(figure(compiled), 60.0))
        return shown[-1]

    strict = qg.quantize_and_compile(
        GRAPH, SAMPLES, max_drop=0.0, validation_fn=validation, **PLAIN
    )
    assert shown[0] == 60.0 > shown[1]
    assert figure(strict) >= 60.0


@pytest.mark.slow
def test_a_single_operator_of_float_does_not_make_the_rest_float() -> None:
    names = ["thin", "first", "second", "third", "last"]
    compiled = qg.quantize_and_compile(
        GRAPH, SAMPLES, max_drop=0.0, validation_fn=lambda m: float(is_float(m, "last")), **PLAIN
    )
    assert precisions(compiled)["last"] == "float"
    assert [precisions(compiled)[name] for name in names].count("float") < len(names)


def is_float(compiled: Any, name: str) -> bool:
    return all(o.type.quant is None for o in compiled.graph.by_name(name).operands)


@pytest.mark.slow
def test_a_graph_is_compared_with_the_interpreter(report: Report) -> None:
    assert report.compared_with == "the float interpreter"
    (note,) = (n for n in report.notes if n.startswith("accuracy control"))
    assert " to int16 and " in note


def test_the_report_has_each_precision_override_and_its_cost(report: Report) -> None:
    by_name = {layer.name: layer.precision for layer in report.layers}
    assert report.precision_overrides
    assert all(by_name[o.name] in (o.precision, "float") for o in report.precision_overrides)
    assert all(o.error >= 0 and o.seconds > 0 for o in report.precision_overrides)
    assert "Precision overrides by accuracy control" in str(report)
    assert Report.from_json(report.to_json()).precision_overrides == report.precision_overrides


def test_a_report_saved_under_the_former_key_still_loads(report: Report) -> None:
    data = report.to_json()
    data["raised"] = data.pop("precision_overrides")
    assert Report.from_json(data) == Report.from_json(report.to_json())


def test_every_precision_override_is_needed(better: Any) -> None:
    overrides = [(n.name, n.precision) for n in better.report.precision_overrides]
    assert ("thin", "int16") in overrides
    assert len(overrides) <= 2


def test_a_note_names_the_first_steps_only() -> None:
    steps = [PrecisionStep(f"value{i}", INT16, 1.0, 1.0) for i in range(20)]
    assert describe_steps(steps[:1]) == "1 step(s), 1 to int16 and 0 to float: value0 to int16"
    assert describe_steps(steps).endswith("value7 to int16, …")


def test_time_ends_the_ranking_with_the_best_model() -> None:
    with pytest.raises(qg.AccuracyDropError, match="the time is up") as caught:
        qg.quantize_and_compile(GRAPH, SAMPLES, max_drop=0.0, max_minutes=1e-9, **PLAIN)
    assert isinstance(caught.value.best, qg.CompiledModel)
    assert "float" not in [node.precision for node in caught.value.best.report.layers]


@pytest.mark.slow
def test_a_ranking_that_is_cut_short_leaves_time_for_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Deadline, "halfway", Deadline(0.0))
    compiled = qg.quantize_and_compile(GRAPH, SAMPLES, max_drop=0.0, max_minutes=9, **PLAIN)
    assert set(precisions(compiled).values()) == {"float"}


def test_the_report_says_that_the_time_was_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(search: Any) -> Any:
        yield search.first(len(search.ranking))
        raise TimeUp

    monkeypatch.setattr(AccuracySearch, "each_trial", once)
    compiled = qg.quantize_and_compile(GRAPH, SAMPLES, max_drop=0.0, max_minutes=9, **PLAIN)
    (note,) = (n for n in compiled.report.notes if n.startswith("accuracy control"))
    assert "1 model(s) tried, the time is up;" in note


def test_samples_are_not_changed() -> None:
    before = [{name: array.copy() for name, array in feeds.items()} for feeds in SAMPLES]
    qg.quantize_and_compile(GRAPH, SAMPLES, max_drop=1.0, **PLAIN)
    for one, other in zip(before, SAMPLES, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
