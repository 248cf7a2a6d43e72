"""Ctrl-C keeps the best so far in every stage and says so; a second one aborts.

Each test sends real signals to a child process, which waits for them in the middle of a stage.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quantglow as qg
from quantglow.support.processes.interrupts import (
    MESSAGE,
    Interrupted,
    check_interrupt,
    is_interrupted,
    keeping_best,
)
from tests.support.combinations import mark_slow
from tests.support.small_network import small_model, small_samples

ROOT = Path(__file__).resolve().parents[4]

CHILD = """
import select, sys
import quantglow as qg
from importlib import import_module
from tests.support.small_network import small_model, small_samples

place, turn, options = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
module, name = place.split(":")
owner = import_module(module)
if "." in name:
    cls, name = name.split(".")
    owner = getattr(owner, cls)
usual, calls = getattr(owner, name), [0]

def waiting(*arguments, **named):
    calls[0] += 1
    if calls[0] >= turn:
        print("here", flush=True)
        # A signal that comes right before readline blocks would be handled only after it.
        while not select.select([sys.stdin], [], [], 0.05)[0]:
            pass
        sys.stdin.readline()
    return usual(*arguments, **named)

setattr(owner, name, waiting)
options = {"progress": False, "num_threads": 1, **options}
found = qg.quantize_and_compile(small_model(), small_samples(12), **options)
print("calls", calls[0])
print("samples", found.profile.samples, found.report.samples)
for note in found.report.notes:
    print("note", note)
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
found.run(None, {"x": small_samples()[0]})
print("done")
"""


class Child:
    """``quantize_and_compile`` in a process that waits at a function until it is told to go on."""

    def __init__(self, place: str, turn: int, options: str) -> None:
        line = [sys.executable, "-c", CHILD, place, str(turn), options]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            line, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def interrupt(self) -> None:
        """Ctrl-C while the child waits."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "here\n", self.process.communicate()
        self.process.send_signal(signal.SIGINT)

    def said(self) -> str:
        """The next line that the child shows the user; no later than while it still waits."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def end(self) -> tuple[int, str, str]:
        """Let it go on; its exit code, and what it printed."""
        out, err = self.process.communicate("\n" * 100, timeout=120)
        return self.process.returncode, out, err


@contextmanager
def child(place: str, turn: int = 1, options: str = "{}") -> Iterator[Child]:
    child = Child(place, turn, options)
    try:
        yield child
    finally:
        child.process.kill()
        child.process.communicate()


LAYER = "quantglow.quantization.rounding.sample_runs:LayerData"
STAGES = {
    "profiling": ("quantglow.profiling.recording:graph_for", 3, "{}"),
    "functions": ("quantglow.quantization.search.levers:worth_fusing", 1, "{}"),
    "ranges": ("quantglow.quantization.search.levers:choose_ranges", 1, "{}"),
    "trials": ("quantglow.quantization.search.trials:relative_noise", 1, "{}"),
    "recovery": (LAYER, 1, "{}"),
    "last layer": (LAYER, 2, "{}"),
    "recovery under a contract": (LAYER, 1, "{'max_drop': 0.5}"),
    "int16": (
        "quantglow.quantization.quantizer:with_chosen_int16",
        1,
        "{'int16_activations': 'auto'}",
    ),
    "speed": ("quantglow.evaluation.layer_speed:SpeedSearch.tried", 1, "{'measure_speed': True}"),
    "control": (
        "quantglow.api.pipeline.accuracy_control:AccuracyControl.trial",
        1,
        "{'max_drop': 0.5}",
    ),
    "check": ("quantglow.evaluation.outputs:compare_output", 1, "{}"),
}
"""A function in the middle of each stage, and the call of it that Ctrl-C comes in."""

CUT = {
    "profiling": "Ctrl-C ended profiling early: calibrated on 3 batch(es)",
    "ranges": "Ctrl-C ended choosing ranges and scales early",
    "recovery": "Ctrl-C ended accuracy recovery early: 1 of 2 layers",
    "recovery under a contract": "Ctrl-C ended accuracy recovery early: 1 of 2 layers",
    "speed": "Ctrl-C ended measuring speed early",
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("stage", mark_slow(STAGES, {"profiling", "recovery", "control"}))
def test_the_first_ctrl_c_keeps_the_best(stage: str) -> None:
    with child(*STAGES[stage]) as started:
        started.interrupt()
        assert MESSAGE in started.said()
        code, out, err = started.end()
    assert (code, err, out.splitlines()[-1]) == (0, "", "done")
    assert CUT.get(stage, "") in out


@pytest.mark.slow
@pytest.mark.parametrize("stage", mark_slow(STAGES, {"check"}))
def test_the_second_ctrl_c_aborts(stage: str) -> None:
    with child(*STAGES[stage]) as started:
        started.interrupt()
        started.said()
        started.process.send_signal(signal.SIGINT)
        code, _, err = started.end()
    assert code == -signal.SIGINT
    assert err.splitlines()[-1].startswith("KeyboardInterrupt")


@pytest.mark.slow
def test_without_ctrl_c_nothing_is_said() -> None:
    with child(LAYER, 9) as started:
        code, out, err = started.end()
    assert (code, err) == (0, "")
    assert "Ctrl-C" not in out


def test_max_minutes_speaks_and_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = qg.quantize_and_compile(small_model(), small_samples(), max_minutes=1e-9)
    assert "max_minutes are over: keeping the best so far" in capsys.readouterr().err
    assert any("max_minutes ended choosing ranges" in note for note in compiled.report.notes)


def test_another_thread_works_without_a_handler() -> None:
    collected: list[object] = []
    usual = signal.getsignal(signal.SIGINT)

    def work() -> None:
        collected.append(qg.quantize_and_compile(small_model(), small_samples(), verify=False))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(collected[0], qg.CompiledModel)
    assert signal.getsignal(signal.SIGINT) is usual


def test_a_handler_of_the_program_stays() -> None:
    def ours(number: int, frame: object) -> None:
        observed.append(number)

    observed: list[int] = []
    usual = signal.signal(signal.SIGINT, ours)
    try:
        with keeping_best():
            signal.raise_signal(signal.SIGINT)
            assert not is_interrupted()
        assert signal.getsignal(signal.SIGINT) is ours
    finally:
        signal.signal(signal.SIGINT, usual)
    assert observed == [signal.SIGINT]


def test_nested_calls_share_one_ctrl_c() -> None:
    with keeping_best():
        with keeping_best():
            signal.raise_signal(signal.SIGINT)
        assert is_interrupted()
        with pytest.raises(Interrupted):
            check_interrupt()
    assert not is_interrupted()


def test_the_handler_is_restored_when_work_fails() -> None:
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), keeping_best():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is usual
