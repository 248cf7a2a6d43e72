"""Write a model again with its machine code, in a process that ran it at many shapes.

Arguments: NETWORK MODEL THREADS SHAPES.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import quantglow as qg
from benchmarks.networks.free_networks import NETWORKS, SEED, drawn


def include_code(name: str, path: Path, threads: int, count: int) -> None:
    """Run a saved model at the drawn shapes, and save it with the code for this processor."""
    network, rng = NETWORKS[name], np.random.default_rng(SEED)
    model = qg.load(path, num_threads=threads)
    for sizes in drawn(network.ranges, count):
        model.run(None, network.feeds(sizes, rng))
    model.save(path, include_code="native")


if __name__ == "__main__":
    network_name, model_path, *numbers = sys.argv[1:]
    include_code(network_name, Path(model_path), *map(int, numbers))
