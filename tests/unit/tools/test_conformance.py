"""A conformance case runs in a process of its own, whatever it does to that process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tools import conformance
from tools.conformance import Outcome, isolated


@dataclass(frozen=True)
class Case:
    """A case without data; ``model`` is what happens when it is prepared."""

    model: Callable[[], object]
    name: str = "case"
    data_sets: tuple[object, ...] = ()


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that does to the process what the case wants."""

    def prepare(model: Callable[[], object], num_threads: int) -> conformance.Prepared:
        model()
        return list, lambda: f"compiled for {num_threads}"

    monkeypatch.setattr(conformance, "RUNTIMES", {"fake": prepare})


def test_an_outcome_comes_back() -> None:
    assert isolated(Case(list), "fake", 4) == Outcome("case", "compiled for 4")


def test_an_exception_fails_the_case() -> None:
    assert isolated(Case(lambda: [][0]), "fake", 1).how == "failed"


def test_a_crash_is_the_failure_of_one_case() -> None:
    reply = isolated(Case(lambda: os.kill(os.getpid(), signal.SIGKILL)), "fake", 1)
    assert reply == Outcome("case", "crashed", f"exit code {-signal.SIGKILL}")


def test_a_hang_is_the_failure_of_one_case() -> None:
    reply = isolated(Case(lambda: time.sleep(60)), "fake", 1, seconds=0.2)
    assert reply == Outcome("case", "crashed", "no result within 0.2 s")


def test_every_number_of_threads_must_reach_the_floors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def outcome(case: Any, runtime: str, num_threads: int) -> Outcome:
        crashes = runtime == "quantglow" and num_threads == 2
        return Outcome(case.name, "crashed" if crashes else "compiled")

    monkeypatch.setattr(conformance, "cases", lambda: [Case(list)])
    monkeypatch.setattr(conformance, "isolated", outcome)
    for counts, code in (([1], 0), ([1, 4], 0), ([1, 2, 4], 1)):
        options = SimpleNamespace(num_threads=counts, verbose=False)
        assert conformance.run(options) == code
    assert "only onnxruntime passes case: crashed" in capsys.readouterr().out
