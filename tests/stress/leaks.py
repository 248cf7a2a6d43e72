"""Models compiled, run, saved, loaded and dropped repeatedly, with ever new shapes.

Memory and open resources of the process stay constant.
"""

from __future__ import annotations

import gc
import itertools
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import quantglow as qg
from quantglow.runtime.native.executable import Context
from tests.support.free_network import free_model, image
from tests.support.small_network import small_model, small_samples

LEAST_CYCLES = 24
MOST_GROWTH_NBYTES = 24 * 2**20
"""Tolerance in bytes on resident memory gained between the first third of the cycles and the
end, which the allocator keeps.  An arena or the constants of a small model, lost in each of a
thousand cycles, is more."""
SIZES = 16
"""Heights and widths; a combination of them may be repeated."""


def resident_nbytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def figures() -> dict[str, int]:
    """Memory, arenas, threads and files of this process."""
    gc.collect()
    return {
        "nbytes": resident_nbytes(),
        "arenas": sum(isinstance(thing, Context) for thing in gc.get_objects()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
    }


class Cycles:
    """Models; ``free`` lives on and gets new shapes, all others come and go."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.qgm"
        self.sample = small_samples(1)[0]
        self.free = qg.compile(free_model(), num_threads=2)
        graph = qg.import_model(small_model())
        self.int8 = qg.quantize(graph, qg.profile(graph, small_samples(), progress=False))
        self.expected = [array.tobytes() for array in self.run(qg.compile(self.int8))]

    def run(self, model: Any) -> list[np.ndarray]:
        return list(model.run(None, {"x": self.sample}))

    def cycle(self, number: int) -> bool:
        """Compile, run, save, load, run, drop, and a shape that may be new."""
        compiled = qg.compile(self.int8, num_threads=1 + number % 2)
        results = [self.run(compiled)]
        compiled.save(self.path)
        results.append(self.run(qg.load(self.path, num_threads=1 + number % 2)))
        shape = (1, 3, 1 + number % SIZES, 1 + number // SIZES % SIZES)
        self.free.run(None, {"x": image(shape)})
        return all([array.tobytes() for array in arrays] == self.expected for arrays in results)


def main(seconds: float) -> list[str]:
    """Failures within ``seconds``, or within ``LEAST_CYCLES`` if they take longer."""
    failures: list[str] = []
    observed: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        cycles, end = Cycles(Path(folder)), time.monotonic() + seconds
        for number in itertools.count():
            if number >= LEAST_CYCLES and time.monotonic() > end:
                break
            if not cycles.cycle(number):
                failures.append(f"cycle {number}: another result")
            if number % 8 == 7:
                observed.append(figures())
    print(f"{number} cycles: {observed[0]} first, {observed[-1]} last")
    return failures + grown(observed)


def grown(observed: list[dict[str, int]]) -> list[str]:
    """Resources that grew after the first third of the cycles, beyond the tolerance."""
    before, after = observed[len(observed) // 3], observed[-1]
    room = {"nbytes": MOST_GROWTH_NBYTES, "arenas": 32, "threads": 0, "files": 0}
    return [
        f"{name}: {before[name]} after a third of the cycles, {after[name]} at the end"
        for name, most in room.items()
        if after[name] > before[name] + most
    ]
