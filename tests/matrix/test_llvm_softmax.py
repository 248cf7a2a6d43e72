"""Softmax of masked rows, and of rows that have no maximum."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Softmax
from quantglow.ir.types import f32
from tests.matrix.harness import assert_targets_agree

LOWEST = np.finfo(np.float32).min


@pytest.mark.parametrize("columns", [1, 3, 16, 37, 130])
@pytest.mark.parametrize(
    "special", [(LOWEST,), (-np.inf,), (np.nan,), (np.inf,), (np.nan, -np.inf), (1e30, -1e30)]
)
def test_special_values_mean_what_they_mean_in_numpy(special: tuple, columns: int) -> None:
    rng = np.random.default_rng(columns)
    x = Input(name="x", tensor=f32(7, columns))
    values = rng.normal(size=(7, columns)).astype(np.float32)
    chosen = rng.random(values.shape) < 0.3
    values[chosen] = rng.choice(np.array(special, np.float32), chosen.sum())
    values[0] = special[0]
    graph = Graph((x,), (("y", Softmax(name="y", x=x)),))
    with np.errstate(all="ignore"):
        assert_targets_agree(graph, {"x": values})
