"""One SHA-256 of the integer outputs of real networks, equal on every processor.

::

    python -m tools.integer_hashes write FOLDER [NAME ...]   # quantizes networks on this machine
    python -m tools.integer_hashes show FOLDER [--levels LEVEL ...] [--threads N]

``write`` calibrates with the instructions of AVX2 and one thread, so that every x86-64 since 2013
makes the same graphs of the same versions of NumPy.  ``show`` runs each saved network on the
interpreter and on every level of the machine on which it is called, an emulated one perhaps
(``tools/cross_setup.py``): the graph and its inputs come out of the folder, so that only the
integers of compiled code are compared.  ``tools/one_hash.py`` compares all processors.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import quantglow as qg
from quantglow import interpreter
from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.runtime.saved import saving
from quantglow.support.arrays import Array
from tests.support.pinned import digest

RUNS = 2
"""Number of samples that are hashed."""
FEWEST = 64
"""Elements of results that tell enough."""
INTERPRETER = "interpreter"
EVERYWHERE = {
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
"""Environment in which floats of NumPy do not depend on the x86-64 that computes them."""


def with_integer_results(graph: Graph, features: bool = False) -> Graph:
    """The graph that ends with the last integers on the way to each output; where these are few,
    ``features`` adds those they are made of: scores of two classes would tell little."""
    actual: dict[Node, None] = {}
    for _, output in graph.outputs:
        for node in _last_integers(output, set()):
            actual |= dict.fromkeys([node, _features(node)] if features else [node])
    outputs = tuple((f"{index} {node.name}", node) for index, node in enumerate(actual))
    return replace(graph, outputs=outputs)


def _features(node: Node) -> Node:
    """The nearest integers of more than a few elements that a value depends on, else itself."""
    before = node
    while int(before.type.size) < FEWEST:
        integers = [x for x in before.operands if x.type.quant and not isinstance(x, Constant)]
        if not integers:
            return node
        before = integers[0]
    return before


def _last_integers(node: Node, observed: set[Node]) -> Iterator[Node]:
    """The quantized values nearest to a value, itself perhaps."""
    if node in observed:
        return
    observed.add(node)
    if node.type.quant is not None:
        yield node
        return
    for operand in node.operands:
        yield from _last_integers(operand, observed)


def write(folder: Path, names: Sequence[str], features: bool = False) -> None:
    """Quantize networks, and save them with the samples that ``show`` runs: those whose floats are
    farthest from ties.  ``features``: see ``with_integer_results``."""
    from tools.hashed_networks import NETWORKS
    from tools.rounding_distance import SUMS, distance

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        network = NETWORKS[name]
        data = network.feeds(network.calibration)
        shapes = {key: x.shape for key, x in data[0].items()}
        graph = qg.import_model(network.source(), input_shapes=shapes)
        profile = qg.profile(graph, data, progress=False)
        config = qg.QuantizationConfig(quantize_output=True, **network.options)
        quantized = qg.quantize(graph, profile, config, data=data)
        int8 = with_integer_results(quantized, features)
        qg.compile(int8).save(folder / f"{name}.qgm")
        farthest = sorted(data, key=lambda sample: -distance(int8, sample, SUMS))
        feeds: dict[str, Any] = {
            f"{i} {key}": x for i in range(RUNS) for key, x in farthest[i].items()
        }
        np.savez_compressed(folder / f"{name}.npz", **feeds)


def feeds_of(folder: Path, name: str) -> list[dict[str, Array]]:
    """The samples that were saved with a network."""
    feeds: list[dict[str, Array]] = [{} for _ in range(RUNS)]
    with np.load(folder / f"{name}.npz") as saved:
        for key in saved.files:
            index, _, value = key.partition(" ")
            feeds[int(index)][value] = saved[key]
    return feeds


def hashes(
    folder: Path, levels: Sequence[str], threads: int, names: Sequence[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Name of a network, where it ran, and the hash of its outputs; by default all networks."""
    for path in sorted(folder.glob("*.qgm")):
        if names and path.stem not in names:
            continue
        feeds, graph = feeds_of(folder, path.stem), saving.load(path).graph
        if INTERPRETER in levels:
            yield path.stem, INTERPRETER, digest([interpreter.interpret(graph, f) for f in feeds])
        for level in (level for level in levels if level != INTERPRETER):
            model = qg.load(path, target=level, num_threads=threads)
            yield path.stem, level, digest([model.run(None, f) for f in feeds])


def everywhere(arguments: Sequence[str]) -> None:
    """Start this module anew with NumPy as on every processor, unless that was done."""
    if any(os.environ.get(name) != value for name, value in EVERYWHERE.items()):
        command = [sys.executable, "-m", "tools.integer_hashes", *arguments]
        os.execve(sys.executable, command, {**os.environ, **EVERYWHERE})


def all_names() -> tuple[str, ...]:
    """Names of all networks."""
    from tools.hashed_networks import NETWORKS

    return tuple(NETWORKS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.integer_hashes")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="quantize networks and save them")
    showing = commands.add_parser("show", help="run saved networks; one JSON line for each hash")
    for command in (writing, showing):
        command.add_argument("folder", type=Path)
    writing.add_argument("names", nargs="*", help="by default all")
    here = [name for name in LEVELS if runs_here(name)]
    showing.add_argument("--levels", nargs="*", default=[INTERPRETER, "native", *here])
    showing.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.command == "write":
        everywhere(sys.argv[1:])
        write(options.folder, options.names or all_names(), features=True)
        return
    for value in hashes(options.folder, options.levels, options.threads):
        print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
