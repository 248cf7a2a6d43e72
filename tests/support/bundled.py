"""Bundles in C programs: building one, and what it writes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.support.arrays import Array

MAIN = Path(__file__).with_name("bundle_main.c")
KNOWN_COMPILERS = ("gcc", "clang")
COMPILERS = tuple(name for name in KNOWN_COMPILERS if shutil.which(name))
"""Compilers of this processor that are installed."""


def tools(*names: str) -> list[Any]:
    """Parameters of a test that runs each of some programs, and is skipped where it is missing."""
    missing = {name: not shutil.which(name) for name in names}
    return [
        pytest.param(n, marks=pytest.mark.skipif(missing[n], reason=f"{n} is not installed"))
        for n in names
    ]


each_compiler = pytest.mark.parametrize("compiler", tools(*KNOWN_COMPILERS))
STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")

Feeds = Sequence[Mapping[str, Array]]


def built(folder: Path, compiler: str, *options: str, library: str = "static") -> Path:
    """The program of ``bundle_main.c`` with the bundle ``net`` in a folder.

    ``library``: ``static`` for its objects, ``shared`` for ``libnet.so``.
    """
    program = folder / f"main-{compiler}-{library}"
    placed = ["-DWEIGHTS"] if (folder / "net_weights.bin").exists() else []
    files: list[Path | str] = [*folder.glob("*.o"), *folder.glob("net_weights.c")]
    if library == "shared":
        files = [folder / "libnet.so", f"-Wl,-rpath,{folder}"]
    command = [compiler, *STRICT, "-g", "-O1", *placed, f"-I{folder}", MAIN, *files]
    subprocess.run([*command, *options, "-o", program], check=True)
    return program


def octets(arrays: Iterable[Array]) -> bytes:
    """The elements of arrays, one after the other."""
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


def written(
    program: Path, graph: Graph, feeds: Feeds, *arguments: str, runner: Sequence[str] = ()
) -> bytes:
    """The outputs that a program writes; ``runner``: the command that runs it.

    Raises ``AssertionError`` with what it said if it fails.
    """
    inputs = octets(feed[x.name] for feed in feeds for x in graph.inputs)
    command = [*runner, str(program), *arguments]
    ran = subprocess.run(command, cwd=program.parent, input=inputs, capture_output=True)
    said = ran.stderr.decode(errors="replace")
    assert (ran.returncode, said) == (0, ""), f"exit code {ran.returncode}: {said}"
    return ran.stdout


def interpreted(graph: Graph, feeds: Feeds) -> bytes:
    """The outputs that the interpreter computes."""
    return octets(y for feed in feeds for y in interpret(graph, feed))
