"""``progress`` of every public function that takes it: False shows nothing, True shows lines."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

import quantglow as qg
from tests.support.small_network import small_model, small_samples

CALLS: dict[str, Callable[[Any], object]] = {
    "quantize_and_compile": lambda progress: qg.quantize_and_compile(
        small_model(), small_samples(), num_threads=1, verify=False, progress=progress
    ),
    "profile": lambda progress: qg.profile(small_model(), small_samples(), progress=progress),
    "diagnose": lambda progress: qg.diagnose(
        small_model(), small_samples(), sensitivity=False, progress=progress
    ),
    "compare": lambda progress: qg.compare(
        small_model(), small_samples(), quantizers=(), seconds=0.01, progress=progress
    ),
}


class Terminal(io.StringIO):
    """A terminal, as ``"auto"`` asks for."""

    def isatty(self) -> bool:
        return True


def test_each_function_with_the_option_is_called_here() -> None:
    functions = {name: getattr(qg, name) for name in qg.__all__}
    taking = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and "progress" in inspect.signature(function).parameters
    }
    assert taking == CALLS.keys()


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_shown_in_a_terminal_without_progress(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    CALLS[name](False)
    assert terminal.getvalue() == ""


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", CALLS)
def test_lines_are_shown_in_a_log_with_progress(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    CALLS[name](True)
    assert log.getvalue().count("\n") >= 2
