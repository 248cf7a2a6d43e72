"""The tuner: what it measures, keeps and uses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.cli import tune
from quantglow.cli.main import main
from quantglow.codegen.llvm.cache import ENVIRONMENT
from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.machine import machine_identity
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.programs.build import Compiler
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.tuning import tuner as tuner_module
from quantglow.tuning.core_fit import Shape, build_graph
from quantglow.tuning.measuring import Job, Measurement, Measurer, plan_tasks
from quantglow.tuning.networks import tune_network
from quantglow.tuning.records import Record, keep_records, read_records
from quantglow.tuning.tuner import FINAL_SAMPLES, Tuner, is_faster
from tests.support.combinations import mark_slow
from tests.support.free_network import free_model
from tests.support.small_network import small_model, small_samples

GRAPH = build_graph([Shape(6, 24, 40), Shape(5, 20, 48, 3)])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path


def quick(self: Measurer, jobs: Sequence[Job], progress: Any = None) -> list[Measurement]:
    """Times that follow from the choice: tiles of one column take half the time, some fail."""

    def seconds(choice: KernelChoice) -> float:
        return 0.5 if choice.tile and choice.tile[1] == 1 else 1.0 + 0.01 * (choice.unroll or 0)

    assert not self.deadline.is_over
    return [
        Measurement(job, failure="crashed")
        if job.choice.unroll == 2
        else Measurement(job, (seconds(job.choice),) * self.samples, (1.0,) * self.samples)
        for job in jobs
    ]


def tuner(searcher: str = "model", deadline: Deadline = NEVER, lines: Any = None) -> Tuner:
    told = (lambda line: None) if lines is None else lines.append
    return Tuner([GRAPH], resolve("native"), 1, deadline, searcher, say=told)


@pytest.mark.parametrize(
    "searcher", mark_slow(["model", "random", "annealing", "g-bfs", "n-a2c"], {"model", "g-bfs"})
)
def test_every_searcher_finds_what_is_faster(
    searcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "run", quick)
    lines: list[str] = []
    actual = tuner(searcher, lines=lines).run({}, {})
    assert len(actual) == 2
    for record in actual:
        assert record.choice is not None and record.choice.tile and record.choice.tile[1] == 1
        assert record.choice.unroll != 2
        assert set(record.seconds) == {0.5} and set(record.default_seconds) == {1.0}
    assert lines[-1].endswith("compared once more")


def test_tasks_with_a_record_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measurer, "run", quick)
    first, second = tuner().run({}, {})
    assert [record.task for record in tuner().run({first.task: first}, {})] == [second.task]


def test_hints_are_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Job] = []

    def noting(self: Measurer, jobs: Sequence[Job], progress: Any = None) -> list[Measurement]:
        asked.extend(jobs)
        return quick(self, jobs)

    monkeypatch.setattr(Measurer, "run", noting)
    (task, _), _ = plan_tasks([GRAPH], resolve("native"))
    hint, unknown = task.choices[-1], KernelChoice("plain", (1, 900, 1))
    tuner().run({}, {task.key: [unknown, hint]})
    ours = [job.choice for job in asked if job.task == task.key]
    assert ours[:2] == [task.default, hint] and unknown not in ours


def test_a_choice_counts_if_it_is_faster_in_most_rounds() -> None:
    job = Job("a", KernelChoice("plain"), 0)
    assert is_faster(Measurement(job, (0.9, 0.9, 0.9, 1.5), (1.0,) * 4)) is False
    assert is_faster(Measurement(job, (0.9, 0.9, 0.9, 0.9), (1.0,) * 4))
    assert not is_faster(Measurement(job, (0.99,) * 4, (1.0,) * 4))
    assert Measurement(job).ratio == math.inf


def test_tasks_without_time_for_finals_have_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of none would say for ever that nothing is faster."""

    def search_only(self: Measurer, jobs: Sequence[Job], progress: Any = None) -> list[Measurement]:
        return quick(self, jobs) if self.samples < FINAL_SAMPLES else []

    monkeypatch.setattr(Measurer, "run", search_only)
    assert tuner().run({}, {}) == []


def test_finals_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[Deadline] = []

    def noting(self: Measurer, jobs: Sequence[Job], progress: Any = None) -> list[Measurement]:
        deadlines.append(self.deadline)
        return quick(self, jobs)

    monkeypatch.setattr(Measurer, "run", noting)
    end = Deadline.after(1.0)
    tuner(deadline=end).run({}, {})
    assert deadlines[-1] == end and all(deadline.at <= end.at for deadline in deadlines)


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(qg.BackendError, match=r"no time was left\. Remedy: a larger max_minutes"):
        tuner(deadline=Deadline(0.0)).run({}, {})


def test_a_defect_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Measurer, jobs: Sequence[Job], progress: Any = None) -> list[Measurement]:
        return [Measurement(job, failure="it crashed") for job in jobs]

    monkeypatch.setattr(Measurer, "run", failing)
    with pytest.raises(qg.BackendError, match="it crashed"):
        tuner().run({}, {})


