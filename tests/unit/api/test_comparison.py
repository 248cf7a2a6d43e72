"""``compare``: int8 beside other quantizers; their failures are rows, never errors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.cli.demo import mnist
from quantglow.cli.main import main
from quantglow.evaluation import latencies as busy
from quantglow.evaluation.accuracy import OutputAccuracy
from quantglow.evaluation.baselines import quantizers as peer_quantizers
from quantglow.evaluation.baselines.quantizers import (
    FLOAT,
    QuantizerComparison,
    QuantizerFigures,
    by_onnxruntime,
    of_one_mechanism,
)
from quantglow.ort.quantizer_input import logits_in
from tests.support.onnxruntime_sums import saturates
from tests.support.small_network import small_model, small_samples

QUICK = {"seconds": 0.05, "num_threads": 1, "effort": "fast", "progress": False}
MINMAX = by_onnxruntime("MinMax")
PEER_DB, PEER_AGREEMENT = (5, 0.5) if saturates() else (20, 1.0)
"""Minimum SQNR and agreement of onnxruntime's int8."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained classifier, net.onnx, and samples.npz."""
    folder = tmp_path_factory.mktemp("compare")
    example = mnist()
    (folder / "net.onnx").write_bytes(Path(example.model).read_bytes())
    np.savez(folder / "samples.npz", **{example.input_name: example.calibration[:20]})
    return folder


@pytest.mark.slow
def test_each_quantizer_has_its_figures(files: Path) -> None:
    names = ["onnxruntime-minmax", "onnxruntime-percentile"]
    data = str(files / "samples.npz")
    comparison = qg.compare(str(files / "net.onnx"), data, quantizers=names, **QUICK)
    assert [row.name for row in comparison.rows] == [FLOAT, "quantglow", *names]
    assert (comparison.samples, comparison.origin) == (4, "that calibration did not see")
    limits = [(20, 1.0), *[(PEER_DB, PEER_AGREEMENT)] * len(names)]
    for row, (decibels, agreement) in zip(comparison.rows[1:], limits, strict=True):
        assert row.sqnr_db is not None and decibels < row.sqnr_db < 80
        assert row.agreement is not None and row.agreement >= agreement
        assert row.seconds is not None and row.nbytes is not None
        assert row.calibration_seconds is not None and row.calibration_seconds > 0
    assert comparison.rows[1].nbytes < comparison.rows[0].nbytes / 3
    assert comparison.rows[2].sqnr_db != comparison.rows[3].sqnr_db
    assert comparison.rows[1].caveat == ""
    for row in comparison.rows[2:]:
        assert (row.exact_sqnr_db is not None) == saturates()
        assert row.exact_sqnr_db is None or row.exact_sqnr_db > row.sqnr_db + 10
        assert (row.caveat in comparison.notes) == saturates()


@pytest.mark.slow
def test_the_command_prints_a_table_and_a_verdict(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "busy_processors", lambda: 0.0)
    data = f"--calibration-data {files / 'samples.npz'} --quantizers onnxruntime-minmax"
    line = f"compare {files / 'net.onnx'} {data} --effort fast --seconds 0.05 --num-threads 1"
    assert main(line.split()) == 0
    captured = capsys.readouterr().out
    assert "█" in captured and "onnxruntime-minmax" in captured
    assert " float than onnxruntime-minmax (" in next(filter(str.strip, captured.splitlines()))
    assert main(f"{line} --json".split()) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rows"][2]["name"] == "onnxruntime-minmax"
    assert facts["rows"][2]["sqnr_db"] > PEER_DB
    assert facts["rows"][0]["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"place": "no_such_package.module:quantized"},
            "not installed: pip install onnxruntime",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"place": "tests.unit.isolated_calls:crash"}, "SIGSEGV", marks=pytest.mark.slow
        ),
        pytest.param({"options": {"method": "Guess"}}, "KeyError", marks=pytest.mark.slow),
        ({"outputs": "tests.unit.isolated_calls:crash"}, "SIGSEGV"),
    ],
    ids=["missing", "crashing", "raising", "crashing while it runs"],
)
def test_a_quantizer_that_fails_is_a_row(
    changes: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"a": replace(MINMAX, name="a", **changes), "b": MINMAX}
    monkeypatch.setattr(peer_quantizers, "PEER_QUANTIZERS", known)
    monkeypatch.setattr("quantglow.api.compare.PEER_QUANTIZERS", known)
    comparison = qg.compare(small_model(), small_samples(), quantizers=["a", "b"], **QUICK)
    _, ours, broken, other = comparison.rows
    assert reason in broken.reason and broken.seconds is None
    assert ours.sqnr_db is not None and other.sqnr_db is not None
    assert f"a: {broken.reason}" in comparison.notes


@pytest.mark.slow
def test_a_quantizer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a": replace(MINMAX, name="a", place="tests.unit.isolated_calls:hang")}
    monkeypatch.setattr("quantglow.api.compare.PEER_QUANTIZERS", known)
    comparison = qg.compare(
        small_model(), small_samples(), quantizers=["a"], peer_minutes=0.05, **QUICK
    )
    assert "took longer than 3 s" in comparison.rows[2].reason
    assert comparison.verdict == "No other quantizer made a model that runs."


