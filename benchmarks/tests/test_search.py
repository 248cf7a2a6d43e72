"""The replay of searches, and the spaces that are searched."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search import search, tables
from benchmarks.search.gemm import EXPONENT, PARTS, gemm_space
from benchmarks.search.search import CONTESTANTS, ReversedNA2C, UniformNA2C, replay, replayed
from benchmarks.search.tables import Table
from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.tuning.n_a2c import NA2C
from quantglow.tuning.searchers import NOWHERE, Maker, ModelOrder, Space


def table(name: str = "a") -> Table:
    """Choices of one form; the best is the seventh."""
    choices = tuple(
        KernelChoice("plain", (1, columns, vectors), outer, 4)
        for columns in range(1, 9)
        for vectors in (1, 2)
        for outer in (False, True)
    )
    rng = np.random.default_rng(0)
    samples = np.round(rng.uniform(1e-5, 2e-5, (len(choices), 16)), 9)
    samples[6] = 5e-6
    defaults = np.full_like(samples, samples[0].min())
    return Table(name, choices, np.arange(len(choices)) / 2, samples, defaults)


@pytest.mark.parametrize(("maker", "high"), [(ReversedNA2C, 0.4), (UniformNA2C, 0.6)])
def test_controls_of_n_a2c_do_not_learn_which_move_is_good(maker: Maker, high: float) -> None:
    square = Space.at(np.array([(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]), np.ones(4))
    searcher = maker(square, 0)
    assert isinstance(searcher, NA2C)
    for state, seconds in ((0, 1.0), (1, 10.0), (2, 0.5)):
        searcher.tell(state, seconds)
    good, bad = (int(np.flatnonzero(square.moves[0] == end)[0]) for end in (2, 1))
    for _ in range(150):
        searcher.learn(*np.array([(0, good, 2), (0, bad, 1)]).T)
    assert searcher.odds(np.array([0]))[0][good] < high


@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_replay_is_repeatable_and_ends_at_the_optimum(name: str) -> None:
    problem = (table().space, table().seconds, 0)
    times = replay(CONTESTANTS[name], problem, 3, 100)
    assert times.tolist() == replay(CONTESTANTS[name], problem, 3, 100).tolist()
    assert len(times) == len(table().choices) and times[0] == table().seconds[0]
    assert times.min() == table().seconds.min() == table().seconds[6]


def test_best_times_are_over_the_optimum() -> None:
    problem = (table().space, table().seconds, 0)
    actual = replayed(ModelOrder, [problem], 1, 40)
    assert actual.best[0, 0, 5] > 1.9 and actual.best[0, 0, 6] == actual.best[0, 0, 39] == 1.0
    assert actual.cells([7])[:2] == ["1.000 [1.00]", "7"]


def test_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    built = [table("a"), table("b")]
    built[1].samples[3] = np.inf
    tables.write(built, tmp_path / "tables.json.gz")
    facts, actual = tables.read(tmp_path / "tables.json.gz")
    assert "flags" not in facts["machine"]
    for one, other in zip(built, actual, strict=True):
        assert (one.name, one.choices) == (other.name, other.choices)
        assert np.array_equal(one.samples, other.samples)
        assert np.array_equal(one.defaults, other.defaults)
        assert np.array_equal(one.modeled, other.modeled)


def test_a_lucky_pass_does_not_make_a_choice_fast() -> None:
    samples = np.full((3, 4 * tables.SAMPLES), 1e-5)
    samples[1, : tables.SAMPLES] = 1e-6
    samples[2, 2 * tables.SAMPLES :] = np.inf
    built = Table("a", table().choices[:3], np.ones(3), samples, np.full(samples.shape, 1e-5))
    assert built.seconds == pytest.approx([1e-5] * 3)


def test_a_machine_that_is_slow_for_a_while_slows_no_choice() -> None:
    defaults = np.full((2, 4 * tables.SAMPLES), 1e-5)
    defaults[1] *= 2
    built = Table("a", table().choices[:2], np.ones(2), 3 * defaults, defaults)
    assert built.seconds == pytest.approx([3e-5] * 2)
    assert built.slow == 0.5


def test_the_committed_tables_have_all_choices_of_twelve_kernels() -> None:
    assert tables.TABLES.stat().st_size < 10**6
    _, actual = tables.read()
    assert len(actual) == len(tables.SHAPES) == 12
    for each in actual:
        assert len(set(each.choices)) == len(each.choices) > 100
        assert np.isfinite(each.seconds).all()


def test_moves_of_the_product_double_one_factor_and_halve_another() -> None:
    space, seconds, start = gemm_space()
    assert len(space) == 899_756 and np.isfinite(seconds).all()
    assert space.coordinates[start].tolist() == [EXPONENT, 0, 0, 0, EXPONENT, 0, EXPONENT, 0, 0, 0]
    assert space.moves.shape[1] == 26
    rng = np.random.default_rng(0)
    for state in rng.integers(0, len(space), 50):
        for end in space.moves[state]:
            if end != NOWHERE:
                change = space.coordinates[end] - space.coordinates[state]
                assert sorted(change[change != 0]) == [-1, 1]
                sums = np.add.reduceat(space.coordinates[end], np.cumsum((0, *PARTS[:-1])))
                assert sums.tolist() == [EXPONENT] * 3


def test_a_row_for_each_searcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.write([table()], tmp_path / "tables.json.gz")
    monkeypatch.setattr(tables, "read", lambda read=tables.read: read(tmp_path / "tables.json.gz"))
    line = argparse.Namespace(measure=False, gemm=False, seeds=2, slow_seeds=1, queries=[1, 5])
    assert search.run(line) == 0
    shown = capsys.readouterr().out
    assert all(f"| {name} |" in shown for name in (*CONTESTANTS, *search.SLOW))
