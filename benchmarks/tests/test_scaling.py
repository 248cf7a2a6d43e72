"""The simulation of threads: cases that can be computed by hand."""

from __future__ import annotations

import pytest

from benchmarks.latency.scaling import Call, Machine, ends_at, moves, simulated

LONG = 1e9
MACHINE = Machine(line=1e-7, core=1e10, memory=2e10)


def test_one_thread_loses_nothing() -> None:
    run = simulated([Call(1e-3, 8, LONG), Call(2e-3, 1, 1.0)], 1, MACHINE)
    assert run.seconds == pytest.approx(3e-3)


def test_an_even_call_is_divided() -> None:
    run = simulated([Call(1e-3, 64, LONG)], 4, MACHINE)
    assert run.even == pytest.approx(0.25e-3)
    assert run.uneven == pytest.approx(0.0, abs=1e-12)
    assert run.claims == pytest.approx(moves(8, 4) * 1e-7)


def test_three_items_on_two_threads_take_two_turns() -> None:
    run = simulated([Call(3e-3, 3, LONG)], 2, MACHINE)
    assert run.even + run.uneven == pytest.approx(2e-3)


def test_small_calls_stay_on_one_thread() -> None:
    run = simulated([Call(1e-6, 8, 1.0), Call(1e-3, 64, LONG)], 4, MACHINE)
    assert run.serial == pytest.approx(0.75e-6)
    assert run.claims == pytest.approx(moves(8, 4) * 1e-7)


def test_small_programs_stay_on_one_thread() -> None:
    assert simulated([Call(1e-6, 8, 1.0)], 4, MACHINE).seconds == pytest.approx(1e-6)


def test_memory_limits_all_cores_together() -> None:
    run = simulated([Call(1e-3, 64, LONG, nbytes=1e7)], 16, MACHINE)
    assert run.even + run.uneven + run.memory == pytest.approx(1e7 / MACHINE.memory)


def test_whoever_is_free_takes_the_next_chunk() -> None:
    assert ends_at([3.0, 1.0, 1.0, 1.0], 2) == 3.0
    assert ends_at([1.0, 1.0, 3.0], 2) == 4.0
