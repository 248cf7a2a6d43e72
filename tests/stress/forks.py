"""Threads that fork while others compile and run; every child compiles and runs, too."""

from __future__ import annotations

import faulthandler
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import quantglow as qg
from tests.support.free_network import SHAPES, free_model, image, sum_model
from tests.support.levels import LEVELS_HERE

TARGETS = ("native", *LEVELS_HERE)
FORKING, COMPILING, RUNNING = 8, 2, 2
"""Number of threads of each kind."""
CHILD_SECONDS = 10
"""Time limit of a child, in seconds; a longer one counts as hanging."""

Shape = tuple[int, ...]


def compiles(width: int, target: str = "native") -> bool:
    """Whether a model of this width, which no other call compiles, is compiled and computes."""
    model = qg.compile(sum_model([width, 3], [width, 3]), target=target, num_threads=2)
    feeds = {name: image((width, 3), seed) for seed, name in enumerate(("x0", "x1"))}
    (actual,) = model.run(None, feeds)
    return bool(np.array_equal(actual, feeds["x0"] + feeds["x1"]))


def result_of_fork(check: Callable[[], bool]) -> str:
    """An empty text if ``check`` holds in a forked child, else its fault."""
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(CHILD_SECONDS, exit=True)
        code = 1
        try:
            code = 0 if check() else 2
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happened
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"a child ended with {code}" if code else ""


class Forks:
    """The shared state of the threads: models, expected results, counts."""

    def __init__(self, seconds: float) -> None:
        self.widths = itertools.count(1)
        self.compiled = [qg.compile(free_model(), target=t, num_threads=2) for t in TARGETS]
        self.expected = [[m.run(None, {"x": image(s)}) for s in SHAPES] for m in self.compiled]
        self.failures: list[str] = []
        self.counts = {"forks": 0, "compiled": 0, "runs": 0}
        self.deadline = time.monotonic() + seconds

    def runs(self, step: int) -> bool:
        """Whether a model still gives its first result."""
        which, shape = step % len(self.compiled), step // len(self.compiled) % len(SHAPES)
        results = self.compiled[which].run(None, {"x": image(SHAPES[shape])})
        return all(map(np.array_equal, results, self.expected[which][shape]))

    def fork(self, step: int) -> str:
        target = TARGETS[step % len(TARGETS)]
        self.counts["forks"] += 1
        width = next(self.widths)
        return result_of_fork(lambda: self.runs(step) and compiles(width, target))

    def compile(self, step: int) -> str:
        self.counts["compiled"] += 1
        good = compiles(next(self.widths), TARGETS[step % len(TARGETS)])
        return "" if good else "wrong sums beside forks"

    def run(self, step: int) -> str:
        self.counts["runs"] += 1
        return "" if self.runs(step) else "another result beside forks"

    def until_deadline(self, action: Callable[[int], str], first: int) -> None:
        for step in itertools.count(first):
            if time.monotonic() > self.deadline:
                return
            try:
                problem = action(step)
            except Exception as error:  # noqa: BLE001 - any error is a finding
                problem = f"{type(error).__name__}: {error}"
            if problem:
                self.failures.append(problem)


def main(seconds: float) -> list[str]:
    """Failures within ``seconds``; empty if there are none."""
    sys.setswitchinterval(1e-5)
    state = Forks(seconds)
    kinds: list[Any] = [state.fork] * FORKING + [state.compile] * COMPILING + [state.run] * RUNNING
    threads = [
        threading.Thread(target=state.until_deadline, args=(action, first), daemon=True)
        for first, action in enumerate(kinds)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, state.deadline - time.monotonic()) + 2 * CHILD_SECONDS)
    hanging = sum(thread.is_alive() for thread in threads)
    print(f"{state.counts}, {hanging} threads hang")
    return state.failures + [f"{hanging} threads hang"] * (hanging > 0)
