"""One thread makes a value that several need; the others wait, or make it where that one ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from quantglow.support.processes.threads import SingleFlight
from tests.unit.forking import exit_code_of_child

SECONDS = 60


class Squares:
    """Squares, each made once; ``hold`` is called while one is made."""

    def __init__(self, hold: Callable[[int], object]) -> None:
        self.hold = hold
        self.known: dict[int, int] = {}
        self.computed: list[int] = []
        self.flight = SingleFlight[int, int]()

    def at(self, number: int) -> int:
        return self.flight.result(lambda: (number, self.known.get(number)), self.make)

    def make(self, number: int) -> int:
        self.computed.append(number)
        self.hold(number)
        self.known[number] = number**2
        return self.known[number]


def called(squares: Squares, pool: ThreadPoolExecutor, begun: threading.Event) -> list[Future[int]]:
    """Three calls, the first of which has begun to make its value."""
    first = pool.submit(squares.at, 3)
    assert begun.wait(SECONDS)
    return [first, pool.submit(squares.at, 3), pool.submit(squares.at, 3)]


@pytest.mark.parametrize(
    ("error", "expected", "built"),
    [
        (None, [9, 9, 9], [3]),
        (ValueError, [ValueError] * 3, [3]),
        (KeyboardInterrupt, [KeyboardInterrupt, 9, 9], [3, 3]),
    ],
)
def test_one_thread_makes_a_value(
    error: type[BaseException] | None, expected: list[object], built: list[int]
) -> None:
    """An error is that of all, but Ctrl-C ends one thread only."""
    begun, end = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if not begun.is_set():
            begun.set()
            assert end.wait(SECONDS)
            threading.Event().wait(0.1)  # the others wait by then
            if error is not None:
                raise error

    squares = Squares(hold)
    with ThreadPoolExecutor(3) as pool:
        calls = called(squares, pool, begun)
        end.set()
        actual = [
            type(raised) if (raised := call.exception(SECONDS)) else call.result() for call in calls
        ]
    assert (actual, squares.computed) == (expected, built)


def test_other_values_are_made_meanwhile_and_this_one_in_a_forked_child() -> None:
    parent = os.getpid()
    begun, end = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number == 3 and os.getpid() == parent:
            begun.set()
            assert end.wait(SECONDS)

    squares = Squares(hold)
    with ThreadPoolExecutor(3) as pool:
        calls = called(squares, pool, begun)
        assert squares.at(4) == 16
        assert not any(call.done() for call in calls)
        assert exit_code_of_child(lambda: squares.at(3) == 9) == 0
        end.set()
        assert [call.result(SECONDS) for call in calls] == [9, 9, 9]
