"""Outputs are checked before the work, and unknown flags are named with the nearest one."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.cli.main import main
from quantglow.driver.pipeline import imported
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

    monkeypatch.setattr(imported, "float_family_of", refuse)
    monkeypatch.setattr("quantglow.cli.commands.opened", refuse)


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