@pytest.mark.slow
def test_few_samples_are_calibrated_and_compared_on() -> None:
    comparison = qg.compare(small_model(), small_samples(), quantizers=[], **QUICK)
    assert (comparison.samples, comparison.origin) == (4, "that calibration used, too")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantizers": ["guess"]}, "there are onnxruntime-minmax"),
        ({"seconds": 0}, "seconds"),
        ({"peer_minutes": -1}, "peer_minutes"),
        ({"presets": "mixed"}, "compare has no option 'presets'; did you mean 'preset'?"),
        ({"quantiser": []}, "did you mean 'quantizers'?"),
        ({"subset_size": -1}, "subset_size"),
        ({"seed": "a"}, "seed"),
        ({"input_shapes": {"x": 3}}, "input_shapes['x']"),
        ({"verify": True}, "leave verify out"),
    ],
)
def test_wrong_options_are_refused_before_the_work(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(qg.OptionError, match=re.escape(message)):
        qg.compare(small_model(), small_samples(), **{**QUICK, **changes})


def test_a_profile_is_refused() -> None:
    profile = qg.profile(small_model(), small_samples(), progress=False)
    with pytest.raises(qg.CalibrationError, match="give the samples"):
        qg.compare(small_model(), profile, **QUICK)


def test_the_user_learns_of_an_option_for_exact_sums() -> None:
    row = QuantizerFigures("onnxruntime-minmax", 14.0, exact_sqnr_db=41.2)
    (note,) = QuantizerComparison([QuantizerFigures(FLOAT), row], 5, "seen", 2).notes
    assert "onnxruntime-minmax: sums saturate at 16 bits" in note and "41.2 dB with" in note
    assert 'session.x64quantprecision="1"' in note


def made_up(ours: QuantizerFigures, other: QuantizerFigures) -> QuantizerComparison:
    return QuantizerComparison([QuantizerFigures(FLOAT), ours, other], 5, "seen", 2)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((45.0, 1e-3), "closer to float than b (45.0 and 40.0 dB); it is 2.00 times as fast"),
        ((38.0, 4e-3), "further from float than b (38.0 and 40.0 dB); it is 2.00 times as slow"),
        ((40.0, 2e-3), "quantglow is as close to float as b (40.0 dB); it is as fast as b."),
    ],
)
def test_the_verdict_is_in_words(ours: tuple[float, float], verdict: str) -> None:
    figures = QuantizerFigures("quantglow", ours[0], None, ours[1])
    actual = made_up(figures, QuantizerFigures("b", 40.0, None, 2e-3))
    assert verdict in actual.verdict
    assert "but the machine is busy" in replace(actual, busy="busy").verdict


def test_html_has_bars_of_both_figures() -> None:
    ours, other = QuantizerFigures("quantglow", 40.0, 1.0, 1e-3), QuantizerFigures("b<", 20.0)
    html = made_up(ours, other)._repr_html_()
    assert "width:50.0%" in html and "1 ms" in html and "b&lt;" in html and "b<" not in html


def classifier(path: Path) -> Path:
    """The small network with a Softmax behind its scores, and a Sigmoid behind its features."""
    model = small_model()
    scores, features = (output.name for output in model.graph.output)
    for output, op in zip(model.graph.output, ("Softmax", "Sigmoid"), strict=True):
        node = onnx.helper.make_node(op, [output.name], [f"{output.name}:p"])
        model.graph.node.append(node)
        output.name = f"{output.name}:p"
    onnx.save(model, path)
    assert logits_in(path) == {0: scores, 1: features}
    return path


@pytest.mark.slow
def test_all_rows_are_compared_by_their_logits(tmp_path: Path) -> None:
    path = classifier(tmp_path / "model.onnx")
    comparison = qg.compare(
        path, small_samples(12), quantizers=["onnxruntime-minmax"], seconds=0.01, num_threads=1
    )
    _, *rows = comparison.rows
    for row in rows:
        assert all(output.logits_db is not None for output in row.outputs)
        assert row.sqnr_db == min(output.worst_db for output in row.outputs)
    assert "decibels of logits, too" in str(comparison)
    report = qg.quantize_and_compile(path, small_samples(12), progress=False, num_threads=1).report
    ours = [output.logits_db for output in report.outputs]
    assert [output.logits_db for output in rows[0].outputs] == pytest.approx(ours)


def test_logits_count_where_all_rows_have_them() -> None:
    both = OutputAccuracy("y", 50.0, 1.0, 0.1, logits_db=30.0)
    one = OutputAccuracy("y", 45.0, 1.0, 0.1)
    rows = [QuantizerFigures("a", outputs=(both,)), QuantizerFigures("b", outputs=(one,))]
    assert [row.sqnr_db for row in of_one_mechanism(rows)] == [50.0, 45.0]
    assert [row.sqnr_db for row in of_one_mechanism(rows[:1])] == [30.0]
