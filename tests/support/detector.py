"""A detector that ends in NonMaxSuppression; its height and width may be free."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

SHAPE = (1, 3, 8, 8)
SIZES = (SHAPE, (1, 3, 9, 7), (1, 3, 12, 8))
LATE = ("sel", "index", "picked", "tiled", "y")
"""Values of the detector whose shapes are known late, in order."""


def detector(height: int | str = 8, width: int | str = 8) -> onnx.ModelProto:
    """Conv, Relu (output ``f``), boxes and scores of every pixel, NonMaxSuppression (``sel``), the
    pixels that it selects (``y``).  A Reshape computes its shape at run time."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> detector
    (float[1, 3, {height}, {width}] x) => (float[1, 6, {height}, {width}] f, int64[] sel, float[] y)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] four = {{4}}, int64[1] five = {{5}},
     int64[1] rest = {{-1}}, int64[1] axis = {{2}}, int64 two = {{2}}, int64[1] most = {{10}},
     float[1] overlap = {{0.5}}, float[1] least = {{0.1}}, int64[3] repeats = {{1, 2, 1}}> {{
     c = Conv <pads = [1, 1, 1, 1]> (x, w)
     f = Relu(c)
     t = Transpose <perm = [0, 2, 3, 1]> (f)
     sizes = Shape(f)
     channels = Gather(sizes, one)
     whole = Concat <axis = 0> (one, rest, channels)
     flat = Reshape(t, whole)
     boxes = Slice(flat, zero, four, axis)
     score = Slice(flat, four, five, axis)
     scores = Transpose <perm = [0, 2, 1]> (score)
     sel = NonMaxSuppression(boxes, scores, most, overlap, least)
     index = Gather <axis = 1> (sel, two)
     picked = Gather <axis = 1> (flat, index)
     tiled = Tile(picked, repeats)
     count = Cast <to = 1> (channels)
     y = Add(tiled, count)
    }}""")
    weights = np.random.default_rng([0, 6, 3, 3, 3]).standard_normal((6, 3, 3, 3), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def free_detector() -> onnx.ModelProto:
    """The detector with free height and width."""
    return detector("H", "W")
