"""Laws of scopes: what the user excludes by the names and types of the ONNX file is float, and what
the user chooses is int8."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.scopes import judged
from tests.generators.onnx_models.fusible import fusible
from tests.generators.onnx_models.models import Case, drawn
from tests.generators.onnx_models.networks import FAMILIES
from tests.support.effort import moderate

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.slow
@moderate
@given(SEEDS, SEEDS)
def test_scopes_of_drawn_graphs_hold(graph: int, choice: int) -> None:
    assert judged(drawn(graph), np.random.default_rng(choice)) == ""


@pytest.mark.slow
@moderate
@given(SEEDS, SEEDS)
def test_scopes_of_fused_layers_hold(graph: int, choice: int) -> None:
    assert judged(fusible(graph), np.random.default_rng(choice)) == ""


@pytest.mark.slow_variants
@pytest.mark.parametrize("family", FAMILIES)
def test_scopes_of_networks_hold(family: str) -> None:
    network = FAMILIES[family](False)
    rng = np.random.default_rng(0)
    samples = [network.sample(shapes, seed) for seed, shapes in enumerate(network.calibrated)]
    case = Case(network.proto, tuple(samples))
    assert [judged(case, rng) for _ in range(4)] == [""] * 4
