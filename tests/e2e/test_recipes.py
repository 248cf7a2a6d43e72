"""Recipes of models that are not in the repository keep their gates, if the models are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantglow.cli.main import main
from quantglow.cli.recipe import load_recipe

CALIBRATION = Path(__file__).resolve().parents[2] / "calibration"
LARGE = [path for path in sorted(CALIBRATION.glob("*.toml")) if load_recipe(path).obtain]


@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_recipes_keep_their_gates(path: Path) -> None:
    recipe = load_recipe(path)
    if not recipe.model.is_file():
        pytest.skip(f"{recipe.model.name} is not in the repository; to get it: {recipe.obtain}")
    assert main(["calibrate", str(path)]) == 0


def test_large_recipes_say_how_to_get_their_models() -> None:
    names = {path.stem for path in LARGE}
    assert names == {"efficientnet_lite0", "mobilenet_v2", "ppocr_rec", "resnet50"}