@pytest.mark.slow
def test_a_tuned_network_gives_the_same_bits(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner_module, "MOST_TRIED", 8)
    graph = qg.quantize(qg.import_model(small_model()), qg.profile(small_model(), small_samples()))
    plain = qg.compile(graph, num_threads=1)
    tuned = qg.compile(graph, num_threads=1, tune="measure", max_minutes=2)
    records = read_records()
    assert records and all(record.tried for record in records)
    for sample in small_samples():
        for one, other in zip(plain(sample), tuned(sample), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def chosen(path: Path) -> dict[str, KernelChoice]:
    """Records of choices other than the default for all convolutions of the network in a file."""
    compiled = qg.load(path, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    tasks, _ = plan_tasks([compiled.graph], resolve("native"))
    actual = {task.key: task.choices[-1] for task in tasks}
    host = machine_identity() or ""
    keep_records([Record(task, host, choice) for task, choice in actual.items()])
    return actual


@pytest.mark.slow
def test_records_are_used_by_load_and_compile(cache: Path) -> None:
    path = cache / "net.qgm"
    qg.quantize_and_compile(small_model(), small_samples(), verify=False).save(path)
    expected = chosen(path)
    assert expected
    for item in (qg.load(path, tune="records"), qg.compile(small_model(), tune="records")):
        assert isinstance(item, qg.CompiledModel)
        target = item.specialisations.compiler.target
        assert target is not None and target.choices.by_task == expected
    plain, tuned = qg.load(path), qg.load(path, tune="records")
    for one, other in zip(plain(small_samples()[0]), tuned(small_samples()[0]), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_models_that_are_no_program_are_refused() -> None:
    free = qg.compile(free_model())
    with pytest.raises(qg.OptionError, match="Remedy: give input_shapes"):
        tune_network(free, Compiler.of())
    with pytest.raises(qg.OptionError, match="Remedy: leave tune out"):
        tune_network(object(), Compiler.of())
    model = qg.compile(small_model())
    with pytest.raises(qg.OptionError, match="Remedy: leave tune out"):
        tune_network(model, replace(Compiler.of(), target=None))


@pytest.mark.parametrize(
    "options",
    [
        {"tune": "measure", "backend": "reference"},
        {"tune": "records", "max_minutes": 1.0},
        {"max_minutes": 1.0},
        {"tune": "measure", "max_minutes": 0.0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(qg.OptionError, match=r"tune|max_minutes"):
        qg.compile(small_model(), **options)


def words_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The output, in one line."""
    return " ".join(capsys.readouterr().out.split())


def test_the_command_line_tunes_a_model(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Measurer, "run", quick)
    onnx.save(small_model(), cache / "net.onnx")
    monkeypatch.setattr(tune, "COMPARED_SECONDS", 0.1)
    monkeypatch.setenv("COLUMNS", "160")
    line = ["tune", str(cache / "net.onnx"), "--num-threads", "1"]
    assert main(line) == 0
    shown = words_of(capsys)
    assert "1x1x" in shown and "One call takes" in shown and "--tune records" in shown
    assert main(line) == 0
    assert "All kernels were measured before. `quantglow run`" in words_of(capsys)
    assert main([*line, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["records"] == [] and again["seconds"]["after"] > 0
    assert main(["run", str(cache / "net.onnx"), "--inputs", "none.npz", "--tune", "records"]) == 1


@pytest.mark.parametrize(
    ("minutes", "around", "left"), [(5.0, 1.0, 4.0), (0.5, 1.0, 0.125), (None, 1.0, None)]
)
def test_the_time_of_a_command_includes_all_that_it_does(
    minutes: float | None, around: float, left: float | None
) -> None:
    assert tune.time_for_kernels(minutes, around) == left


def test_without_a_gain_nothing_is_to_be_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def equal(self: Measurer, jobs: Sequence[Job], progress: Any = None) -> list[Measurement]:
        return [Measurement(job, (1.0,) * 4, (1.0,) * 4) for job in jobs]

    monkeypatch.setattr(Measurer, "run", equal)
    monkeypatch.setattr(tune, "COMPARED_SECONDS", 0.1)
    onnx.save(small_model(), cache / "net.onnx")
    assert main(["tune", str(cache / "net.onnx"), "--num-threads", "1"]) == 0
    shown = words_of(capsys)
    assert tune.NO_GAIN in shown and "--tune records" not in shown


def test_choices_that_cannot_be_kept_are_told(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Measurer, "run", quick)
    monkeypatch.setattr(tune, "COMPARED_SECONDS", 0.1)
    onnx.save(small_model(), cache / "net.onnx")
    monkeypatch.setenv(ENVIRONMENT, "")
    assert main(["tune", str(cache / "net.onnx"), "--num-threads", "1"]) == 0
    shown = words_of(capsys)
    assert "Remedy: set QUANTGLOW_CACHE_DIR" in shown and "tune='records'" not in shown


@pytest.mark.parametrize("address", ["tls://", "nonsense://a", "tcp://127.0.0.1:1", "", "tcp://:x"])
def test_a_scheduler_that_is_not_reached_is_one_message(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "CONNECT_SECONDS", 0.2)
    onnx.save(small_model(), cache / "net.onnx")
    assert main(["tune", str(cache / "net.onnx"), "--scheduler", address]) == 1
    assert f"scheduler: cannot reach {address!r}" in capsys.readouterr().err


def test_the_command_line_needs_something_to_tune(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune"]) == 1
    assert "OptionError: there is nothing to tune" in capsys.readouterr().err
