"""How well int8 MiniLM ranks pairs of passages: ``python -m benchmarks.ranking [SAMPLES]``.

Prints the signal-to-noise ratio of the embeddings against onnxruntime's float ones, and Spearman's
correlation of the cosines of all pairs of test passages.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks import models, ours, samples
from benchmarks.evaluation import sqnr

CALIBRATION = 20


def embeddings(run: Any, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """One row for each passage."""
    rows: NDArray[np.float32] = np.concatenate([run({"ids": row[None]})[0] for row in ids])
    return rows


def cosines(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of all pairs of rows, which have length 1."""
    above = np.triu_indices(len(rows), 1)
    found: NDArray[np.float32] = (rows @ rows.T)[above]
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CALIBRATION
    network = models.network("minilm")
    ids = samples.load("passages.npz")["ids"].astype(np.int64)
    session = ort.InferenceSession(str(network.path()), providers=["CPUExecutionProvider"])
    expected = embeddings(lambda feeds: session.run(None, feeds), ids)
    compiled = ours.int8_model(network, 1, 1, count)
    found = embeddings(lambda feeds: compiled.run(None, feeds), ids)
    correlation = spearmanr(cosines(expected), cosines(found)).statistic
    print(f"{len(ids)} passages, {count} samples to calibrate on")
    print(f"SQNR {sqnr(expected, found):.1f} dB, Spearman's correlation {correlation:.4f}")


if __name__ == "__main__":
    main()
