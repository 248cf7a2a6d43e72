"""Hashes of int8 graphs calibrated anew, to prove that quantization has not changed.

::

    OPENBLAS_NUM_THREADS=1 python -m tools.graph_hashes --write before.json
    OPENBLAS_NUM_THREADS=1 python -m tools.graph_hashes --compare before.json

The models are mnist and ppocr_cls, through ``quantize_and_compile``, and those of
``small_networks``, through ``quantize``; some of these with other options, too.  An entry holds the
graph's text, which names each array by its contents, and the SHA-256 of its constants.  Floats of
calibration depend on the BLAS library and its number of threads: compare on one machine.
Former names of operators in the file count as the ones of today.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import quantglow as qg
from benchmarks.networks.registry import network
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import FORMER_NAMES, print_graph, text_constants
from tools.comparison import Record, add_arguments, finish
from tools.small_networks import NETWORKS, samples

SHOWN_LINES = 12
"""Maximum number of different lines shown for each graph."""

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "wide_activations": {"int16": {"int16_activations": "auto"}},
    "attention": {"entropy": {"calibrate_method": "entropy", "recovery": "search-scales"}},
    "residual": {"performance": {"preset": "performance", "per_channel": False}},
}
"""Options beside the default ones, by network and the name of the variant."""


def small(name: str, options: dict[str, Any]) -> Graph:
    """The int8 graph of one of ``small_networks``."""
    model = NETWORKS[name]()
    data, graph = samples(model, 8), qg.import_model(model)
    profile = qg.profile(graph, data, progress=False)
    return qg.quantize(graph, profile, qg.QuantizationConfig(**options), data=data)


def real(name: str, count: int) -> Graph:
    """The int8 graph of a network of the repository; of 10 samples some are held out."""
    chosen = network(name)
    compiled = qg.quantize_and_compile(
        chosen.path(), chosen.feeds(count), num_threads=1, progress=False
    )
    assert isinstance(compiled, qg.CompiledModel)
    return compiled.graph


def variants() -> Iterator[tuple[str, Callable[[], Graph]]]:
    """Names of entries, and what makes their graphs."""
    for name, count in (("mnist", 12), ("ppocr_cls", 6)):
        yield name, partial(real, name, count)
    for name in NETWORKS:
        yield name, partial(small, name, {})
        for variant, options in OPTIONS.get(name, {}).items():
            yield f"{name} {variant}", partial(small, name, options)


def entry(graph: Graph) -> dict[str, Any]:
    """The text of a graph and the hash of its constants, in the order of the text."""
    digest = hashlib.sha256()
    for array in text_constants(graph).values():
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    text = print_graph(graph).splitlines()[1:]  # The first line has the hash of the ONNX file.
    return {"constants": digest.hexdigest(), "text": text}


def renamed(line: str) -> str:
    """A line of an older text with today's names of operators."""
    return re.sub(r"\b\w+(?=\()", lambda match: FORMER_NAMES.get(match[0], match[0]), line)


def older(record: Record) -> Record:
    """A record of an older checkout with today's names."""
    return {
        name: value | {"text": [renamed(line) for line in value["text"]]}
        for name, value in record.items()
    }


def explain(name: str, before: Any, after: Any) -> str:
    """The lines that differ."""
    lines = difflib.unified_diff(before["text"], after["text"], lineterm="", n=0)
    changed = [f"    {line[:200]}" for line in lines if line[0] in "+-"][2:]
    shown = changed[:SHOWN_LINES] or ["    only constants differ"]
    return "\n".join([f"{name}: {len(changed)} lines differ", *shown])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.graph_hashes")
    parser.add_argument("--networks", nargs="*", metavar="NAME", help="beginnings of names")
    add_arguments(parser)
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        sys.exit("Floats depend on the number of threads. Remedy: set OPENBLAS_NUM_THREADS=1")
    record, chosen = Record(), tuple(options.networks or [""])
    for name, make in variants():
        if name.startswith(chosen):
            record[name] = entry(make())
            print(name, record[name]["constants"][:16], flush=True)
    finish(options, record, explain, older)


if __name__ == "__main__":
    main()
