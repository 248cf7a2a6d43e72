"""Random models with late points compute what onnxruntime computes, at any number of rows, compiled
and exported, where late results are symbolic and where they are opaque."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from quantglow.api.models.families import Built, open_family
from quantglow.api.models.programs import free_programs, loop_driver
from quantglow.importer.onnx import Source, open_model
from quantglow.ir.graph.family import Case, LateResults
from quantglow.ir.graph.signature import leaving
from quantglow.ort.session import Session, failures
from quantglow.runtime.exports.onnx_models import whole_model
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.late_programs import LatePrograms
from quantglow.support.arrays import Array
from quantglow.support.errors import InputError, ModelError, UnsupportedOpError
from tests.fuzz.compare import session
from tests.generators.late_points import (
    add_counted,
    add_loop,
    add_pieces,
    add_point,
    with_late_points,
)
from tests.generators.onnx_models.models import Feeds, drawn

GROUPS, SEEDS = 4, 6
SYMBOLIC, OPAQUE = LateResults.SYMBOLIC, LateResults.OPAQUE
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


@dataclass(frozen=True)
class LateCase:
    """A model with late points, samples, and what onnxruntime computes from them."""

    source: Source
    samples: list[Feeds]
    expected: list[list[Array]]

    def check(self, run: Callable[[Feeds], Sequence[Array]]) -> None:
        """Compare what ``run`` computes."""
        for feeds, outputs in zip(self.samples, self.expected, strict=True):
            for one, other in zip(run(feeds), outputs, strict=True):
                assert share_apart(one, np.asarray(other)) <= MOST_DIFFERENT


def late_case(seed: int, points: Sequence[Callable[..., None]] | None = None) -> LateCase | None:
    """The case of a seed; None where that has no late point, or onnxruntime refuses it."""
    case = drawn(seed)
    model = with_late_points(case.model, np.random.default_rng(seed + 1), points)
    if model is None:
        return None
    source = open_model(model)
    names = [port.name for port in source.signature.inputs]
    samples = [*case.samples, *map(negated, case.samples)]
    fed = [{name: np.asarray(sample[name]) for name in names} for sample in samples]
    try:
        reference = session(model)
        return LateCase(source, fed, [reference.run(None, feeds) for feeds in fed])
    except failures():
        return None


def shapes_of(feeds: Feeds) -> Case:
    return Case.of({name: array.shape for name, array in feeds.items()})


def are_programs_right(seed: int, points: Sequence[Callable[..., None]] | None = None) -> bool:
    """Check the programs of a seed's model; False where it has none: also where results that
    nothing reads have sizes that decide."""
    case = late_case(seed, points)
    if case is None:
        return False
    source, compiler = case.source, Compiler.of(num_threads=1 + seed % 3)
    compiler = replace(compiler, drivers=(loop_driver(compiler),))
    family = open_family(source, late_results=SYMBOLIC)
    programs = LatePrograms(source.signature, family.make, compiler)
    try:
        programs.executable(shapes_of(case.samples[0]))
    except UnsupportedOpError:
        return False
    case.check(lambda feeds: programs.executable(shapes_of(feeds)).run(feeds))
    return True


def are_opaque_programs_right(
    seed: int, points: Sequence[Callable[..., None]] | None = None
) -> bool:
    """The same for programs in which late results are opaque; False where nothing is compiled."""
    case = late_case(seed, points)
    if case is None:
        return False
    family = open_family(case.source, late_results=OPAQUE)
    programs = free_programs(Built(family), Compiler.of(num_threads=1 + seed % 3))
    ends = case.source.signature.outputs
    try:
        programs.prepare(shapes_of(case.samples[0]))
    except (InputError, UnsupportedOpError):
        return False
    case.check(lambda feeds: leaving(ends, programs.at(feeds).build.executable.run(feeds)))
    return True


def is_export_right(seed: int, late_results: LateResults) -> bool:
    """The same for the exported model."""
    case = late_case(seed)
    if case is None:
        return False
    family = open_family(case.source, late_results=late_results)
    programs = free_programs(Built(family), Compiler.of(num_threads=1))
    try:
        if not programs.signature.is_free:
            programs.prepare(shapes_of(case.samples[0]))
        exported = Session(whole_model(programs, None))
    except (InputError, ModelError):
        return False
    case.check(lambda feeds: exported.run({name: feeds[name] for name in exported.input_names}))
    return True


@pytest.mark.slow_variants
@pytest.mark.parametrize("group", range(GROUPS))
def test_late_points_at_any_place_compute_what_onnxruntime_computes(group: int) -> None:
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    assert sum(map(are_programs_right, seeds)) >= SEEDS // 2


@pytest.mark.parametrize("group", range(GROUPS))
def test_opaque_results_at_any_place_are_what_onnxruntime_computes(group: int) -> None:
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    points = add_pieces, add_loop, add_point
    rights = (are_opaque_programs_right(seed, points if seed % 2 else None) for seed in seeds)
    assert sum(rights) >= SEEDS // 2


@pytest.mark.parametrize("late_results", [SYMBOLIC, OPAQUE])
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_exported_models_compute_what_onnxruntime_computes(
    group: int, late_results: LateResults
) -> None:
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    assert sum(is_export_right(seed, late_results) for seed in seeds) >= SEEDS // 2


@pytest.mark.parametrize("group", range(GROUPS))
def test_loops_of_computed_trips_at_any_place_compute_what_onnxruntime_computes(
    group: int,
) -> None:
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    points = add_loop, add_loop, add_point
    assert sum(are_programs_right(seed, points) for seed in seeds) >= SEEDS // 2


@pytest.mark.parametrize("group", range(GROUPS))
def test_products_with_all_rows_of_a_result_compute_what_onnxruntime_computes(
    group: int,
) -> None:
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    points = add_counted, add_counted, add_point
    assert sum(are_programs_right(seed, points) for seed in seeds) >= SEEDS // 2


@pytest.mark.parametrize("group", range(GROUPS))
def test_sequences_at_any_place_compute_what_onnxruntime_computes(group: int) -> None:
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    points = add_pieces, add_pieces, add_point
    assert sum(are_programs_right(seed, points) for seed in seeds) >= SEEDS // 2
