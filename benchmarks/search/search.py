"""Searches for the fastest kernel, replayed on tables of measured ones.

A replay has no noise: every query of a choice gives the time in the table.  The
default is known to every searcher before it begins, and counts as the first query.  N-A2C runs with
its policy, with a uniform one and with one that unlearns: what these reach is not its network's
work.  ``--gemm`` searches a space of the size of the paper's with modelled costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.search import tables
from benchmarks.search.gemm import gemm_space
from benchmarks.search.tables import Table
from benchmarks.support.arguments import positive
from quantglow.support.arrays import Array
from quantglow.support.errors import OptionError
from quantglow.tuning.g_bfs import GBFS
from quantglow.tuning.n_a2c import NA2C
from quantglow.tuning.optuna_search import OptunaSearch
from quantglow.tuning.random_search import Annealing, RandomSearch
from quantglow.tuning.searchers import Maker, ModelOrder, Space
from quantglow.tuning.xgboost_search import ROUNDS, XGBoostSearch

NEAR = 1.02
"""Time over the optimum that counts as found."""
EVERY = 10**6


class UniformNA2C(NA2C):
    """N-A2C that walks at random and learns nothing: the network plays no part."""

    def action(self, state: int, legal: Array) -> int:
        return int(self.rng.choice(legal))

    def learn(self, states: Array, actions: Array, ends: Array) -> None:
        """Nothing."""


class ReversedNA2C(NA2C):
    """N-A2C whose policy unlearns: it makes moves to fast states less probable."""

    def gradient(self, states: Array, actions: Array, advantages: Array) -> Array:
        return -super().gradient(states, actions, advantages)


class PlainXGBoost(XGBoostSearch):
    """XGBoost that does not know the cycles of the cost model."""

    def features(self) -> Array:
        return self.space.features


class RankingXGBoost(PlainXGBoost):
    """XGBoost that learns the order of states, not their times."""

    def fit(self, table: Array, logs: Array) -> Any:
        ranks = np.argsort(np.argsort(logs))
        data = self.xgboost.DMatrix(table, label=len(logs) - 1 - ranks)
        data.set_group([len(logs)])
        pairs = {"objective": "rank:pairwise", "lambdarank_pair_method": "mean"}
        return self.xgboost.train({**self.settings, **pairs}, data, ROUNDS)


CONTESTANTS: dict[str, Maker] = {
    "random": RandomSearch,
    "model's order": ModelOrder,
    "annealing": Annealing,
    "G-BFS, ρ = 3": partial(GBFS, rho=3),
    "G-BFS, ρ = 5": GBFS,
    "G-BFS, all": partial(GBFS, rho=EVERY),
    "N-A2C": NA2C,
    "N-A2C, uniform policy": UniformNA2C,
    "N-A2C, reversed policy": ReversedNA2C,
}
SLOW: dict[str, Maker] = {
    "XGBoost": PlainXGBoost,
    "XGBoost, ranks": RankingXGBoost,
    "XGBoost with the model": XGBoostSearch,
    "Optuna TPE": OptunaSearch,
}
"""Contestants of optional packages, which take seconds for a search."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--measure", action="store_true", help="measure the tables here first")
    command.add_argument("--seeds", type=positive, default=100)
    command.add_argument(
        "--slow-seeds", type=positive, default=10, help="seeds of XGBoost and Optuna"
    )
    command.add_argument("--queries", type=positive, nargs="+", default=[1, 3, 10, 30, 100, 200])
    command.add_argument("--gemm", action="store_true", help="the modelled product instead")


def run(options: argparse.Namespace) -> int:
    """Print Markdown tables."""
    if options.measure:
        tables.write(tables.measured_tables())
    if options.gemm:
        show_gemm(options)
        return 0
    facts, actual = tables.read()
    print(f"Measured {facts['date']} on {facts['machine'].get('model name', '?')}.\n")
    show_tables(actual)
    print()
    show_replays(actual, options)
    return 0


def show_tables(actual: Sequence[Table]) -> None:
    """The kernels, and what there is to gain."""
    columns = ("kernel", "choices", "default µs", "default / best", "within 2 %", "noise", "slow")
    print("|", " | ".join((*columns, "best")), "|")
    print("| --- " * (len(columns) + 1) + "|")
    for table in actual:
        seconds, best = table.seconds, int(np.argmin(table.seconds))
        near = int((seconds < NEAR * seconds[best]).sum())
        cells = [table.name, str(len(seconds)), f"{1e6 * seconds[0]:.1f}"]
        cells += [f"{seconds[0] / seconds[best]:.3f}", str(near)]
        cells += [f"{table.noise:.1%}", f"{table.slow:.0%}", str(table.choices[best])]
        print("|", " | ".join(cells), "|")


