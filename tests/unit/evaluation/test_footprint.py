"""The flash and RAM of a model are known before a bundle is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.evaluation.footprint import Footprint
from tests.support.combinations import mark_slow
from tests.support.small_network import small_model, small_samples

TARGETS = ("portable", "neon", "cortex-m4")


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(small_model(), small_samples(), progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("target", mark_slow(TARGETS, TARGETS[:1]))
def test_a_footprint_is_that_of_the_bundle(compiled: Any, tmp_path: Path, target: str) -> None:
    actual = Footprint.of(compiled.graph, target)
    compiled.export_bundle(tmp_path, name="net", target=target)
    manifest = json.loads((tmp_path / "net.json").read_text())
    assert actual.flash.code_nbytes == manifest["code_nbytes"]
    assert actual.flash.weights_nbytes == manifest["weights"]["nbytes"]
    assert actual.arena_nbytes == manifest["arena"]["nbytes"]
    assert actual.stack_nbytes == manifest["stack_nbytes"]


def test_layers_have_all_weights_and_the_peak(compiled: Any) -> None:
    actual = Footprint.of(compiled.graph, "neon")
    assert max(layer.live_nbytes for layer in actual.layers) == actual.plan.lower_bound_nbytes
    assert 0 < sum(layer.weights_nbytes for layer in actual.layers) <= actual.flash.weights_nbytes
    assert all(layer.name in str(actual) for layer in actual.layers)
