"""Write the graphs and hashes of ``tests/e2e/test_pinned_integers.py``.

``python -m tools.pinned_graphs [NAME ...]`` quantizes the networks of ``small_networks`` anew: the
graphs depend on the BLAS library, so they are kept.  ``--hashes`` keeps them, and pins what the
interpreter makes of them now.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

import quantglow as qg
from quantglow import interpreter
from quantglow.ir.graph.graph import Graph
from tests.support.pinned import FOLDER, HASHES, digest, feeds_of, pinned
from tools.rounding_distance import distance
from tools.small_networks import NETWORKS, samples

SAMPLES = 8
INT16 = ("wide_activations",)
MARGIN = 2e-4
"""Least distance from a tie, in steps, of a value that is rounded behind one of them."""
MOST_SEEDS = 10_000


def quantized(name: str) -> Graph:
    """The int8 graph of a network; its outputs are integers."""
    model = NETWORKS[name]()
    data = samples(model, SAMPLES)
    graph = qg.import_model(model)
    profile = qg.profile(graph, data, progress=False)
    int16 = "auto" if name in INT16 else ()
    config = qg.QuantizationConfig(quantize_output=True, int16_activations=int16)
    return with_integer_outputs(qg.quantize(graph, profile, config, data=data))


def with_integer_outputs(graph: Graph) -> Graph:
    """The graph without the Dequantize of its outputs."""
    outputs = tuple((name, node.operands[0]) for name, node in graph.outputs)
    assert all(node.op == "Dequantize" for _, node in graph.outputs)
    return replace(graph, outputs=outputs)


def least_distance(graph: Graph, seed: int) -> float:
    """The least distance from a tie of all runs of a seed."""
    return min(distance(graph, feeds) for feeds in feeds_of(graph, seed))


def pin(graph: Graph) -> tuple[int, str]:
    """The first seed whose inputs lead to no value near a tie, and the hash of the outputs."""
    seed = next(seed for seed in range(MOST_SEEDS) if least_distance(graph, seed) >= MARGIN)
    return seed, digest([interpreter.interpret(graph, f) for f in feeds_of(graph, seed)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.pinned_graphs")
    parser.add_argument("names", nargs="*", default=[*NETWORKS], metavar="NAME")
    parser.add_argument("--hashes", action="store_true", help="keep the graphs")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    data = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    for name in options.names:
        if not options.hashes:
            qg.compile(quantized(name), num_threads=1).save(FOLDER / f"{name}.qgm")
        data[name] = pin(pinned(name))
        print(name, *data[name], file=sys.stderr)
        HASHES.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
