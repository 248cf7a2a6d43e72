"""Recipes: what they hold, what they refuse, and that the small ones keep their gates."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.api.quantize_and_compile import quantize_under
from quantglow.cli.calibrate import deviation
from quantglow.cli.main import main
from quantglow.cli.recipe import DataSet, load_images, load_recipe
from quantglow.cli.recipe_data import STEPS, ImageSet, preprocess
from tests.support.small_network import small_model

CALIBRATION = Path(__file__).resolve().parents[3] / "calibration"
RECIPES = sorted(CALIBRATION.glob("*.toml"))
SMALL = ("mnist", "ppocr_cls")

RECIPE = """
[model]
path = "net.onnx"
[data]
path = "data.npz"
[data.calibration]
images = "images"
count = 4
[data.evaluation]
images = "images"
labels = "labels"
[preprocessing]
steps = [{ divide = 128 }, { channels_first = true }]
[gate]
min_sqnr_db = 20.0
[profile]
path = "net.profile.npz"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with everything that RECIPE names but the profile."""
    rng = np.random.default_rng(0)
    onnx.save(small_model(), tmp_path / "net.onnx")
    images = rng.integers(0, 256, (6, 6, 6, 2), dtype=np.uint8)
    labels, unfinished = rng.integers(0, 3, 6), images.astype(np.float32)
    unfinished[3, 1, 1, 1] = np.nan
    others = {
        "complex": images.astype(np.complex64),
        "texts": np.full(images.shape, "a"),
        "unfinished": unfinished,
        "floats": labels.astype(float),
        "from_one": labels + 1,
        "rows": labels[:, None],
        "texts_of_labels": labels.astype(str),
    }
    np.savez(tmp_path / "data.npz", images=images, labels=labels, **others)
    (tmp_path / "net.toml").write_text(RECIPE)
    return tmp_path


def calibrate(folder: Path, *changes: tuple[str, str], options: tuple[str, ...] = ()) -> int:
    """The exit code on RECIPE with texts replaced."""
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "net.toml").write_text(text)
    return main(["calibrate", str(folder / "net.toml"), "--num-threads", "1", *options])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "mnist" else pytest.mark.slow) for n in SMALL]
)
def test_small_recipes_keep_their_gates(name: str) -> None:
    assert main(["calibrate", str(CALIBRATION / f"{name}.toml")]) == 0


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_is_sound_and_has_a_gate(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.gate.min_sqnr_db is not None
    assert recipe.model.is_file() or recipe.obtain


@pytest.mark.parametrize("path", sorted(CALIBRATION.glob("*.npz")), ids=lambda p: p.stem)
def test_recorded_profiles_are_small(path: Path) -> None:
    assert path.stat().st_size < 200_000


@pytest.mark.slow
def test_a_recipe_holds_a_contract(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = ("min_sqnr_db = 20.0", "min_sqnr_db = 70.0")
    options = ("--update-profile",)
    assert calibrate(folder, strict, options=options) == 1
    control = ("[gate]", "[control]\nmax_drop = 0.0001\n\n[gate]")
    assert calibrate(folder, strict, control, options=options) == 0


@pytest.mark.slow
def test_update_profile_writes_what_later_runs_reproduce(folder: Path) -> None:
    assert calibrate(folder, options=("--update-profile",)) == 0
    assert qg.Profile.load(folder / "net.profile.npz").samples == 4
    assert calibrate(folder) == 0


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("gate", "missed"),
    [
        ("min_sqnr_db = 200.0", "SQNR dB"),
        ("min_accuracy = 1.01", "accuracy of int8"),
        ("min_agreement = 1.01", "agreement with float"),
        ("max_drop = -1.01", "drop"),
    ],
)
def test_a_missed_gate_is_exit_code_1_and_says_which(
    folder: Path, capsys: pytest.CaptureFixture[str], gate: str, missed: str
) -> None:
    actual = calibrate(folder, ("min_sqnr_db = 20.0", gate), options=("--update-profile",))
    shown = capsys.readouterr()
    assert actual == 1
    assert "MISSED" in shown.out
    assert f"misses its gate: {missed} " in shown.err


def test_a_gate_on_accuracy_without_labels_is_missed(folder: Path) -> None:
    changes = (("min_sqnr_db = 20.0", "min_accuracy = 0.0"), ('labels = "labels"\n', ""))
    assert calibrate(folder, *changes, options=("--update-profile",)) == 1


@pytest.mark.slow
def test_an_interrupted_profile_is_not_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        built = quantize_under(*arguments)
        return replace(built, profile=replace(built.profile, samples=2))

    calibrate(folder, options=("--update-profile",))
    before = (folder / "net.profile.npz").read_bytes()
    monkeypatch.setattr("quantglow.cli.calibrate.quantize_under", interrupted)
    assert calibrate(folder, options=("--update-profile",)) == 1
    assert "Ctrl-C ended it after 2 of 4 images" in capsys.readouterr().err
    assert (folder / "net.profile.npz").read_bytes() == before


@pytest.mark.slow
def test_another_preprocessing_does_not_reproduce_the_profile(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate(folder, options=("--update-profile",))
    assert calibrate(folder, ("divide = 128", "divide = 130")) == 1
    assert "recorded profile differs" in capsys.readouterr().err


def test_a_missing_profile_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(folder) == 1
    assert "recorded profile missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("net.onnx", "../net.onnx", "leaves the folder"),
        ("net.onnx", "/etc/passwd", "leaves the folder"),
        ("net.profile.npz", "a/../../p.npz", "leaves the folder"),
        ("net.onnx", "none.onnx", "does not exist"),
        ("data.npz", "none.npz", "cannot read"),
        ("data.npz", "net.onnx", "cannot read"),
        ('labels = "labels"', 'labels = "nothing"', "cannot read"),
        ("[gate]", "[gates]", "unknown entries"),
        ("min_sqnr_db", "min_sqnr", "unknown entries"),
        ("20.0", '"much"', "must be a number"),
        ("count = 4", "count = 0", "count must be"),
        ("count = 4", "count = true", "count must be"),
        ("divide", "multiply", "step must be one of"),
        ("{ divide = 128 }", "{ divide = [1, 2, 3] }", "3 numbers for images of 2 channels"),
        ("{ divide = 128 }", "{ crop = 7 }", "crop must be"),
        ("{ divide = 128 }", '{ zero_right_of = "widths" }', "zero_right_of"),
        ("[gate]", "[options]\npreset = 'best'\n[gate]", "preset must be one of"),
        ('path = "net.onnx"', 'path = "net.onnx"\nanswers = "words"', "answers must be one of"),
        ('path = "net.onnx"', 'path = "net.onnx"\nanswers = "text"', "no entry 'character'"),
        ("[gate]", "[options]\npresets = 1\n[gate]", "unknown entries"),
        ("[gate]", "[control]\nmax_minutes = 1\n[gate]", "needs 'max_drop'"),
        ("[gate]", "[control]\nmax_drop = -1\n[gate]", "must not be negative"),
        ("[gate]", "[control]\nmax_drops = 1\n[gate]", "unknown entries"),
        ("[gate]", "[gate", "recipe"),
        ("[gate]", "nested = " + "[" * 9_999 + "]" * 9_999 + "\n[gate]", "recipe"),
        ("count = 4", f"count = {10**30}\ncrops = 'random'", "count must be"),
        ('images = "images"\nlabels', 'images = "nothing"\nlabels', "cannot read"),
        ('images = "images"\nlabels', 'images = "complex"\nlabels', "are complex64"),
        ('images = "images"\nlabels', 'images = "texts"\nlabels', "are <U1"),
        ('images = "images"\nlabels', 'images = "unfinished"\nlabels', "sample 3 has 1 NaN"),
        ('labels = "labels"', 'labels = "floats"', "labels of float64"),
        ('labels = "labels"', 'labels = "from_one"', "has the label 3"),
        ('labels = "labels"', 'labels = "rows"', "shape (6, 1)"),
        ('labels = "labels"', 'labels = "texts_of_labels"', "labels of <U"),
        ("[gate]", "model = 1\n[gate]", "recipe"),
    ],
)
def test_faults_are_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert calibrate(folder, (old, new)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_truncated_data_is_one_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (folder / "data.npz").read_bytes()
    (folder / "data.npz").write_bytes(whole[: len(whole) // 2])
    assert calibrate(folder) == 1
    assert "cannot read" in capsys.readouterr().err


def test_a_link_out_of_the_repository_is_refused(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    shutil.copy(folder / "net.toml", inner)
    os.symlink(folder / "net.onnx", inner / "net.onnx")
    with pytest.raises(qg.OptionError, match="leaves the folder"):
        load_recipe(inner / "net.toml")


def test_paths_may_go_up_inside_a_repository(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "pyproject.toml").touch()
    (inner / "net.toml").write_text(RECIPE.replace("net.onnx", "../net.onnx"))
    assert load_recipe(inner / "net.toml").model == (folder / "net.onnx").resolve()


def test_random_crops_follow_the_seed(folder: Path) -> None:
    def drawn(seed: int) -> bytes:
        data = DataSet(folder / "data.npz", {"images": "images"}, 9, "random", seed)
        return load_images(data, (("crop", 4),))[0].tobytes()

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_centre_crop_is_the_middle() -> None:
    images = ImageSet(np.arange(36).reshape(1, 6, 6))
    np.testing.assert_array_equal(preprocess(images, [("crop", 2)])[0], [[14, 15], [20, 21]])


def test_columns_right_of_the_width_are_zero() -> None:
    images = ImageSet(np.ones((2, 1, 3)), {"widths": np.array([1, 3])})
    actual = preprocess(images, [("zero_right_of", "widths")])
    np.testing.assert_array_equal(actual[:, 0], [[1, 0, 0], [1, 1, 1]])


def test_steps_give_float32() -> None:
    images = ImageSet(np.full((1, 2, 2), 9, np.uint8))
    actual = preprocess(images, [("subtract", 1), ("divide", 2), ("channels", 3)])
    assert actual.dtype == np.float32
    assert actual.shape == (1, 2, 2, 3)
    assert np.all(actual == 4)


def test_every_step_is_in_the_readme() -> None:
    text = (CALIBRATION / "README.md").read_text()
    assert all(f"{{ {name} = " in text for name in STEPS)


def test_a_range_that_is_no_longer_empty_deviates_without_limit() -> None:
    empty, wide = (
        qg.Profile("h", {"x": qg.profiling.Histogram.of(np.float32([0, high]))}) for high in (0, 1)
    )
    assert deviation(empty, wide) == float("inf")
    assert deviation(empty, empty) == 0


def test_deviation_is_a_share_of_the_range() -> None:
    def profile(high: float) -> qg.Profile:
        observed = qg.profiling.Histogram.of(np.float32([0, high]))
        return qg.Profile("h", {"x": observed})

    assert deviation(profile(100.0), profile(99.0)) == pytest.approx(0.01)
