"""The fit of a core's costs, on times that a known core would have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quantglow.codegen.llvm.cache import ENVIRONMENT
from quantglow.codegen.llvm.isa.costs import Core, KernelChoice, StepCost
from quantglow.codegen.llvm.isa.x86.levels import ICE_LAKE
from quantglow.codegen.llvm.kernels.contraction.tiling import all_cycles, candidates
from quantglow.codegen.llvm.targets import resolve
from quantglow.support.errors import BackendError
from quantglow.tuning import core_fit
from quantglow.tuning.core_fit import CoreFit, Shape, Timed
from quantglow.tuning.measuring import Job, Measurement, plan_tasks

COST = StepCost(32)
WORKS = ((1, 784, 8, 128), (56, 56, 4, 144), (14, 14, 6, 576), (7, 7, 60, 40), (28, 28, 2, 8))


def timed(core: Core, work: tuple[int, int, int, int]) -> Timed:
    """Times of a shape on a machine that is as the model says, at 3 GHz."""
    cost = replace(COST, core=core)
    tiles = candidates(*work[:3], cost)[::3]
    return Timed(work, COST, {tile: all_cycles(tile, *work, cost) / 3e9 for tile in tiles})


@pytest.mark.slow_variants
@pytest.mark.parametrize("core", [Core(), ICE_LAKE], ids=["zen", "ice-lake"])
def test_the_fit_chooses_the_tiles_of_the_machine_that_was_timed(core: Core) -> None:
    actual = [timed(core, work) for work in WORKS]
    other = ICE_LAKE if core == Core() else Core()
    assert core_fit.loss(actual, core) < core_fit.loss(actual, other)
    fitted = core_fit.fit(actual, (Core(), ICE_LAKE))
    assert max(each.regret(fitted) for each in actual) <= max(each.regret(core) for each in actual)


def test_the_search_begins_at_every_known_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_fit, "ROUNDS", 1)
    actual = [timed(Core(issue=3.3, latency=8.0), WORKS[0])]
    assert core_fit.loss(actual, core_fit.fit(actual, (Core(), ICE_LAKE))) <= min(
        core_fit.loss(actual, core) for core in (Core(issue=8.0), ICE_LAKE)
    )


def fitted(listed_loss: float, fitted_loss: float) -> CoreFit:
    listed, actual = Core(latency=3.0), Core(latency=4.0, even_prefetch=True)
    return CoreFit(resolve("native"), listed, actual, listed_loss, fitted_loss, 1)


def test_costs_that_choose_worse_tiles_are_not_kept() -> None:
    assert fitted(0.02, 0.01).core == Core(latency=4.0, even_prefetch=True)
    assert fitted(0.01, 0.02).core == Core(latency=3.0, even_prefetch=True)


def test_a_fit_is_stored_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    actual = core_fit.store(fitted(0.02, 0.01))
    used = resolve("native").core
    resolve.cache_clear()
    assert actual.path is not None and actual.path.parent == tmp_path / "machines"
    assert used == actual.core


def test_without_a_cache_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "")
    with pytest.raises(BackendError, match="Remedy: set QUANTGLOW_CACHE_DIR"):
        core_fit.store(fitted(0.02, 0.01))


def test_a_shape_without_times_is_an_error() -> None:
    graph = core_fit.build_graph([Shape(4, 8, 8)])
    tasks = plan_tasks([graph], resolve("native"))[0]
    failed = Measurement(
        Job(tasks[0].key, KernelChoice("plain", (1, 1, 1)), 0), failure="it crashed"
    )
    with pytest.raises(BackendError, match="it crashed"):
        core_fit.time_tasks(tasks, [failed])
