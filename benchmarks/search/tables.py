"""Tables of measured kernels: every choice of twelve convolutions, with all samples.

Kernels are measured for AVX-512 VNNI without matrix tiles: with these, one choice is best by far
for most shapes, and there is nothing to search for.
"""

from __future__ import annotations

import datetime
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.machine import machine
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.tuning.core_fit import Shape, build_graph
from quantglow.tuning.measuring import Job, Measurement, Measurer, Work, plan_tasks
from quantglow.tuning.searchers import Space
from quantglow.tuning.trials import FAR_NBYTES, Task

TABLES = Path(__file__).parent / "tables.json.gz"
LEVEL = "avx512vnni"
NANOSECONDS = 1e9
SAMPLES = 4
FINAL_PASSES, FINALISTS = 3, 80
"""A pass measures all choices, then some measure the fastest again; each in another order, with
memory of its own."""
FAR_BELOW = 28
"""Layers on smaller images have weights that come from far away in a network."""

SHAPES = (
    Shape(112, 16, 96),
    Shape(112, 8, 32, 3),
    Shape(56, 64, 256),
    Shape(56, 64, 64, 3),
    Shape(14, 256, 1024),
    Shape(14, 256, 256, 3),
    Shape(7, 512, 2048),
    Shape(7, 512, 512, 3),
    Shape(56, 24, 144, 1, DType.F32),
    Shape(28, 64, 64, 3, DType.F32),
    Shape(14, 384, 96, 1, DType.F32),
    Shape(7, 128, 256, 3, DType.F32),
)
"""Every other kernel chooses the parameters of searchers, the rest judges."""


@dataclass(frozen=True)
class Table:
    """A convolution: its choices, the default first, then in the order of the cost model."""

    name: str
    choices: tuple[KernelChoice, ...]
    modeled: Array
    samples: Array
    """Seconds [choices, samples], ``SAMPLES`` of each pass; infinite where there are none."""
    defaults: Array
    """Seconds of the default in the same rounds."""

    @cached_property
    def seconds(self) -> Array:
        """The median ratio of all passes, times the least time of the default: no choice is fast
        because it was lucky once."""
        return np.asarray(np.nanmedian(self.ratios, axis=1) * self.defaults.min())

    @cached_property
    def ratios(self) -> Array:
        """The least time of each pass over that of the default in the same rounds: what slows the
        machine for a while slows both.  [choices, passes], NaN where a choice was left out."""
        ours, default = (
            each.reshape(len(each), -1, SAMPLES).min(axis=2)
            for each in (self.samples, self.defaults)
        )
        return np.asarray(np.where(np.isfinite(ours), ours, np.nan) / default)

    @cached_property
    def space(self) -> Space:
        """The choices as states."""
        return Space.of(self.choices, self.modeled.tolist())

    @property
    def noise(self) -> float:
        """Median difference between two of the last passes, as a share."""
        _, one, two, *_ = self.ratios.T
        both = np.isfinite(one) & np.isfinite(two)
        return float(np.median(np.abs(one[both] / two[both] - 1)))

    @property
    def slow(self) -> float:
        """Share of the samples of the default above 1.2 times the least one."""
        actual = self.defaults[np.isfinite(self.defaults)]
        return float(np.mean(actual > 1.2 * actual.min()))


def measured_tables() -> list[Table]:
    """All choices of all shapes, measured here; takes about twenty minutes."""
    target = replace(resolve(LEVEL), core=resolve("native").core)
    graph, actual = build_graph(SHAPES), []
    tasks = plan_tasks([graph], target)[0]
    measurer = Measurer(Work.of([graph], target), samples=SAMPLES)
    for shape, task in zip(SHAPES, tasks, strict=True):
        nbytes, every = FAR_NBYTES if shape.size < FAR_BELOW else 0, range(len(task.choices))
        passes = [measured(task, measurer, nbytes, 0, every)]
        best = fastest(passes[0])
        passes += [measured(task, measurer, nbytes, 1 + n, best) for n in range(FINAL_PASSES)]
        actual.append(table_of(shape, task, passes))
        print(f"{actual[-1].name}: {len(task.choices)} choices", flush=True)
    return actual


def measured(
    task: Task, measurer: Measurer, nbytes: int, seed: int, numbers: Sequence[int]
) -> list[Measurement]:
    """Choices of a task by number, measured in random order, among those that are not."""
    order = np.random.default_rng(seed).permutation(np.array(numbers)).tolist()
    jobs = [Job(task.key, task.choices[number], nbytes) for number in order]
    by_choice = {value.job.choice: value for value in measurer.run(jobs)}
    return [by_choice.get(c, Measurement(Job(task.key, c, nbytes))) for c in task.choices]


def fastest(actual: Sequence[Measurement]) -> list[int]:
    """Numbers of the choices that are measured in all passes: the fastest, and the default."""
    return sorted({0, *np.argsort([each.ratio for each in actual])[:FINALISTS].tolist()})


def table_of(shape: Shape, task: Task, passes: Sequence[list[Measurement]]) -> Table:
    """The table of a task; choices that failed, or were left out in a pass, have infinite times."""
    kind = "float" if shape.dtype.is_float else "int8"
    name = f"{shape.window}x{shape.window} {shape.size}² {shape.channels}→{shape.results} {kind}"
    nothing = (np.inf,) * SAMPLES
    samples = np.concatenate([[m.seconds or nothing for m in each] for each in passes], axis=1)
    defaults = [[m.default_seconds or nothing for m in each] for each in passes]
    modeled = [task.cycles(choice) for choice in task.choices]
    return Table(
        name, tuple(task.choices), np.array(modeled), samples, np.concatenate(defaults, axis=1)
    )


def write(tables: Sequence[Table], path: Path = TABLES) -> None:
    """Write tables, and the machine they were measured on."""
    facts = {name: text for name, text in (machine() or {}).items() if name != "flags"}
    data = {
        "date": datetime.date.today().isoformat(),
        "machine": facts,
        "level": LEVEL,
        "kernels": [
            {
                "name": table.name,
                "choices": [choice.to_json() for choice in table.choices],
                "modelled": np.round(table.modeled, 1).tolist(),
                "samples": whole_nanoseconds(table.samples),
                "defaults": whole_nanoseconds(table.defaults),
            }
            for table in tables
        ],
    }
    path.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))


def whole_nanoseconds(seconds: Array) -> list[list[int]]:
    """Times as integers; 0 where there is none."""
    actual = np.where(np.isfinite(seconds), seconds * NANOSECONDS, 0)
    return [[int(value) for value in row] for row in np.round(actual)]


def times_of(nanoseconds: Sequence[Sequence[int]]) -> Array:
    """Seconds, infinite where there is no time."""
    actual = np.array(nanoseconds) / NANOSECONDS
    return np.where(actual == 0, np.inf, actual)


def read(path: Path = TABLES) -> tuple[dict[str, Any], list[Table]]:
    """The facts of a file, and its tables."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    return data, list(_tables(data["kernels"]))


def _tables(kernels: Sequence[Any]) -> Iterator[Table]:
    for each in kernels:
        samples, defaults = map(times_of, (each["samples"], each["defaults"]))
        choices = tuple(map(KernelChoice.of, each["choices"]))
        yield Table(each["name"], choices, np.array(each["modelled"]), samples, defaults)
