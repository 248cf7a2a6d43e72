"""Rankings of pairs of passages by int8 MiniLM: ``python -m benchmarks ranking [SAMPLES]``.

Prints the signal-to-noise ratio of the embeddings against onnxruntime's float ones, and Spearman's
correlation of the cosines of all pairs of test passages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from scipy.stats import spearmanr

import quantglow as qg
from benchmarks.accuracy.evaluation import sqnr
from benchmarks.networks import registry, samples
from benchmarks.networks.network import Feeds, Network
from benchmarks.support.runtime import shaped
from quantglow.quantization.options import EQUALIZATIONS, Equalization

CALIBRATION = 20
SETTINGS: dict[str, tuple[Equalization, ...]] = {
    "all of auto": EQUALIZATIONS,
    "without smooth-activations": tuple(e for e in EQUALIZATIONS if e != "smooth-activations"),
}
Run = Callable[[Feeds], Sequence[Any]]


def embeddings(run: Run, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """One row for each passage."""
    rows: NDArray[np.float32] = np.concatenate([run({"ids": row[None]})[0] for row in ids])
    return rows


def cosines(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosines of all pairs of rows, which have length 1."""
    above = np.triu_indices(len(rows), 1)
    actual: NDArray[np.float32] = (rows @ rows.T)[above]
    return actual


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "samples to calibrate on (default: %(default)s)"
    command.add_argument("samples", nargs="?", type=int, default=CALIBRATION, help=text)


def run(options: argparse.Namespace) -> int:
    """Print the figures of each setting."""
    count = options.samples
    network = registry.network("minilm")
    ids = samples.load("passages.npz")["ids"].astype(np.int64)
    session = ort.InferenceSession(str(network.path()), providers=["CPUExecutionProvider"])
    expected = embeddings(lambda feeds: session.run(None, feeds), ids)
    print(f"{len(ids)} passages, {count} samples to calibrate on")
    for name, techniques in SETTINGS.items():
        actual = embeddings(int8_runner(network, count, techniques), ids)
        correlation = spearmanr(cosines(expected), cosines(actual)).statistic
        decibels = sqnr(expected, actual)
        print(f"{name}: SQNR {decibels:.1f} dB, Spearman's correlation {correlation:.4f}")
    return 0


def int8_runner(network: Network, count: int, techniques: Sequence[Equalization]) -> Run:
    """Function from feeds to int8 outputs, quantized with some equalization techniques."""
    feeds = network.feeds(count)
    graph = qg.import_model(shaped(network, 1))
    profile = qg.profile(graph, feeds, progress=False)
    config = qg.QuantizationConfig(equalization=techniques)
    compiled = qg.compile(qg.quantize(graph, profile, config, data=feeds), num_threads=1)
    return lambda sample: compiled.run(None, sample)
