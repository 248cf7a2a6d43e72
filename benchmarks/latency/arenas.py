"""Arenas of networks with either schedule, and what every order of execution needs.

Byte counts depend on nothing but the graphs and the target.  Graphs with many branches come out of
``networks/branchy.py``, others out of a folder that ``python -m tools.prepared_graphs`` filled.
``--committed`` adds the networks whose files or code the repository has, in float and in int8.
``--searches`` shows what each part of the search saves: the exact search for an order, and the
genetic searches for an order and for a plan.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import quantglow as qg
from benchmarks.networks.branchy import BRANCHY
from quantglow.codegen.llvm.targets import LEVELS, level_target
from quantglow.ir.graph.graph import Graph
from quantglow.memory import schedule
from quantglow.memory.planner import MemoryPlan
from quantglow.memory.planning import plan_program
from quantglow.memory.plans import FAST, MEMORY
from quantglow.runtime.saved import saving
from tools import graph_hashes, small_networks
from tools.prepared_graphs import prepared

HEADER = "| graph | fast, bytes | memory, bytes | ratio | every order, bytes | optimal |"
SEARCHES: dict[str, tuple[str, ...]] = {
    "exact order": (),
    "and genetic order": ("searched_order",),
    "and genetic plan": ("searched_plan",),
    "and both": ("searched_order", "searched_plan"),
}
"""Genetic searches of ``memory.schedule`` that take part, beside the exact one."""
STAND_INS: dict[str, Callable[..., Any]] = {
    "searched_order": lambda tasks, starts, goal: starts[0],
    "searched_plan": lambda intervals, start: start,
}
"""The results of genetic searches that take no part: what they begin with."""
FILES = ("mnist", "ppocr_cls")
"""Networks of the registry whose files the repository has."""


@dataclass(frozen=True)
class Arenas:
    """The plans of a graph with both schedules."""

    name: str
    fast: MemoryPlan
    memory: MemoryPlan

    @property
    def ratio(self) -> float:
        """Arena with the search over that without."""
        return self.memory.peak_nbytes / self.fast.peak_nbytes

    def row(self) -> str:
        """A row of the table."""
        bound, optimal = self.memory.every_order_nbytes, "yes" if self.memory.is_optimal else "no"
        sizes = f"{self.fast.peak_nbytes:,} | {self.memory.peak_nbytes:,}"
        return f"| {self.name} | {sizes} | {self.ratio:.3f} | {bound:,} | {optimal} |"


def arenas(name: str, graph: Graph, level: str) -> Arenas:
    """Both plans of a graph."""
    target = level_target(level)
    fast, memory = (plan_program(graph, target, schedule=way).plan for way in (FAST, MEMORY))
    return Arenas(name, fast, memory)


def graphs(options: argparse.Namespace) -> Iterator[tuple[str, Graph]]:
    """Saved graphs, committed ones, then those with branches whose names begin with one of
    ``--branchy``."""
    folder: Path | None = options.folder
    for path in sorted(folder.glob("*.qgm")) if folder else []:
        yield path.stem, saving.load(path).graph
    if options.committed:
        yield from committed()
    for name, make in BRANCHY.items():
        if name.startswith(tuple(options.branchy)):
            yield name, make()


def committed() -> Iterator[tuple[str, Graph]]:
    """Networks of the repository, in float and in int8."""
    for name in FILES:
        yield f"{name}.float", prepared(name, 1, None)
        yield f"{name}.int8", prepared(name, 1, qg.QuantizationConfig())
    for name, model in small_networks.NETWORKS.items():
        yield f"{name}.float", qg.import_model(model())
        yield f"{name}.int8", graph_hashes.small(name, {})


def searched_nbytes(graph: Graph, level: str, searches: tuple[str, ...]) -> int:
    """Bytes of the arena where of the genetic searches only these take part."""
    parts: dict[str, Any] = {
        name: getattr(schedule, name) if name in searches else stand_in
        for name, stand_in in STAND_INS.items()
    }
    with patch.multiple(schedule, **parts):
        return plan_program(graph, level_target(level), schedule=MEMORY).plan.peak_nbytes


def search_row(name: str, graph: Graph, level: str) -> str:
    """A row of the table of searches."""
    fast = plan_program(graph, level_target(level), schedule=FAST).plan.peak_nbytes
    sizes = [searched_nbytes(graph, level, searches) for searches in SEARCHES.values()]
    return f"| {name} | " + " | ".join(f"{nbytes:,}" for nbytes in (fast, *sizes)) + " |"


def mean_ratio(actual: list[Arenas]) -> float:
    """Geometric mean of the ratios."""
    return math.exp(sum(math.log(one.ratio) for one in actual) / len(actual))


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--folder", type=Path, help="of .qgm files")
    command.add_argument("--branchy", nargs="*", default=[""], metavar="NAME", help="beginnings")
    command.add_argument("--committed", action="store_true", help="networks of the repository, too")
    command.add_argument("--searches", action="store_true", help="what each search saves")
    command.add_argument("--level", choices=LEVELS, default="avx2")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    if options.searches:
        print("| graph | fast | " + " | ".join(SEARCHES) + " |")
        print("| --- " * (2 + len(SEARCHES)) + "|")
        for name, graph in graphs(options):
            print(search_row(name, graph, options.level), flush=True)
        return 0
    print(f"{HEADER}\n| --- | --- | --- | --- | --- | --- |")
    collected = []
    for name, graph in graphs(options):
        collected.append(arenas(name, graph, options.level))
        print(collected[-1].row(), flush=True)
    if collected:
        optimal = sum(one.memory.is_optimal for one in collected)
        print(f"\nmean ratio {mean_ratio(collected):.3f}, {optimal} of {len(collected)} optimal")
    return 0
