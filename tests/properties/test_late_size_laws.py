"""Random models with late points compute what onnxruntime computes, at any number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.importer.onnx import open_model
from quantglow.ir.graph.family import Case
from quantglow.ort.session import failures
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.late_programs import LatePrograms
from quantglow.transforms.float import optimize
from tests.fuzz.compare import session
from tests.generators.late_points import with_late_points
from tests.generators.onnx_models.models import Feeds, drawn

GROUPS, SEEDS = 4, 6
TOLERANCE = 2e-3
"""Difference of floats from onnxruntime's, as a share of the largest value of an output."""
MOST_DIFFERENT = 0.02
"""Maximum share of elements that differ by more, where a step in the model amplifies a last bit."""


def negated(feeds: Feeds) -> Feeds:
    """Feeds that choose the other rows."""
    return {n: -array if array.dtype.kind == "f" else array for n, array in feeds.items()}


def share_apart(actual: np.ndarray, expected: np.ndarray) -> float:
    """The share of elements that are not what they should be."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind != "f":
        return float((actual != expected).mean())
    finite = np.abs(expected[np.isfinite(expected)])
    with np.errstate(invalid="ignore"):
        is_near = np.abs(actual - expected) <= TOLERANCE * finite.max(initial=1.0)
    is_alike = is_near | (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return float((~is_alike).mean())


def checked(seed: int) -> bool:
    """Check the model of a seed; False where that has no late point, or onnxruntime refuses it."""
    case = drawn(seed)
    model = with_late_points(case.model, np.random.default_rng(seed + 1))
    if model is None:
        return False
    source = open_model(model)
    names = [port.name for port in source.signature.inputs]
    samples = [*case.samples, *map(negated, case.samples)]
    fed = [{name: np.asarray(sample[name]) for name in names} for sample in samples]
    try:
        reference = session(model)
        expected = [reference.run(None, feeds) for feeds in fed]
    except failures():
        return False
    compiler = Compiler.of(num_threads=1 + seed % 3)
    programs = LatePrograms(source.signature, lambda c: optimize(source.to_the_end(c)), compiler)
    for feeds, outputs in zip(fed, expected, strict=True):
        key = Case.of({name: array.shape for name, array in feeds.items()})
        actual = programs.executable(key).run(feeds)
        for one, other in zip(actual, outputs, strict=True):
            assert share_apart(one, np.asarray(other)) <= MOST_DIFFERENT
    return True


@pytest.mark.slow_variants
@pytest.mark.parametrize("group", range(GROUPS))
def test_late_points_at_any_place_compute_what_onnxruntime_computes(group: int) -> None:
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    assert sum(map(checked, seeds)) >= SEEDS // 2
