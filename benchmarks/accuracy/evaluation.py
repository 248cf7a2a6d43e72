"""Evaluation data and metrics of int8 outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.networks.network import Answers, Array, Network, Signal, largest, whole
from benchmarks.support.runtime import Runtime

EVALUATION_SEED, UNLABELED_COUNT = 1, 40


def evaluation(network: Network) -> tuple[Array, NDArray[Any] | None]:
    """Labelled test samples with their labels, or other samples than those of calibration."""
    if network.labeled is None:
        return network.samples(UNLABELED_COUNT, EVALUATION_SEED), None
    return network.labeled()


def first_outputs(runtime: Runtime, network: Network, images: Array) -> NDArray[Any]:
    """The first output of every sample, run one by one."""
    return np.concatenate(
        [np.copy(runtime.run({network.input_name: image[None]})[0]) for image in images]
    )


def sqnr(reference: NDArray[Any], outputs: NDArray[Any], part: Signal = whole) -> float:
    """10 log10(sum reference^2 / sum (reference - outputs)^2), in dB, over all samples at once.

    ``part`` selects the part of each output that counts.
    """
    noise = signal = 0.0
    for expected, got in zip(reference, outputs, strict=True):
        exact = part(expected.astype(np.float64))
        noise += float(np.square(exact - part(got.astype(np.float64))).sum())
        signal += float(np.square(exact).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))


def agreement(reference: NDArray[Any], outputs: NDArray[Any], answers: Answers = largest) -> float:
    """Share of equal answers."""
    return float(np.mean(answers(outputs) == answers(reference)))


def accuracy(
    outputs: NDArray[Any], labels: NDArray[Any] | None, answers: Answers = largest
) -> float | None:
    """Share of right answers; None without labels."""
    return None if labels is None else float(np.mean(answers(outputs) == labels))
