"""GridSample as onnxruntime computes it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.frontend.onnx_models import assert_agrees, floats, single

MODES = {16: ("nearest", "bilinear", "bicubic"), 20: ("nearest", "linear", "cubic")}


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("opset", "mode"), [(o, m) for o, modes in MODES.items() for m in modes])
def test_samples_agree_with_onnxruntime(opset: int, mode: str, padding: str, align: int) -> None:
    grid = np.random.default_rng(3).uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": align}
    assert_agrees(*single("GridSample", floats(2, 3, 5, 4), grid, opset=opset, **how), 2e-5)
