"""Workers leave the processor of the thread that they help."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from quantglow.runtime.native import threads as thread_affinity
from quantglow.runtime.native.threads import PATIENCE, WorkerPlacement

ALLOWED = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two processors")


@pytest.fixture
def worker() -> Iterator[int]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield thread.native_id
    end.set()
    thread.join()


def updated(worker: int, caller: int, observed: int, times: int, monkeypatch) -> WorkerPlacement:
    placed = WorkerPlacement([worker], np.array([observed]))
    monkeypatch.setattr(thread_affinity, "current_processor", lambda: caller)
    for _ in range(times):
        placed.update()
    return placed


def test_a_worker_that_stays_with_its_caller_is_moved(worker: int, monkeypatch) -> None:
    updated(worker, ALLOWED[0], ALLOWED[0], PATIENCE, monkeypatch)
    assert os.sched_getaffinity(worker) == set(ALLOWED[1:])


@pytest.mark.parametrize(("observed", "times"), [(0, PATIENCE - 1), (1, 5 * PATIENCE)])
def test_the_system_is_trusted_for_a_while(
    worker: int, observed: int, times: int, monkeypatch
) -> None:
    updated(worker, ALLOWED[0], ALLOWED[observed], times, monkeypatch)
    assert os.sched_getaffinity(worker) == set(ALLOWED)


def test_a_caller_that_moves_sets_its_workers_free(worker: int, monkeypatch) -> None:
    placed = updated(worker, ALLOWED[0], ALLOWED[0], PATIENCE, monkeypatch)
    monkeypatch.setattr(thread_affinity, "current_processor", lambda: ALLOWED[1])
    placed.update()
    assert os.sched_getaffinity(worker) == set(ALLOWED)
