"""Commands without a terminal: lines on stderr say what takes so long."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quantglow.cli.main import COMMANDS, main
from quantglow.evaluation import diagnosis
from quantglow.support import progress as under_way
from quantglow.support.progress import heartbeat, show, step
from tests.support.small_network import small_model, small_samples


@pytest.fixture(autouse=True)
def beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats that come soon."""
    monkeypatch.setattr(under_way, "BEAT_SECONDS", 0.02)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_that_it_works(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]

    def slow(*arguments: Any) -> None:
        time.sleep(0.3)

    monkeypatch.setitem(COMMANDS, name, replace(command, run=slow))
    words = shlex.split(command.example.partition(">")[0])
    assert main(words[1:]) == 0
    assert f"quantglow {name}: working, 0 s\n" in capsys.readouterr().err


def test_debug_names_what_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: Any) -> dict[str, float]:
        time.sleep(0.3)
        return {}

    monkeypatch.setattr(diagnosis, "sensitivities", slow)
    onnx.save(small_model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=np.concatenate(small_samples()))
    data = str(tmp_path / "samples.npz")
    assert main(["debug", str(tmp_path / "net.onnx"), "--calibration-data", data]) == 0
    assert re.search(r"quantglow debug: sensitivity of \d+ layers", capsys.readouterr().err)


def test_the_innermost_step_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat("a"), step("outer"):
        for _ in show([1], "inner"):
            time.sleep(0.2)
        capsys.readouterr()
        time.sleep(0.2)
        assert set(capsys.readouterr().err.splitlines()) == {"a: outer, 0 s"}
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_bar_needs_no_lines_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat("a"):
        for _ in show([1], "inner", progress=True):
            time.sleep(0.2)
    assert capsys.readouterr().err.splitlines() == ["inner: 1 of 1", "inner: done, 1 in 0 s"]
