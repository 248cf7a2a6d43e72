"""The lines that a report ends with, and the figures in them."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from quantglow.evaluation.accuracy import UNSEEN
from quantglow.evaluation.baselines import latency as peers
from quantglow.evaluation.baselines.latency import MeasuredLatency
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.ir.graph.node import Constant
from quantglow.report import LayerAccuracy, MemoryFigures, OutputAccuracy, Report
from quantglow.report.accuracy import headline
from quantglow.report.report import SHOWN
from quantglow.report.tables import text_bar
from quantglow.support.processes.system import busy_processors
from tests.support.small_network import small_model, small_samples

FAST = {"num_threads": 1, "progress": False, "effort": "fast"}


def report(sqnr_db: float, layers: int = 20) -> Report:
    """A report of int8 layers, the last one worst, and as many float ones."""
    int8 = [LayerAccuracy(f"conv{i}", "Conv", "int8", "", 40.0 - i) for i in range(layers)]
    floats = [LayerAccuracy(f"sqrt{i}", "Sqrt", "float", "no int8 form") for i in range(layers)]
    return Report(
        "avx2",
        2,
        MemoryFigures(),
        {"import": 0.5},
        outputs=(OutputAccuracy("y", sqnr_db, 1.0, 0.1),),
        layers=(*int8, *floats),
        compared_with="onnxruntime (float)",
        samples=5,
        origin="that calibration did not see",
        weights=WeightSizes(4_000_000, 1_000_000),
        latency=MeasuredLatency(1e-3, 3e-3, 2),
    )


def test_a_report_begins_with_accuracy_size_and_speed_and_ends_with_the_next_step() -> None:
    *first, step = str(report(45)).splitlines()
    assert [*first[:3], step] == [
        "int8 is very close to float: 45.0 dB on 5 sample(s) that calibration did not see (one in "
        "5 is held out, and large models are checked on fewer).",
        "Size: weights 4.0 MB -> 1.0 MB (4.0 times smaller); operators: 20 int8, 20 float.",
        "Speed: 1 ms a call on 2 thread(s) here, onnxruntime's float 3 ms: 3.0 times as fast.",
        'Next: compiled.save("model.qgm")',
    ]


def test_layers_to_look_at_are_named_where_int8_is_off() -> None:
    _, look, _size, _speed, *_, step = str(report(25)).splitlines()
    assert look == "Look at these layers: conv19 (21.0 dB), conv18 (22.0 dB), conv17 (23.0 dB)."
    assert step.startswith("Next: qg.diagnose(")


@pytest.mark.parametrize(
    ("sqnr_db", "logits_db", "figure"),
    [
        (215.2, None, "very close to float: > 100 dB on"),
        (math.inf, 120.0, "very close to float: > 100 dB in the logits on"),
        (215.2, 35.04, "close to float: 35.0 dB in the logits on"),
        (33.0, 50.0, "close to float: 33.0 dB on"),
    ],
)
def test_the_headline_has_the_worst_of_outputs_and_logits(
    sqnr_db: float, logits_db: float | None, figure: str
) -> None:
    outputs = (OutputAccuracy("y", sqnr_db, 1.0, 0.1, logits_db=logits_db),)
    text = headline(outputs, 5, UNSEEN, None, False)
    assert text.startswith(f"int8 is {figure} 5 sample(s) that calibration did not see (one in 5 ")


@pytest.mark.parametrize(
    ("sqnr_db", "verdict"),
    [
        (45, "very close to float"),
        (35, "close to float"),
        (15, "visibly off float"),
        (5, "far from float, and not usable as it is"),
    ],
)
def test_the_verdict_is_in_the_json(sqnr_db: float, verdict: str) -> None:
    summary = report(sqnr_db).summary()
    assert summary is not None
    assert json.loads(json.dumps(summary.to_json()))["verdict"] == verdict


def test_tables_are_cut_to_the_rows_that_matter() -> None:
    short, full = list(report(45).tables()), list(report(45).full.tables())
    assert max(len(table.rows) for table in short) == SHOWN + 1
    assert "and 15 more" in str(report(45)) and "and 15 more" not in str(report(45).full)
    assert any(len(table.rows) == 40 for table in full)


def test_a_slower_model_is_called_slower() -> None:
    assert "2.0 times as slow" in str(MeasuredLatency(2e-3, 1e-3, 1))


def test_a_missing_peer_and_a_busy_machine_are_named() -> None:
    text = str(MeasuredLatency(2e-3, None, 1, "it crashed", "the machine is busy"))
    assert "not measured: it crashed" in text and "(but the machine is busy)" in text


def test_a_busy_machine_gives_no_ratio() -> None:
    text = str(MeasuredLatency(1e-3, 3e-3, 1, busy="the machine is busy"))
    assert "onnxruntime's float 3 ms (but the machine is busy)" in text and "times" not in text


def test_html_has_bars_and_folded_tables() -> None:
    html = replace(report(45), notes=("<script>",))._repr_html_()
    assert html.index("very close") < html.index("<details>")
    assert "width:33.3%" in html and "onnxruntime float" in html
    assert "&lt;script&gt;" in html and "<script>" not in html


def test_figures_are_kept_in_json() -> None:
    assert Report.from_json(json.loads(json.dumps(report(45).to_json()))) == report(45)


def test_reports_of_former_versions_have_no_such_figures() -> None:
    data = report(45).to_json()
    actual = Report.from_json({k: v for k, v in data.items() if k not in ("weights", "latency")})
    assert (actual.weights, actual.latency) == (None, None)
    assert "Speed: not measured." in str(actual)


def test_the_latency_is_measured_if_asked() -> None:
    compiled = qg.quantize_and_compile(small_model(), small_samples(), measure_latency=True, **FAST)
    latency = compiled.report.latency
    assert latency.seconds > 0 and latency.float_seconds > 0 and latency.num_threads == 1


def test_the_latency_is_not_measured_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(peers, "call_isolated")
    compiled = qg.quantize_and_compile(small_model(), small_samples(), **FAST)
    assert compiled.report.latency is None


def test_a_runtime_that_crashes_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PLACES, "onnxruntime", "tests.unit.isolated_calls:crash")
    compiled = qg.quantize_and_compile(small_model(), small_samples(), measure_latency=True, **FAST)
    assert compiled.report.latency.float_seconds is None
    assert "SIGSEGV" in compiled.report.latency.reason


def test_without_samples_there_is_a_note() -> None:
    profile = qg.profile(small_model(), small_samples())
    compiled = qg.quantize_and_compile(small_model(), profile, measure_latency=True, **FAST)
    assert "the latency was not measured: there are no samples" in compiled.report.notes


def test_a_measurement_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("quantglow.api.pipeline.compilation.latency_beside_float", full)
    compiled = qg.quantize_and_compile(small_model(), small_samples(), measure_latency=True, **FAST)
    assert "the latency was not measured: no space left" in compiled.report.notes


def test_the_sizes_are_those_of_the_constants() -> None:
    """Members of a file are deflated where that pays."""
    compiled = qg.quantize_and_compile(small_model(), small_samples(), **FAST)
    after = sum(n.value.nbytes for n in compiled.graph.nodes if isinstance(n, Constant))
    assert 0.7 * after < compiled.report.weights.quantized_nbytes <= after
    assert compiled.report.weights.ratio > 2


def test_packed_weights_have_sizes() -> None:
    model = Path(__file__).parents[3] / "datasets" / "mnist_cnn.onnx"
    compiled = qg.quantize_and_compile(model, None, weights="int4", progress=False, num_threads=1)
    assert compiled.report.weights.ratio > 6


def test_the_figures_survive_saving(tmp_path: Path) -> None:
    compiled = qg.quantize_and_compile(small_model(), small_samples(), measure_latency=True, **FAST)
    compiled.save(tmp_path / "m.qgm")
    again = qg.load(tmp_path / "m.qgm").report
    assert (again.latency, again.weights) == (compiled.report.latency, compiled.report.weights)


def test_a_bar_has_at_least_one_character() -> None:
    assert [len(text_bar(share)) for share in (0.0, 0.5, 1.0)] == [1, 15, 30]


def test_a_thread_at_work_makes_the_machine_busy() -> None:
    """The figure counts work of this process, too, here: nobody else is sure to be at work."""
    end = threading.Event()

    def work() -> None:
        matrix = np.ones((200, 200))
        while not end.is_set():
            matrix @ matrix

    thread = threading.Thread(target=work)
    thread.start()
    actual = busy_processors()
    end.set()
    thread.join()
    assert actual is None or actual > 0.3
