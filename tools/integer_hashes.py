"""One SHA-256 of the integer outputs of real networks, equal on every processor.

::

    python -m tools.integer_hashes write FOLDER [NAME ...]   # quantizes networks on this machine
    python -m tools.integer_hashes show FOLDER [--levels LEVEL ...] [--threads N]

``show`` runs each saved network on the interpreter and on every level of the machine on which it is
called, an emulated one perhaps (``tools/cross_setup.py``): the graph and its inputs come out of the
folder, so that only the integers of compiled code are compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import quantglow as qg
from quantglow import interpreter
from quantglow.backends.llvm.targets import LEVELS, runs_here
from quantglow.runtime.saved_models import saving
from quantglow.types import Array
from tests.support.pinned import digest

NETWORKS = ("mnist", "ppocr_cls")
SAMPLES, RUNS = 16, 2
"""Numbers of samples that calibrate a network, and that are hashed."""
INTERPRETER = "interpreter"


def write(folder: Path, names: Sequence[str]) -> None:
    """Quantize networks, and save them with the samples that ``show`` runs."""
    from benchmarks.networks.registry import network
    from tools.pinned_graphs import with_integer_outputs

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        chosen = network(name)
        data = list(chosen.feeds(SAMPLES))
        shapes = {key: x.shape for key, x in data[0].items()}
        graph = qg.import_model(chosen.path(), input_shapes=shapes)
        profile = qg.profile(graph, data, progress=False)
        config = qg.QuantizationConfig(quantize_output=True)
        int8 = with_integer_outputs(qg.quantize(graph, profile, config, data=data))
        qg.compile(int8).save(folder / f"{name}.qgm")
        feeds: dict[str, Any] = {f"{i} {key}": x for i in range(RUNS) for key, x in data[i].items()}
        np.savez_compressed(folder / f"{name}.npz", **feeds)


def feeds_of(folder: Path, name: str) -> list[dict[str, Array]]:
    """The samples that were saved with a network."""
    feeds: list[dict[str, Array]] = [{} for _ in range(RUNS)]
    with np.load(folder / f"{name}.npz") as saved:
        for key in saved.files:
            index, _, value = key.partition(" ")
            feeds[int(index)][value] = saved[key]
    return feeds


def hashes(folder: Path, levels: Sequence[str], threads: int) -> Iterator[tuple[str, str, str]]:
    """Name of a network, where it ran, and the hash of its outputs."""
    for path in sorted(folder.glob("*.qgm")):
        feeds, graph = feeds_of(folder, path.stem), saving.load(path).graph
        if INTERPRETER in levels:
            yield path.stem, INTERPRETER, digest([interpreter.interpret(graph, f) for f in feeds])
        for level in (level for level in levels if level != INTERPRETER):
            model = qg.load(path, target=level, num_threads=threads)
            yield path.stem, level, digest([model.run(None, f) for f in feeds])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.integer_hashes")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="quantize networks and save them")
    showing = commands.add_parser("show", help="run saved networks; one JSON line for each hash")
    for command in (writing, showing):
        command.add_argument("folder", type=Path)
    writing.add_argument("names", nargs="*", default=NETWORKS)
    here = [name for name in LEVELS if runs_here(name)]
    showing.add_argument("--levels", nargs="*", default=[INTERPRETER, "native", *here])
    showing.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.command == "write":
        write(options.folder, options.names)
        return
    for found in hashes(options.folder, options.levels, options.threads):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
