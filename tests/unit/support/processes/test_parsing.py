"""Threads that parse at once get their trees, and arrays their heads."""

from __future__ import annotations

import gc
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from quantglow.ir.graph.text import unquote
from quantglow.ir.symbolic.text import parse_tree
from quantglow.runtime.saved.stored_arrays import from_npy, npy
from quantglow.support.files import read_arrays
from quantglow.support.processes.threads import ATTEMPTS, run_undisturbed

SECONDS = 0.5
TEXT = f"f({','.join(f'a{i}=-{i}+({i},(1,(2,3)))' for i in range(50))})"


class Finalized:
    """Garbage in a cycle: its end runs Python code, in which threads take turns."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(30):
            pass


def parse_as_a_user(array: bytes) -> None:
    """A thread of the user's, whom nothing protects."""
    with suppress(SystemError):
        np.lib.format.read_array(io.BytesIO(array))


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Garbage collections and switches of threads at nearly every step."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(100)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("many_switches")
def test_threads_that_parse_at_once_are_not_disturbed(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 4)))
    end, errors = time.monotonic() + SECONDS, []

    def repeat(call: Callable[[], object], depth: int) -> object:
        if depth:
            return repeat(call, depth - 1)
        try:
            while time.monotonic() < end:
                call()
        except BaseException as error:  # noqa: BLE001 - any error is a finding
            errors.append(error)
        return None

    array = npy(np.zeros((3, 4), np.int8))
    calls = [
        lambda: parse_tree(TEXT),
        lambda: unquote("'name'"),
        lambda: from_npy(array),
        lambda: read_arrays(tmp_path / "x.npz"),
        lambda: parse_as_a_user(array),
        Finalized,
    ]
    threads = [
        threading.Thread(target=repeat, args=(call, 10 * at)) for at, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def disturbed(times: int) -> Callable[[], str]:
    """A call that is disturbed so many times before it gives a result."""
    left = iter(range(times))

    def call() -> str:
        for _ in left:
            raise SystemError("AST constructor recursion depth mismatch (before=45, after=44)")
        return "a tree"

    return call


def test_a_disturbed_call_is_repeated() -> None:
    assert run_undisturbed(disturbed(3)) == "a tree"


def test_a_call_that_is_always_disturbed_raises() -> None:
    with pytest.raises(SystemError, match="recursion depth"):
        run_undisturbed(disturbed(ATTEMPTS))
