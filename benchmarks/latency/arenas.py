"""Arenas of networks with either schedule, and what every order of execution needs.

Byte counts depend on nothing but the graphs and the target.  Graphs with many branches come out of
``networks/branchy.py``, others out of a folder that ``python -m tools.prepared_graphs`` filled.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.networks.branchy import BRANCHY
from quantglow.codegen.llvm.targets import LEVELS, level_target
from quantglow.ir.graph.graph import Graph
from quantglow.memory.planner import MemoryPlan
from quantglow.memory.planning import plan_program
from quantglow.memory.schedule import FAST, MEMORY
from quantglow.runtime.saved import saving

HEADER = "| graph | fast, bytes | memory, bytes | ratio | every order, bytes | optimal |"


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


def graphs(folder: Path | None, names: list[str]) -> Iterator[tuple[str, Graph]]:
    """Saved graphs, then those with branches whose names begin with one of ``names``."""
    for path in sorted(folder.glob("*.qgm")) if folder else []:
        yield path.stem, saving.load(path).graph
    for name, make in BRANCHY.items():
        if name.startswith(tuple(names)):
            yield name, make()


def mean_ratio(found: list[Arenas]) -> float:
    """Geometric mean of the ratios."""
    return math.exp(sum(math.log(one.ratio) for one in found) / len(found))


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--folder", type=Path, help="of .qgm files")
    command.add_argument("--branchy", nargs="*", default=[""], metavar="NAME", help="beginnings")
    command.add_argument("--level", choices=LEVELS, default="avx2")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print(f"{HEADER}\n| --- | --- | --- | --- | --- | --- |")
    found = []
    for name, graph in graphs(options.folder, options.branchy):
        found.append(arenas(name, graph, options.level))
        print(found[-1].row(), flush=True)
    if found:
        optimal = sum(one.memory.is_optimal for one in found)
        print(f"\nmean ratio {mean_ratio(found):.3f}, {optimal} of {len(found)} optimal")
    return 0
