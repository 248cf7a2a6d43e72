"""Every entry of a recipe with values of wrong types: one message that names the entry."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from quantglow.cli.recipe import load_images, load_recipe
from quantglow.cli.recipe_data import STEPS

HEAD = """
model.path = "net.onnx"
data.path = "data.npz"
data.calibration.images = "images"
data.evaluation.images = "images"
control.max_drop = 1.0
"""
WRONG = ["true", "-1", "1.5", "nan", "1e999", '"\\u0000"', "[]", "[1]", "[[1]]", "{ q = 1 }"]
WRONG += ["1979-05-27", "07:32:00"]
NAMES = {"[]", '"\\u0000"'}
NUMBERS = {"-1", "1.5", "1e999"}
ENTRIES: dict[str, set[str]] = {
    "model.path": set(),
    "model.obtain": set(),
    "model.answers": set(),
    "model.input_shapes": set(),
    "data.path": set(),
    "data.calibration.images": set(),
    "data.calibration.count": set(),
    "data.calibration.seed": set(),
    "data.calibration.crops": set(),
    "preprocessing.steps": {"[]"},
    "profile.path": set(),
    "options.preset": set(),
    "options.calibrate_method": set(),
    "options.percentile": set(),
    "options.per_channel": {"true"},
    "options.ignored_scope": NAMES,
    "options.nodes_to_exclude": NAMES,
    "options.op_types_to_quantize": NAMES,
    "options.int16_activations": NAMES,
    "options.recovery": {"[]"},
    "options.equalization": {"[]"},
    "options.quantize_output": {"true"},
    "options.effort": set(),
    "options.seed": set(),
    "options.profile_with": set(),
    "options.weights": set(),
    "options.group_size": set(),
    "options.activations": set(),
    "options.symmetric_weights": {"true"},
    "control.max_drop": NUMBERS - {"-1"},
    "control.max_minutes": NUMBERS - {"-1"},
    "gate.min_sqnr_db": NUMBERS,
    "gate.min_accuracy": NUMBERS,
    "gate.max_drop": NUMBERS,
    "gate.min_agreement": NUMBERS,
}
"""Entry -> the values of ``WRONG`` that it takes."""

STEPS_THAT_WORK = {(step, number) for step in ("divide", "subtract") for number in ("-1", "1.5")}
STEPS_THAT_WORK.add(("channels_first", "true"))


def test_every_option_of_quantization_is_an_entry() -> None:
    entries = {entry.partition("options.")[2] for entry in ENTRIES if entry.startswith("options.")}
    assert entries == {field.name for field in fields(qg.QuantizationConfig)}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_of_a_wrong_type_is_named(tmp_path: Path, entry: str) -> None:
    others = [line for line in HEAD.splitlines() if not line.startswith(f"{entry} =")]
    for value in WRONG:
        (tmp_path / "net.toml").write_text("\n".join([*others, f"{entry} = {value}"]))
        if value in ENTRIES[entry]:
            load_recipe(tmp_path / "net.toml")
            continue
        name = entry.rpartition(".")[2]
        with pytest.raises(qg.OptionError, match="step" if name == "steps" else name):
            load_recipe(tmp_path / "net.toml")


@pytest.mark.parametrize("step", sorted(STEPS))
@pytest.mark.parametrize("value", WRONG)
def test_a_step_with_a_wrong_argument_is_named(tmp_path: Path, step: str, value: str) -> None:
    np.savez(tmp_path / "data.npz", images=np.ones((3, 6, 6, 2), np.uint8))
    entry = f"preprocessing.steps = [{{ {step} = {value} }}]"
    (tmp_path / "net.toml").write_text(f"{HEAD}{entry}")
    recipe = load_recipe(tmp_path / "net.toml")
    if (step, value) in STEPS_THAT_WORK:
        assert np.isfinite(load_images(recipe.calibration, recipe.steps)[0]).all()
        return
    with pytest.raises(qg.OptionError, match=step):
        load_images(recipe.calibration, recipe.steps)


def test_dividing_by_nothing_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=np.ones((3, 6, 6, 2), np.uint8))
    (tmp_path / "net.toml").write_text(f"{HEAD}preprocessing.steps = [{{ divide = [1, 0] }}]")
    recipe = load_recipe(tmp_path / "net.toml")
    with pytest.raises(qg.OptionError, match="divide must not be 0"):
        load_images(recipe.calibration, recipe.steps)
