"""AffineGrid as onnxruntime computes it."""

from __future__ import annotations

import pytest

from tests.unit.importer.onnx.onnx_models import assert_agrees, floats, ints, single


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(1, 1, 3, 4), (2, 5, 1, 4), (1, 1, 2, 3, 4), (2, 1, 1, 1, 3)])
def test_affine_grid_agrees_with_onnxruntime(size: tuple[int, ...], align: int) -> None:
    """Batch 1 is included, where ONNX's own definition squeezes the batch away."""
    rank = len(size) - 2
    theta = floats(size[0], rank, rank + 1)
    model = single("AffineGrid", theta, ints(*size), opset=20, align_corners=align)
    assert_agrees(*model, tolerance=1e-5)
