"""Operators that read between elements: resizing, sampling by a grid; and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.generators.onnx_models.drawing import Drawing, Rejected, Value
from tests.generators.onnx_models.operators.family import draws

COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
OLD_MODES = ("nearest", "linear")
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


@draws("Resize", "Upsample", often=2)
def resizing(d: Drawing) -> object:
    x = d.floats(4)
    mode = d.choose(("nearest", "linear", "linear", "cubic") if d.opset > 10 else OLD_MODES)
    inputs: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": d.choose(COORDINATES),
    }
    if mode == "nearest":
        inputs["nearest_mode"] = d.choose(ROUNDINGS)
    if mode == "cubic":
        inputs |= d.some({"cubic_coeff_a": (-0.5, -0.75), "exclude_outside": (0, 1)})
    if mode == "linear" and d.opset >= 18:
        inputs |= d.some({"antialias": (0, 1), "exclude_outside": (0, 1)})
    if d.chance(0.3):
        inputs["sizes"] = [*x.shape[:2], *(d.integer(1, 9) for _ in range(2))]
    else:
        factors = (d.choose((0.5, 1.5, 2.0, 3.0)), d.choose((1.0, 2.0)))
        inputs["scales"] = np.array([1.0, 1.0, *factors], np.float32)
    if d.opset < 11:
        return d.node("Upsample", x, mode=inputs["mode"], scales=old_factors(d))
    if d.opset == 11:
        inputs["roi"] = np.zeros(0, np.float32)
        inputs.setdefault("scales", np.zeros(0, np.float32))
    return d.node("Resize", x, **inputs)


def old_factors(d: Drawing) -> NDArray[np.float32]:
    return np.array([1, 1, d.choose((1, 2, 3)), d.choose((1, 2))], np.float32)


@draws("AffineGrid")
def affine_grid(d: Drawing) -> object:
    batch = d.integer(1, 2)
    theta = d.normal(batch, 2, 3)
    size = [batch, 1, d.integer(2, 5), d.integer(2, 5)]
    if d.chance(0.6):
        theta = d.inner("Mul", d.inner("ReduceMax", d.floats(), keepdims=0), theta)
    return d.node("AffineGrid", theta, size=size, **d.some({"align_corners": (0, 1)}))


@draws("GridSample", often=2)
def grid_sample(d: Drawing) -> object:
    x = d.floats(4)
    grid = grid_of(d, x)
    mode = d.choose(("bilinear", "nearest", "bicubic"))
    if d.opset >= 20:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    options = {"padding_mode": ("zeros", "border", "reflection"), "align_corners": (0, 1)}
    return d.node("GridSample", x, grid, mode=mode, **d.some(options))


def grid_of(d: Drawing, x: Value) -> Value:
    """Places in and around x."""
    shape = (x.shape[0], d.integer(1, 4), d.integer(1, 4), 2)
    grid = d.uniform(-1.3, 1.3, *shape)
    if d.chance(0.5):
        return grid
    return d.inner("Add", grid, d.inner("Tanh", d.inner("ReduceMean", d.floats(), keepdims=0)))


@draws("DepthToSpace", "SpaceToDepth", often=2)
def blocks(d: Drawing) -> object:
    if d.chance(0.5):
        x = d.pick(lambda v: v.rank == 4 and v.shape[1] % 4 == 0)
        return d.node("DepthToSpace", x, blocksize=2, **d.some({"mode": ("DCR", "CRD")}))
    x = d.floats(4)
    if any(size % 2 for size in x.shape[2:]):
        raise Rejected("odd sizes")
    return d.node("SpaceToDepth", x, blocksize=2)
