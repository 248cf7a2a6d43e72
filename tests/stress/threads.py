"""Sixteen threads that compile, run, save and load the same models; every result is compared."""

from __future__ import annotations

import itertools
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import quantglow as qg
from tests.support.detector import SHAPE, detector
from tests.support.free_network import SHAPES, free_model, image, sum_model
from tests.support.small_network import small_model, small_samples

THREADS = 16
PATIENCE_SECONDS = 120
"""Time limit after the end, in seconds; a thread that takes longer counts as hanging."""

Arrays = list[np.ndarray]


def same(actual: Arrays, expected: Arrays) -> bool:
    """Whether two results are equal bit for bit."""
    return all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(actual, expected, strict=True)
    )


class Threads:
    """Objects that the threads share: models built once, and their first results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        fixed, free = small_samples(1)[0], [image(shape) for shape in SHAPES]
        int8 = qg.quantize_and_compile(
            free_model(), free * 2, num_threads=2, progress=False, verify=False
        )
        self.makers: dict[str, Callable[[int], Any]] = {
            "small": lambda threads: qg.compile(small_model(), num_threads=threads),
            "free": lambda threads: qg.compile(free_model(), num_threads=threads),
            "detector": lambda threads: qg.compile(detector(), num_threads=threads),
        }
        self.inputs = {"small": [fixed], "free": free, "detector": [image(SHAPE)], "int8": free}
        self.models = {name: make(2) for name, make in self.makers.items()} | {"int8": int8}
        self.expected = {
            n: [self.run(self.models[n], x) for x in xs] for n, xs in self.inputs.items()
        }
        for name, model in self.models.items():
            model.save(folder / f"{name}.qgm")
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.steps = itertools.count()

    @staticmethod
    def run(model: Any, x: np.ndarray) -> Arrays:
        return list(model.run(None, {model.get_inputs()[0].name: x}))

    def agrees(self, name: str, model: Any, step: int) -> bool:
        """Whether a model gives the result of the first one of its kind."""
        at = step % len(self.inputs[name])
        return same(self.run(model, self.inputs[name][at]), self.expected[name][at])

    def act(self, step: int) -> bool:
        """One action of a thread; whether it succeeded."""
        action = ("run", "run", "run", "compile", "load", "save", "new shape")[step % 7]
        name = list(self.models)[step // 7 % len(self.models)]
        self.counts[action] += 1
        threads = 1 + step % 3
        if action == "run":
            return self.agrees(name, self.models[name], step)
        if action == "compile" and name in self.makers:
            return self.agrees(name, self.makers[name](threads), step)
        if action == "save":
            path = self.folder / f"{step}.qgm"
            self.models[name].save(path)
            model = qg.load(path, num_threads=threads)
            path.unlink()
            return self.agrees(name, model, step)
        if action == "new shape":
            x = image((1 + step % 40, 3))
            return bool(np.array_equal(self.twice(x), x + x))
        return self.agrees(name, qg.load(self.folder / f"{name}.qgm", num_threads=threads), step)

    @staticmethod
    def twice(x: np.ndarray) -> Any:
        """Twice ``x``, by a model compiled for its shape."""
        model = qg.compile(sum_model(["N", 3], ["N", 3]), num_threads=2)
        return model(x, x)

    def until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            step = next(self.steps)
            try:
                if not self.act(step):
                    self.failures.append(f"step {step}: another result")
            except Exception as error:  # noqa: BLE001 - any error is a finding
                self.failures.append(f"step {step}: {type(error).__name__}: {error}")


def main(seconds: float) -> list[str]:
    """Failures within ``seconds``; empty if there are none."""
    sys.setswitchinterval(1e-4)
    with tempfile.TemporaryDirectory() as folder:
        state = Threads(Path(folder))
        deadline = time.monotonic() + seconds
        threads = [
            threading.Thread(target=state.until, args=(deadline,), daemon=True)
            for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()) + PATIENCE_SECONDS)
    hanging = sum(thread.is_alive() for thread in threads)
    print(f"{dict(state.counts)}, {hanging} threads hang")
    return state.failures + [f"{hanging} threads hang"] * (hanging > 0)