@dataclass(frozen=True)
class Replays:
    """Best time so far over the optimum of many searches, [kernels, seeds, queries]; ``spent``:
    seconds of the searcher for each query."""

    best: Array
    spent: float

    def cells(self, queries: Sequence[int]) -> list[str]:
        """Median and 90th percentile over seeds, the geometric mean over kernels, at each number
        of queries; the median number of queries to ``NEAR``; milliseconds for a query."""
        collected = []
        for count in queries:
            at = self.best[:, :, min(count, self.best.shape[2]) - 1]
            middle, high = np.quantile(at, [0.5, 0.9], axis=1)
            means = [float(np.exp(np.log(each).mean())) for each in (middle, high)]
            collected.append(f"{means[0]:.3f} [{means[1]:.2f}]")
        near = (self.best <= NEAR).argmax(axis=2) + 1.0
        near[~(self.best <= NEAR).any(axis=2)] = np.inf
        middle = float(np.median(near))
        collected.append(f"{middle:.0f}" if np.isfinite(middle) else f"> {self.best.shape[2]}")
        return [*collected, f"{1e3 * self.spent:.2f}"]


def show_replays(actual: Sequence[Table], options: argparse.Namespace) -> None:
    """A row for each contestant."""
    most = max(options.queries)
    header = [*map(str, options.queries), f"queries to {NEAR - 1:.0%}", "ms a query"]
    print("| searcher | seeds |", " | ".join(header), "|")
    print("| --- " * (len(header) + 2) + "|")
    for name, maker in {**CONTESTANTS, **SLOW}.items():
        seeds = options.slow_seeds if name in SLOW else options.seeds
        seeds = 1 if maker is ModelOrder else seeds
        try:
            replays = replayed(maker, [(t.space, t.seconds, 0) for t in actual], seeds, most)
        except OptionError as error:
            print(f"| {name} | 0 | {error} |")
            continue
        print("|", " | ".join([name, str(seeds), *replays.cells(options.queries)]), "|", flush=True)


Problem = tuple[Space, Array, int]
"""A space, the time of each state, and the state that is known at first."""


def replayed(
    maker: Maker, problems: Sequence[Problem], seeds: int, most: int, batch: int = 1
) -> Replays:
    """Searches of all problems from all seeds."""
    best, spent, asked = np.empty((len(problems), seeds, most)), 0.0, 0
    for row, problem in enumerate(problems):
        for seed in range(seeds):
            start = time.process_time()
            times = replay(maker, problem, seed, most, batch)
            spent += time.process_time() - start
            asked += len(times)
            reached = np.minimum.accumulate(times) / problem[1].min()
            best[row, seed] = np.pad(reached, (0, most - len(times)), mode="edge")
    return Replays(best, spent / asked)


def replay(maker: Maker, problem: Problem, seed: int, most: int, batch: int = 1) -> Array:
    """Times of the states in the order in which a searcher asks for them, the known one first."""
    space, seconds, start = problem
    searcher, actual = maker(space, seed), [float(seconds[start])]
    searcher.tell(start, actual[0])
    while len(actual) < most and (states := searcher.ask(min(batch, most - len(actual)))):
        for state in states:
            actual.append(float(seconds[state]))
            searcher.tell(state, actual[-1])
    return np.array(actual)


def gemm_contestants(start: int) -> dict[str, tuple[Maker, int]]:
    """Searchers of the modelled product from a start, each with its batch."""
    from_start: dict[str, Callable[..., Maker]] = {
        "annealing": lambda: partial(Annealing, start=start),
        "G-BFS, ρ = 5": lambda: partial(GBFS, start=start),
        "G-BFS, all": lambda: partial(GBFS, start=start, rho=EVERY),
        "N-A2C": lambda: partial(NA2C, start=start),
        "N-A2C, uniform policy": lambda: partial(UniformNA2C, start=start),
        "N-A2C, reversed policy": lambda: partial(ReversedNA2C, start=start),
    }
    actual: dict[str, tuple[Maker, int]] = {"random": (RandomSearch, 1)}
    actual |= {name: (make(), 1) for name, make in from_start.items()}
    return {**actual, "XGBoost": (SLOW["XGBoost"], 32)}


def show_gemm(options: argparse.Namespace) -> None:
    """The same on the modelled product."""
    space, seconds, start = gemm_space()
    near = int((seconds < NEAR * seconds.min()).sum())
    print(f"{len(space)} states; median {np.median(seconds) / seconds.min():.1f} x the best,")
    print(f"untiled {seconds[start] / seconds.min():.1f} x, {near} states within 2 %.\n")
    header = [*map(str, options.queries), f"queries to {NEAR - 1:.0%}", "ms a query"]
    print("| searcher | seeds |", " | ".join(header), "|")
    print("| --- " * (len(header) + 2) + "|")
    for name, (maker, batch) in gemm_contestants(start).items():
        seeds = options.slow_seeds if name in SLOW else options.seeds
        problem = [(space, seconds, start)]
        replays = replayed(maker, problem, seeds, max(options.queries), batch)
        print("|", " | ".join([name, str(seeds), *replays.cells(options.queries)]), "|", flush=True)
