"""Bytes of the constants of bundles, for each level, beside those of the graph.

::

    python -m tools.integer_hashes write FOLDER mnist ppocr_cls mobilenet_v2
    python -m tools.weight_bytes FOLDER [--levels LEVEL ...]

The ratio is above 1 for channels and steps padded to whole vectors, for rows of depthwise weights
that stand once for each output row, for offsets of sorted steps (``avx2``) and for tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from quantglow.codegen.llvm.targets import LEVELS
from quantglow.export.bundle.constants import Placement, weight_blocks
from quantglow.export.bundle.exporter import emit
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.runtime.saved import saving


def constant_nbytes(graph: Graph) -> int:
    """Bytes of the arrays of a graph, each once."""
    arrays = {id(n.value): n.value for n in graph.nodes if isinstance(n, Constant)}
    return sum(array.nbytes for array in arrays.values())


def bundle_nbytes(graph: Graph, level: str) -> int:
    """Bytes of the constants of a graph's bundle."""
    return weight_blocks([emit(graph, level)], Placement.OBJECT)[0].nbytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.weight_bytes")
    parser.add_argument("folder", type=Path, help="of `python -m tools.integer_hashes write`")
    parser.add_argument("--levels", nargs="*", choices=LEVELS, default=list(LEVELS))
    options = parser.parse_args()
    for path in sorted(options.folder.glob("*.qgm")):
        graph = saving.load(path).graph
        whole = constant_nbytes(graph)
        print(f"{path.stem}: {whole:,} bytes in the graph")
        for level in options.levels:
            stored = bundle_nbytes(graph, level)
            print(f"  {level:14} {stored:12,} {stored / whole:6.2f}", flush=True)


if __name__ == "__main__":
    main()
