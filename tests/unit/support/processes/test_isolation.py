"""Calls in a child process: results come back, and however a child ends, this process goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from quantglow.support.arrays import Array
from quantglow.support.processes.isolation import (
    ChildDied,
    ChildTimeout,
    IsolationError,
    RaisedInChild,
    call_isolated,
    start,
)

PLACE = "tests.unit.isolated_calls:"
SECONDS = 60.0
MEMORY = 256 << 20
ARRAYS = [
    np.arange(6, dtype=np.float16).reshape(2, 3).T,
    np.array(True),
    np.zeros((0, 3), np.float64),
    np.array(["two", "words"]),
    np.frombuffer(b"any bytes\n", np.uint8),
]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_arrays_and_facts_go_there_and_back() -> None:
    for array, value in zip(
        ARRAYS,
        call_isolated(PLACE + "echoed", ARRAYS, {"a": [1, None]}, seconds=SECONDS),
        strict=True,
    ):
        assert (value.dtype, value.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(value, array)


def test_the_function_runs_in_another_process() -> None:
    (actual,) = call_isolated(PLACE + "process_id", seconds=SECONDS)
    assert actual[0] != os.getpid()
    assert actual[1] == os.getpid()


def test_printed_garbage_does_not_disturb_the_result() -> None:
    (actual,) = call_isolated(PLACE + "shout", [np.arange(3)], seconds=SECONDS)
    np.testing.assert_array_equal(actual, np.arange(3))


def test_a_crash_is_an_error_with_the_name_of_the_signal() -> None:
    with pytest.raises(ChildDied, match=r"signal 11 \(SIGSEGV\): before the end"):
        call_isolated(PLACE + "crash", seconds=SECONDS)


@pytest.mark.parametrize("name", ["hang", "hang_in_silence"])
def test_a_hang_ends_at_the_time_limit(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChildTimeout, match="longer than 1 s"):
        call_isolated(PLACE + name, seconds=1)
    assert time.monotonic() - start < 30


def test_exhausted_memory_is_an_error() -> None:
    with pytest.raises(RaisedInChild, match="Memory") as caught:
        call_isolated(PLACE + "exhaust_memory", seconds=SECONDS, nbytes=MEMORY)
    assert "MemoryError" in caught.value.kind


def test_an_exception_keeps_its_type_and_text() -> None:
    with pytest.raises(RaisedInChild, match="KeyError: 'no such thing'") as caught:
        call_isolated(PLACE + "fail", seconds=SECONDS)
    assert caught.value.kind == "KeyError"


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("leave", ChildDied, "code|without a result"),
        ("objects", RaisedInChild, "ValueError: Object arrays"),
        ("no_function", RaisedInChild, "AttributeError"),
        ("nested", RaisedInChild, "no child process is started from one"),
    ],
)
def test_other_ends_are_errors(name: str, kind: type[IsolationError], message: str) -> None:
    with pytest.raises(kind, match=message):
        call_isolated(PLACE + name, seconds=SECONDS)


@pytest.mark.parametrize("interpreter", ["", "/no/such/python", "/bin/false", None])
def test_without_an_interpreter_it_is_an_error(
    interpreter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(ChildDied):
        call_isolated(PLACE + "echoed", seconds=SECONDS)


def test_a_call_that_nobody_waits_for_ends_with_its_block() -> None:
    with start(PLACE + "hang", seconds=SECONDS) as call:
        assert call.process.poll() is None
    assert call.process.returncode == -signal.SIGKILL


def test_an_exception_in_the_block_ends_the_child() -> None:
    with pytest.raises(KeyboardInterrupt), start(PLACE + "hang", seconds=SECONDS) as call:
        raise KeyboardInterrupt
    assert call.process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_nothing_stays_open() -> None:
    call_isolated(PLACE + "echoed", ARRAYS, seconds=SECONDS)
    before = open_files()
    for name in ("echoed", "crash", "fail"):
        with pytest.raises(IsolationError) if name != "echoed" else start(PLACE + name, seconds=1):
            call_isolated(PLACE + name, seconds=SECONDS)
    assert open_files() == before


def test_threads_call_at_the_same_time() -> None:
    actual: dict[int, list[Array]] = {}

    def call(i: int) -> None:
        actual[i] = call_isolated(PLACE + "echoed", [np.array([i])], seconds=SECONDS)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {i: arrays[0].item() for i, arrays in actual.items()} == {i: i for i in range(4)}


CALL = f"""
import numpy as np
print("the program runs", __name__)
from quantglow.support.processes.isolation import call_isolated
print(call_isolated({PLACE + "echoed"!r}, [np.arange(2)], seconds={SECONDS}))
"""


@pytest.mark.slow_variants
@pytest.mark.parametrize("form", ["script", "text", "stdin"])
def test_programs_without_a_main_guard_call_once(form: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CALL)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong module')")
    arguments = {"script": [str(script)], "text": ["-c", CALL], "stdin": ["-"]}[form]
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        input=CALL if form == "stdin" else None,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout.splitlines() == ["the program runs __main__", "[array([0, 1])]"], done.stderr


WAITING = f"""
from quantglow.support.processes.isolation import call_isolated
print("waits", flush=True)
call_isolated({PLACE + "hang_in_silence"!r}, seconds={SECONDS})
"""


@pytest.mark.slow_variants
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_the_child_ends_with_the_program(how: signal.Signals, delay: float) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])},
    )
    with program:
        assert program.stdout is not None
        program.stdout.readline()
        (child,) = wait_for_children(program.pid)
        time.sleep(delay)
        program.send_signal(how)
        program.wait(SECONDS)
    wait_for_end(child)


def wait_for_children(process: int) -> list[int]:
    place = Path(f"/proc/{process}/task/{process}/children")
    while not (actual := place.read_text().split()):
        time.sleep(0.001)
    return [int(child) for child in actual]


def wait_for_end(process: int) -> None:
    """Wait until it is gone, or dead and not yet reaped."""
    end = time.monotonic() + SECONDS / 2
    while is_alive(process):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
