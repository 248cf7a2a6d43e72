"""Choices measured in children: those that fail cost only themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.targets import resolve
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import Deadline
from quantglow.tuning import measuring
from quantglow.tuning.core_fit import Shape, build_graph
from quantglow.tuning.measuring import (
    TIMED,
    UNKNOWN,
    WRONG,
    Job,
    Measurement,
    Measurer,
    Work,
    plan_tasks,
)
from quantglow.tuning.trials import LoadedKernel

GRAPH = build_graph([Shape(5, 24, 40), Shape(6, 20, 17, 3)])
TARGET = resolve("native")
WORK = Work.of([GRAPH], TARGET)
TASKS = plan_tasks([GRAPH], TARGET)[0]
FAULTY = [Job("task", KernelChoice("plain", (1, 1, 1), False, n), 0) for n in (8, 2, 8, 4, 8)]


def outcomes(jobs: Sequence[Job], child: str, monkeypatch: pytest.MonkeyPatch) -> list[Measurement]:
    monkeypatch.setattr(measuring, "CHILD", f"tests.unit.tuning.faulty_children:{child}")
    return Measurer(WORK, samples=2).run(jobs)


@pytest.mark.slow
def test_a_crash_costs_only_the_choice_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = outcomes(FAULTY, "crashing", monkeypatch)
    assert [m.job for m in actual] == FAULTY
    assert [m.seconds for m in actual] == [(1.0, 1.0), (), (1.0, 1.0), (), (1.0, 1.0)]
    assert "SIGSEGV" in actual[1].failure and "no such instruction" in actual[3].failure
    assert (actual[0].ratio, actual[1].ratio) == (0.5, float("inf"))


@pytest.mark.slow
def test_a_choice_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "START_SECONDS", 1.5)
    monkeypatch.setattr(measuring, "CHOICE_SECONDS", 0.1)
    actual = outcomes(FAULTY[:2], "hanging", monkeypatch)
    assert actual[0].seconds and "took longer" in actual[1].failure


def test_nothing_is_begun_after_the_deadline() -> None:
    measurer = Measurer(WORK, deadline=Deadline(0.0))
    assert measurer.run(FAULTY) == []


@pytest.mark.slow
def test_choices_that_the_time_does_not_reach_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first are measured whatever the deadline, others are not begun after it."""
    monkeypatch.setattr(measuring, "GRACE_SECONDS", 20.0)  # a busy machine starts children slowly
    jobs = [Job(task.key, choice, 0) for task in TASKS for choice in task.choices]
    measurer = Measurer(WORK, deadline=Deadline.after(0.001)).run(jobs)
    assert 0 < len(measurer) <= measuring.TOGETHER < len(jobs)
    assert all(measured.seconds for measured in measurer)


def test_a_child_ends_soon_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "GRACE_SECONDS", 0.5)
    start = time.monotonic()
    monkeypatch.setattr(measuring, "CHILD", "tests.unit.tuning.faulty_children:hanging")
    assert Measurer(WORK, deadline=Deadline.after(0.01)).run(FAULTY[:2]) == []
    assert time.monotonic() - start < 15


@pytest.mark.slow
def test_every_choice_is_timed_with_the_default_beside_it() -> None:
    jobs = [Job(task.key, c, 0) for task in TASKS for c in task.choices[:: len(task.choices) // 3]]
    told: list[int] = []
    measurer = Measurer(WORK, samples=3).run(jobs, told.append)
    assert [m.job for m in measurer] == jobs and told == [len(jobs)]
    for measured in measurer:
        assert not measured.failure
        assert min(*measured.seconds, *measured.default_seconds) > 0
        assert len(measured.seconds) == len(measured.default_seconds) == 3


def states(jobs: Sequence[Job]) -> list[int]:
    """The states of choices, measured in this process."""
    actual = measuring.measure_here(
        samples=1,
        jobs=[(job.task, job.choice.to_json(), job.weights_nbytes) for job in jobs],
        **vars(WORK),
    )
    return [int(state) for state in actual[2]]


def test_choices_and_tasks_that_do_not_exist_are_told() -> None:
    jobs = [
        Job(TASKS[0].key, TASKS[0].default, 0),
        Job(TASKS[0].key, KernelChoice("plain", (1, 500, 1)), 0),
        Job("another task", TASKS[0].default, 0),
    ]
    assert states(jobs) == [TIMED, UNKNOWN, UNKNOWN]


def test_a_choice_with_other_results_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    results = LoadedKernel.results
    kernels: list[LoadedKernel] = []

    def wrong(self: LoadedKernel) -> bytes:
        kernels.append(self)
        actual = bytearray(results(self))
        actual[0] ^= 1 if len(kernels) == 3 else 0
        return bytes(actual)

    monkeypatch.setattr(LoadedKernel, "results", wrong)
    jobs = [Job(TASKS[0].key, choice, 0) for choice in TASKS[0].choices[:3]]
    assert sorted(states(jobs)) == [TIMED, TIMED, WRONG]


def test_weights_are_read_from_as_far_as_in_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Array] = []
    monkeypatch.setattr(
        measuring, "time_kernels", lambda kernels, samples: kept(kernels, samples, rows)
    )
    states([Job(TASKS[0].key, TASKS[0].default, nbytes) for nbytes in (0, 2**22)])
    near, far = rows
    assert len(near) == 1 < len(far)
    assert len(np.unique(far[:, 1])) == len(far)


def kept(kernels: Sequence[LoadedKernel], samples: int, rows: list[Array]) -> Array:
    """The tables of kernels noted instead of times."""
    rows.append(kernels[-1].table)
    return np.ones((len(kernels), samples))
