"""Ten networks on every processor that this machine is or emulates: one hash of integers for each.

::

    python -m tools.integer_hashes write FOLDER
    python -m tools.one_hash FOLDER [--networks NAME ...] [--places PLACE ...] [--keep]

prints a line for each network and place, and exits with 1 where a place computes other integers
than the interpreter, or a network other ones than ``tools/integer_hashes.json`` has.  A graph that
differs from the file's was calibrated by other versions of NumPy or OpenBLAS; its integers are
then compared with the interpreter's only.  ``--keep`` writes the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import print_graph, text_constants
from quantglow.runtime.saved import saving
from tests.support.pinned import digest
from tools import other_processors
from tools.hashed_networks import NETWORKS
from tools.integer_hashes import INTERPRETER, feeds_of, hashes

EXPECTED = Path(__file__).with_name("integer_hashes.json")
"""Network -> the hash of its graph, and that of its integers."""
HERE = (INTERPRETER, *(level for level in LEVELS if runs_here(level)))
"""Places in this process."""
PLACES = (*HERE, *filter(other_processors.is_installed, other_processors.PLACES))


@dataclass(frozen=True)
class Hashes:
    """Hashes of a network: of its int8 graph, and of the integers that it computes."""

    graph: str
    integers: str


def expected() -> dict[str, Hashes]:
    """The hashes of the file."""
    if not EXPECTED.exists():
        return {}
    return {name: Hashes(**entry) for name, entry in json.loads(EXPECTED.read_text()).items()}


def graph_hash(graph: Graph) -> str:
    """SHA-256 of a graph's text, which names each constant by its contents."""
    digest = hashlib.sha256(print_graph(graph).encode())
    for constant in text_constants(graph).values():
        digest.update(constant.tobytes())
    return digest.hexdigest()


def integers_at(place: str, folder: Path, name: str) -> str:
    """The hash of a network's integers, computed at a place."""
    if place in HERE:
        ((_, _, actual),) = hashes(folder, [place], threads=1, names=[name])
        return actual
    graph, feeds = saving.load(folder / f"{name}.qgm").graph, feeds_of(folder, name)
    with tempfile.TemporaryDirectory() as built:
        level = other_processors.level_of(place)
        program = other_processors.program_of(graph, level, Path(built))
        samples = [[feed[x.name] for x in graph.inputs] for feed in feeds]
        outputs, _ = program.run(place, samples)
    return digest(outputs)


def compare(folder: Path, name: str, places: Sequence[str]) -> tuple[Hashes, bool]:
    """The hashes of a network by the interpreter, and whether all places agree."""
    graph = graph_hash(saving.load(folder / f"{name}.qgm").graph)
    hashes = Hashes(graph, integers_at(INTERPRETER, folder, name))
    agree = True
    known = expected().get(name, hashes)
    if known.graph != graph:
        print(f"{name}: calibrated to another graph than that of {EXPECTED.name}", flush=True)
    elif known.integers != hashes.integers:
        print(f"{name}: {EXPECTED.name} has {known.integers}", flush=True)
        agree = False
    for place in places:
        there = integers_at(place, folder, name)
        print(f"{name:20} {place:16} {there}", flush=True)
        agree &= there == hashes.integers
    return hashes, agree


def keep(name: str, actual: Hashes) -> None:
    """Write the hashes of a network to the file."""
    entries = expected() | {name: actual}
    written = {name: asdict(entries[name]) for name in NETWORKS if name in entries}
    EXPECTED.write_text(json.dumps(written, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.one_hash")
    parser.add_argument("folder", type=Path, help="of `python -m tools.integer_hashes write`")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--places", nargs="*", choices=PLACES, default=list(PLACES))
    parser.add_argument("--keep", action="store_true", help=f"write {EXPECTED.name}")
    options = parser.parse_args()
    agree = True
    for name in options.networks:
        actual, equal = compare(options.folder, name, options.places)
        agree &= equal
        if options.keep and equal:
            keep(name, actual)
    print("all equal" if agree else "some differ")
    sys.exit(not agree)


if __name__ == "__main__":
    main()
