"""Graphs of the networks in ``benchmarks/RESULTS.md``, ready for code generation, as ``.qgm``.

``python -m tools.prepared_graphs FOLDER`` writes ``NAME.float.qgm`` and ``NAME.int8.qgm``, and two
more: PP-OCR recognition with some values in int16, and MobileNetV2 at batch 8, which is split.
Calibration sees 4 samples.  Files that exist stay as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import quantglow as qg
from benchmarks.networks.registry import network

NETWORKS = (
    "mnist",
    "ppocr_cls",
    "ppocr_rec",
    "ppocr_det",
    "mobilenet_v2",
    "efficientnet_lite0",
    "resnet50",
    "minilm",
)
SAMPLES = 4


def variants(name: str) -> Iterator[tuple[str, int, qg.QuantizationConfig | None]]:
    """Name, batch and options of each graph of a network; no options for the float graph."""
    yield f"{name}.float", 1, None
    yield f"{name}.int8", 1, qg.QuantizationConfig()
    if name == "ppocr_rec":
        yield f"{name}.int16", 1, qg.QuantizationConfig(int16_activations="auto")
    if name == "mobilenet_v2":
        yield f"{name}.batch8", 8, qg.QuantizationConfig()


def prepared(name: str, batch: int, config: qg.QuantizationConfig | None) -> qg.Graph:
    """A network's graph, quantized where there are options for that."""
    chosen = network(name)
    shapes = {chosen.input_name: chosen.input_shape(batch)}
    graph = qg.import_model(chosen.path(batch), shapes)
    if config is None:
        return graph
    samples = chosen.feeds(-(-SAMPLES // batch), batch=batch)
    profile = qg.profile(graph, samples, progress=False)
    return qg.quantize(graph, profile, config, data=samples)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.prepared_graphs")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", nargs="*", default=NETWORKS, metavar="NAME")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.networks:
        for variant, batch, config in variants(name):
            path = options.folder / f"{variant}.qgm"
            if not path.exists():
                qg.compile(prepared(name, batch, config), num_threads=1).save(path)
            print(path, flush=True)


if __name__ == "__main__":
    main()
