"""GridSample as onnxruntime computes it."""

from __future__ import annotations

import numpy as np
import pytest

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import assert_agrees, floats, single

MODES = {16: ("nearest", "bilinear", "bicubic"), 20: ("nearest", "linear", "cubic")}


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("opset", "mode"), [(o, m) for o, modes in MODES.items() for m in modes])
def test_samples_agree_with_onnxruntime(opset: int, mode: str, padding: str, align: int) -> None:
    grid = np.random.default_rng(3).uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": align}
    assert_agrees(*single("GridSample", floats(2, 3, 5, 4), grid, opset=opset, **how), 2e-5)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", MODES[20])
def test_pixels_that_are_no_numbers_reach_the_places_of_onnxruntime(
    mode: str, padding: str, align: int
) -> None:
    rng = np.random.default_rng(4)
    image = rng.choice(np.float32([0, 1, -2, np.inf, -np.inf, np.nan]), (2, 3, 5, 4))
    grid = rng.uniform(-1.6, 1.6, (2, 6, 7, 2)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": align}
    assert_agrees(*single("GridSample", image, grid, opset=20, **how), 2e-5)


@pytest.mark.parametrize("mode", MODES[20])
def test_places_that_are_no_numbers_read_nothing_where_zeros_are_around(mode: str) -> None:
    places = np.float32([np.inf, -np.inf, 1e30, -1e30])
    grid = np.stack([places, places[::-1]], axis=-1).reshape(1, 2, 2, 2)
    model, feeds = single(
        "GridSample", np.full((1, 1, 3, 3), np.inf, np.float32), grid, mode=mode, opset=20
    )
    assert not qg.compile(model).run(None, feeds)[0].any()


def test_a_grid_for_other_images_is_refused() -> None:
    """As onnxruntime does: a free batch took the size of others, and no shape could be exported."""
    grid = np.zeros((1, 4, 5, 2), np.float32)
    model, _ = single("GridSample", floats(2, 3, 5, 4), grid, opset=20)
    with pytest.raises(qg.ModelError, match="2 images for 1 grids"):
        qg.compile(model, num_threads=1)
