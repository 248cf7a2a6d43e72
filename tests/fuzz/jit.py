"""Graphs of the fuzzer through the JIT of emulated AArch64 Pythons.

``python -m tests.fuzz.jit --seeds 0:500 --levels neon dotprod i8mm`` draws the graphs of
``python -m tests.fuzz graphs``, takes the levels in turn, and compares the int8 outputs with the
interpreter's, bit for bit, on one and two threads and under ``harsh`` conditions.  This machine
draws, quantizes and interprets; the emulated Python lowers, plans, emits, compiles by its own LLVM,
loads and runs.  One such process compiles many graphs.  It needs ``make cross-setup``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

import quantglow as qg
from quantglow.runtime.saved import saving
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError
from tests.fuzz import compare
from tests.fuzz.isolated import last_words, patience
from tests.generators.onnx_models import models
from tests.generators.onnx_models.models import Case
from tools.cross_setup import PROCESSORS, environment, interpreter, is_installed

LEFT_OUT = "left out"
RENEWED = 300
"""Graphs after which a process is replaced: kernels and guard pages stay in memory."""
SLOWER = 20
"""Factor of emulation on the time limit of a graph."""
ROOT = Path(__file__).parents[2]


@dataclass
class EmulatedPython:
    """A process of an emulated Python, started when there is a task for it."""

    level: str
    process: subprocess.Popen[str] | None = None
    errors: IO[str] | None = None
    done: int = 0

    def difference(self, task: dict[str, Any]) -> str:
        """The answer to a task, or how the process ended."""
        if self.process is None or self.done == RENEWED:
            self.restart()
        assert self.process and self.process.stdin and self.process.stdout
        self.done += 1
        try:
            print(json.dumps(task), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return self.crash()
        for line in self.process.stdout:
            if line.startswith("{"):
                return str(json.loads(line)["difference"])
        return self.crash()

    def restart(self) -> None:
        """Replace the process."""
        self.close()
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see close
        command = [str(interpreter(self.level)), "-m", "tests.fuzz.jit_server", self.level]
        self.process = subprocess.Popen(
            [*command, "--seconds", str(SLOWER * patience())],
            cwd=ROOT,
            env=environment(ROOT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.done = 0

    def crash(self) -> str:
        """How the process ended; the next task starts another."""
        assert self.process and self.errors
        code = self.process.wait()
        self.errors.seek(0)
        said = last_words(self.errors.read())
        self.close()
        return f"crash: exit code {code}: {said}"

    def close(self) -> None:
        """End the process, if there is one."""
        if self.process:
            with contextlib.suppress(BrokenPipeError), self.process:
                pass
            self.process = None
        if self.errors:
            self.errors.close()
            self.errors = None


def prepared(case: Case, folder: Path) -> dict[str, Any] | None:
    """The files of a task: the int8 graph, its inputs, and the outputs that the interpreter
    computes.  None if there is no such graph: without numbers, or with nothing to compute."""
    try:
        graph = compare.with_exact_outputs(compare.quantized(case))
    except CalibrationError:
        return None
    if not graph.outputs:
        return None
    feeds = [*case.samples, compare.far(case.samples[0])]
    arrays: dict[str, Array] = {"runs": np.array(len(feeds))}
    for run, value in enumerate(feeds):
        arrays |= {f"{run} in {i}": array for i, array in enumerate(value.values())}
        results = qg.interpret(graph, value)
        arrays |= {f"{run} out {i}": array for i, array in enumerate(results)}
    task = {"graph": folder / "graph.qgm", "arrays": folder / "arrays.npz"}
    saving.save(task["graph"], graph, {})
    np.savez(task["arrays"], **arrays)
    return {**{key: str(path) for key, path in task.items()}, "inputs": list(feeds[0])}


@dataclass
class Hunt:
    """Findings and counts of all levels."""

    levels: Sequence[str]
    seeds: range
    deadline: float
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    drawing: threading.Lock = field(default_factory=threading.Lock)

    def check(self, seed: int, python: EmulatedPython) -> str:
        """The difference of a seed's graph on a level, or ``LEFT_OUT``."""
        with tempfile.TemporaryDirectory() as folder:
            with self.drawing:
                task = prepared(models.drawn(seed), Path(folder))
            if task is None:
                return LEFT_OUT
            threads = 1 + seed // len(self.levels) % 2
            return python.difference({**task, "threads": threads})

    def of_level(self, level: str) -> None:
        """Check every graph of a level, in one process after the other."""
        python = EmulatedPython(level)
        for seed in self.seeds:
            if self.levels[seed % len(self.levels)] != level or time.monotonic() > self.deadline:
                continue
            checked = self.check(seed, python)
            self.counts[LEFT_OUT if checked == LEFT_OUT else level] += 1
            if checked not in ("", LEFT_OUT):
                self.findings.append(f"seed {seed}, {level}: {checked}")
                print(self.findings[-1], flush=True)
        python.close()

    def run(self) -> None:
        """Check all graphs, the levels side by side."""
        with ThreadPoolExecutor(len(self.levels)) as pool:
            for done in [pool.submit(self.of_level, level) for level in self.levels]:
                done.result()


def hunt(levels: Sequence[str], seeds: range, seconds: float = np.inf) -> Hunt:
    """Check graphs until they or the seconds end."""
    hunt = Hunt(levels, seeds, time.monotonic() + seconds)
    hunt.run()
    return hunt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.jit")
    parser.add_argument("--seeds", default="0:500", help="first and last, as 0:500")
    parser.add_argument("--levels", nargs="*", choices=PROCESSORS, default=list(PROCESSORS))
    parser.add_argument("--minutes", type=float, default=np.inf, help="stop after so many")
    options = parser.parse_args()
    if not is_installed():
        parser.error("no emulated AArch64: `make cross-setup` installs it")
    first, last = map(int, options.seeds.split(":"))
    actual = hunt(options.levels, range(first, last), 60 * options.minutes)
    each = ", ".join(f"{actual.counts[level]} on {level}" for level in options.levels)
    print(f"graphs: {each}; {actual.counts[LEFT_OUT]} left out; {len(actual.findings)} findings")
    return min(len(actual.findings), 1)


if __name__ == "__main__":
    sys.exit(main())
