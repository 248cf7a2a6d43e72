"""``--config``: flags from a TOML file, as if they had been typed before the others."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from quantglow.cli.main import main, parse
from quantglow.support.errors import FileFormatError, OptionError

QUANTIZE = ["quantize", "net.onnx"]


def options_of(tmp_path: Path, text: str, *words: str) -> argparse.Namespace:
    """The options of ``quantize`` with a file of this text."""
    file = tmp_path / "flags.toml"
    file.write_text(text)
    return parse([*QUANTIZE, *words, "--config", str(file)])


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ('calibration-data = "s.npz"', ["--calibration-data", "s.npz"]),
        ('calibration_data = "s.npz"', ["--calibration-data", "s.npz"]),
        ("subset_size = 7", ["--subset-size", "7"]),
        ("symmetric_weights = false", ["--no-symmetric-weights"]),
        ("symmetric_weights = true", ["--symmetric-weights"]),
        ("json = true", ["--json"]),
        ("json = false", []),
        ('input_shapes = ["x:1,2", "y:3"]', ["--input-shapes", "x:1,2", "y:3"]),
        ("", []),
    ],
)
def test_entries_are_flags(tmp_path: Path, text: str, typed: list[str]) -> None:
    actual, expected = vars(options_of(tmp_path, text)), vars(parse([*QUANTIZE, *typed]))
    assert {**actual, "config": None} == {**expected, "config": None}


def test_typed_flags_win(tmp_path: Path) -> None:
    text = 'subset_size = 7\ncalibration_data = "a.npz"'
    actual = options_of(tmp_path, text, "--subset-size", "9")
    assert (actual.subset_size, actual.calibration_data) == (9, "a.npz")


def test_positional_arguments_may_come_last(tmp_path: Path) -> None:
    file = tmp_path / "flags.toml"
    file.write_text('input_shapes = ["x:1,2"]')
    for words in (["--config", str(file), "net.onnx"], [f"--config={file}", "net.onnx"]):
        actual = parse(["quantize", *words])
        assert (actual.model, actual.input_shapes) == ("net.onnx", ["x:1,2"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("subset_sice = 7", "quantize has no flag --subset-sice"),
        ('config = "other.toml"', "has no flag --config"),
        ("subset_size = []", "--subset-size cannot be"),
        ("subset_size = {a = 1}", "--subset-size cannot be"),
        ("subset_size = true", "--subset-size cannot be"),
    ],
)
def test_other_entries_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        options_of(tmp_path, text)


@pytest.mark.parametrize("text", ["= 1", "a = 1\na = 2", "\x00"])
def test_other_texts_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileFormatError, match="cannot read"):
        options_of(tmp_path, text)


def test_a_missing_file_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUANTIZE, "--config", "missing.toml"]) == 1
    said = capsys.readouterr().err
    assert "missing.toml" in said and "Traceback" not in said


def test_values_are_checked_as_if_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of(tmp_path, 'effort = "fats"')
    assert "did you mean fast?" in capsys.readouterr().err
