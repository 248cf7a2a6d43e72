"""Outputs are checked before the work, and unknown flags are named with the nearest one."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.api.pipeline import request as imported
from quantglow.cli.completion import SHELLS
from quantglow.cli.main import main
from tests.support.small_network import small_model, small_samples

COMMANDS = {
    "profile": "profile net.onnx --calibration-data samples.npz --output {}.npz",
    "quantize": "quantize net.onnx --calibration-data samples.npz --output {}.qgm",
    "quantize to onnx": "quantize net.onnx --calibration-data samples.npz --output {}.onnx",
    "compile": "compile net.onnx --output {}.qgm",
    "run": "run net.onnx --inputs one.npz --output {}.npz",
    "debug": "debug net.onnx --calibration-data samples.npz --output {}.html",
}
"""Every command that writes a file, with the name of the file left open."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(small_model(), str(tmp_path / "net.onnx"))
    np.savez(tmp_path / "samples.npz", x=np.concatenate(small_samples()))
    np.savez(tmp_path / "one.npz", x=small_samples()[0])
    for ending in ("npz", "qgm", "onnx", "html"):
        (tmp_path / f"folder.{ending}").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(imported, "open_float_family", refuse)
    monkeypatch.setattr("quantglow.cli.commands.open_model", refuse)


@pytest.mark.parametrize("name", ["folder", "none/a", "file/a", "a" * 260])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("no_work")
def test_unwritable_outputs_are_refused_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    assert main(COMMANDS[command].format(name).split()) == 1
    assert "OptionError: cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["quantize", "compile"])
@pytest.mark.usefixtures("no_work")
def test_a_full_disk_is_refused_before_the_work(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    assert main(COMMANDS[command].format("a").split()) == 1
    assert "100 bytes are free" in capsys.readouterr().err


def test_the_check_leaves_nothing(folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert main(["compile", "none.onnx", "--output", "a.qgm"]) == 1
    assert sorted(folder.iterdir()) == before


@pytest.mark.slow
def test_without_a_name_the_model_is_saved_here(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "net.onnx", "--calibration-data", "samples.npz"]) == 0
    assert capsys.readouterr().out.startswith("no --output: the model goes to net.int8.qgm")
    assert qg.load(folder / "net.int8.qgm").get_inputs()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "quantize net.onnx --calibrationdata a.npz",
            "no flag --calibrationdata, did you mean --calibration-data?",
        ),
        ("quantize net.onnx --calibration_data a.npz", "did you mean --calibration-data?"),
        ("profile --ouput=a net.onnx", "no flag --ouput, did you mean --output?"),
        ("bench net.onnx --num-thr 1", "no flag --num-thr, did you mean --num-threads?"),
        ("--versio", "no flag --versio, did you mean --version?"),
        ("run net.onnx --zzz", "no flag --zzz\n"),
        ("quantise net.onnx", "there is no 'quantise', did you mean quantize?"),
        ("help quantise", "did you mean quantize?"),
        ("inspect net.onnx --stage memry", "there is no 'memry', did you mean memory?"),
        ("quantize net.onnx --effort zzz", "there is no 'zzz', choose from fast, default, best"),
        ("quantize net.onnx --recovery round_weights", "did you mean round-weights?"),
        ("bench net.onnx --compare onnxrutime", "did you mean onnxruntime?"),
    ],
)
def test_unknown_flags_are_named_with_the_nearest(
    capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(line.split())
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_numbers_are_no_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "none.onnx", "--seconds", "-1"]) == 1
    assert "seconds must be positive" in capsys.readouterr().err


def test_help_is_that_of_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quantize", "--help"])
    captured = capsys.readouterr().out
    assert main(["help", "quantize"]) == 0
    assert capsys.readouterr().out == captured
    assert main(["help"]) == 0
    assert "quantize" in capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_flags_and_values(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("compare", "calibration-data", "performance"))


def test_bash_completes_a_command_a_flag_and_a_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = """
source ./script
complete_line() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _shtab_quantglow; echo "${COMPREPLY[@]}"
}
complete_line quantglow qua
complete_line quantglow quantize --calibration-d
complete_line quantglow quantize --effort be
"""
    done = subprocess.run(
        ["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:3] == ["quantize", "--calibration-data", "best"], done.stderr


def test_completion_without_shtab_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'quantglow[completion]'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["onnx", "qgm"])
def test_a_model_comes_from_stdin(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder / "net.onnx"
    if kind == "qgm":
        qg.compile(model, num_threads=1).save(folder / "piped.qgm")
        model = folder / "piped.qgm"
    wrapper = io.TextIOWrapper(io.BytesIO(model.read_bytes()))
    monkeypatch.setattr(sys, "stdin", wrapper)
    assert main(["inspect", "-", "--stage", "program"]) == 0
    assert "@out" in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_stdin_without_a_model_is_an_error(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(empty, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", empty)
    assert main(["inspect", "-"]) == 1
    assert "Remedy: " in capsys.readouterr().err
