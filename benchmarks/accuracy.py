"""How far each runtime's int8 outputs lie from onnxruntime's float outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import models
from benchmarks.runtimes import Runtime
from benchmarks.worker import EVALUATION_SEED, MAKERS

UNLABELLED_COUNT = 20


def sqnr(reference: NDArray[Any], outputs: NDArray[Any]) -> float:
    """10 log10(sum reference^2 / sum (reference - outputs)^2), in dB, over all samples at once."""
    noise = float(np.square(reference.astype(np.float64) - outputs).sum())
    signal = float(np.square(reference.astype(np.float64)).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))


def evaluation(network: models.Network) -> tuple[models.Array, NDArray[Any] | None]:
    """The labelled test samples, or samples that were not calibrated on."""
    if network.labelled is None:
        return network.samples(UNLABELLED_COUNT, EVALUATION_SEED), None
    return network.labelled()


def first_outputs(runtime: Runtime, network: models.Network, images: models.Array) -> NDArray[Any]:
    """The first output of every image, run one by one."""
    return np.concatenate(
        [np.copy(runtime.run({network.input_name: image[None]})[0]) for image in images]
    )


def top1(outputs: NDArray[Any], labels: NDArray[Any] | None) -> str:
    """Share of right answers, blank without labels."""
    if labels is None:
        return ""
    return f"{100 * np.mean(outputs.argmax(axis=1) == labels):.2f} %"


def rows(name: str, runtimes: Sequence[str], samples: int, threads: int) -> list[str]:
    """Markdown rows of one network: float first, then each int8."""
    network = models.network(name)
    images, labels = evaluation(network)
    reference_runtime = MAKERS["onnxruntime float"](network, threads, 1, samples)
    reference = first_outputs(reference_runtime, network, images)
    lines = [f"| {name} | onnxruntime float | | {top1(reference, labels)} | |"]
    for runtime in runtimes:
        made = MAKERS[f"{runtime} int8"](network, threads, 1, samples)
        outputs = first_outputs(made, network, images)
        agreement = np.mean(outputs.argmax(axis=1) == reference.argmax(axis=1))
        cells = [name, made.name, f"{sqnr(reference, outputs):.2f}", top1(outputs, labels)]
        lines.append(f"| {' | '.join(cells)} | {100 * agreement:.2f} % |")
    return lines


def run(networks: Sequence[str], runtimes: Sequence[str], samples: int, threads: int) -> int:
    """Print the table."""
    print("| network | runtime | SQNR dB | top-1 | same answer as float |")
    print("| --- | --- | --- | --- | --- |")
    for name in networks:
        print("\n".join(rows(name, runtimes, samples, threads)), flush=True)
    return 0
