"""Tuning sees the kernels of all compiled segments of a model whose sizes are known late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.cache import ENVIRONMENT
from quantglow.codegen.llvm.isa.costs import Choices
from quantglow.codegen.llvm.kernels import tunable
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.programs.build import Compiler
from quantglow.tuning.measuring import Job, Measurer, Work, plan_tasks
from quantglow.tuning.networks import compiled_graphs, tune_network
from quantglow.tuning.records import Record, read_records, this_host
from quantglow.tuning.tuner import Tuner
from tests.support.combinations import mark_slow
from tests.support.late_models import BUILDERS

KINDS = mark_slow(["detector", "rows", "crops"], {"detector"})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path


def quantize(kind: str) -> Any:
    model = BUILDERS[kind]()
    options: dict[str, Any] = {"progress": False, "verify": False, "num_threads": 1}
    return qg.quantize_and_compile(model.model, model.samples(), **options)


def last_choices(compiled: Any) -> list[Record]:
    """Records that choose for each task what the cost model likes least."""
    graphs, target = Work.of(compiled_graphs(compiled), resolve("native")).parse()
    tasks, _ = plan_tasks(graphs, target)
    return [Record(task.key, this_host(), task.choices[-1], (0.5,), (1.0,)) for task in tasks]


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_those_before_and_behind_late_sizes(kind: str) -> None:
    graphs, target = Work.of(compiled_graphs(quantize(kind)), resolve("native")).parse()
    tasks, _ = plan_tasks(graphs, target)
    assert {task.guards is None for task in tasks} == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_every_choice_of_a_late_kernel_has_the_results_of_the_default(kind: str) -> None:
    work = Work.of(compiled_graphs(quantize(kind)), resolve("native"))
    tasks, nbytes = plan_tasks(*work.parse())
    jobs = [
        Job(task.key, choice, nbytes)
        for task in tasks
        if task.guards is not None
        for choice in task.choices[:: max(1, len(task.choices) // 4)]
    ]
    assert [measured.failure for measured in Measurer(work, samples=1).run(jobs)] == [""] * len(
        jobs
    )


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_used_and_results_stay_equal(
    kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = quantize(kind)
    records = last_choices(plain)
    chosen = {record.task: record.choice for record in records if record.choice is not None}
    used: dict[str, Any] = {}
    actual = tunable.task_name

    def note(step: Any, target: Any) -> str:
        name = actual(step, target)
        used[name] = target.choices.by_task.get(name)
        return name

    monkeypatch.setattr(tunable, "task_name", note)
    compiler = Compiler.of(num_threads=1)
    assert compiler.target is not None
    target = replace(compiler.target, choices=Choices(chosen))
    tuned = replace(
        plain, specialisations=plain.specialisations.with_compiler(replace(compiler, target=target))
    )
    for feeds in BUILDERS[kind]().distinct():
        for mine, expected in zip(tuned.run(None, feeds), plain.run(None, feeds), strict=True):
            np.testing.assert_array_equal(mine, expected)
    assert chosen.items() <= used.items()


def test_a_late_model_is_measured_and_its_records_are_found(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Tuner, earlier: Any, hinted: Any) -> list[Record]:
        tasks = [task for task in self.planned[0] if task.key not in earlier]
        return [Record(task.key, self.host, task.choices[-1], (0.5,), (1.0,)) for task in tasks]

    monkeypatch.setattr(Tuner, "run", run)
    detector, model = BUILDERS["detector"](), BUILDERS["detector"]().model
    plain, tuned = (qg.compile(model, num_threads=1, tune=tune) for tune in (None, "measure"))
    number = len(read_records())
    assert number == len(tuple(last_choices(plain)))
    assert tune_network(plain, Compiler.of(num_threads=1)).records == ()
    for feeds in detector.samples(3):
        for mine, expected in zip(tuned.run(None, feeds), plain.run(None, feeds), strict=True):
            np.testing.assert_array_equal(mine, expected)


@pytest.mark.slow
def test_the_tuner_measures_late_kernels(cache: Path) -> None:
    tuned: Any = qg.compile(
        BUILDERS["detector"]().model, num_threads=1, tune="measure", max_minutes=0.5
    )
    tasks = {record.task for record in last_choices(tuned)}
    assert {record.task for record in read_records()} <= tasks
