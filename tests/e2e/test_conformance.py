"""A sample of ONNX's own operator tests; ``make conformance`` runs all of them."""

from __future__ import annotations

import warnings

import pytest

from tools.conformance import (
    COMPILED_FLOOR,
    PASSED_FLOOR,
    Outcome,
    cases,
    compiled_share,
    only_passed_by,
    outcome,
    passed_share,
)

EVERY = 12

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[Outcome]]:
    sample = cases()[::EVERY]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few cases compute with infinities
        return {name: [outcome(c, name) for c in sample] for name in ("quantglow", "onnxruntime")}


def test_every_case_that_onnxruntime_passes_passes(outcomes: dict[str, list[Outcome]]) -> None:
    assert only_passed_by(outcomes["onnxruntime"], outcomes["quantglow"]) == []


def test_the_share_that_passes_does_not_fall(outcomes: dict[str, list[Outcome]]) -> None:
    assert passed_share(outcomes["quantglow"]) >= PASSED_FLOOR


def test_the_share_that_we_compile_does_not_fall(outcomes: dict[str, list[Outcome]]) -> None:
    assert compiled_share(outcomes["quantglow"]) >= COMPILED_FLOOR
