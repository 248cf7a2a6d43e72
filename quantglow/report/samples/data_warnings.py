"""Signs that calibration data differs from the training data of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import interpret
from quantglow.ops import BatchNormalization

FEWEST_SAMPLES = 10
"""Minimum number of different samples; with fewer, ranges and rounded weights depend on chance,
and no sample is left for a check."""

MAX_SHARE = 0.1
"""Share of constant samples, or of repeated ones, above which there is a warning."""

MAX_SHIFT, MAX_SCALE = 3.0, 4.0
"""Distance of the median channel's mean from that of training, in its standard deviations, and
ratio of the standard deviations, in either direction.  Measured on the embedded networks: up to 0.5
and 1.1 on their data; 75 and 150 or more on bytes that were not scaled; 0.3 and 250 where digits
were divided by 255 twice.
"""

NORMALIZED_SAMPLES = 4
"""Maximum number of samples that run up to the first BatchNormalization."""


@dataclass
class Seen:
    """Numbers of all samples and of constant ones, and the digests of different ones."""

    count: int = 0
    constant: int = 0
    digests: set[bytes] = field(default_factory=set)

    def add(self, feeds: Mapping[str, Array], digest: bytes) -> None:
        """Count a sample."""
        self.count += 1
        self.constant += is_constant(feeds)
        self.digests.add(digest)

    def warnings(self) -> list[str]:
        """Warnings about the samples."""
        found, distinct = [], len(self.digests)
        if self.constant > MAX_SHARE * self.count:
            found.append(
                f"{self.constant} of {self.count} samples are constant: every input has the same "
                "value everywhere. The figures say nothing about real data."
            )
        if self.count - distinct > MAX_SHARE * self.count:
            found.append(
                f"only {distinct} of {self.count} samples are different: the others repeat them."
            )
        if distinct < FEWEST_SAMPLES:
            found.append(
                f"{distinct} different sample(s) are few: 100 to 300 are usual, and with "
                f"{FEWEST_SAMPLES} or more some are kept for the check."
            )
        return found


def is_constant(feeds: Mapping[str, Array]) -> bool:
    """Whether all inputs with more than one element are constant, and there is such an input."""
    large = [array for array in feeds.values() if array.size > 1]
    return bool(large) and all(bool((array == array.flat[0]).all()) for array in large)


def unlike_training(graph: Graph, samples: Sequence[Mapping[str, Array]]) -> list[str]:
    """A warning if the first BatchNormalization of an imported graph sees other values than its
    statistics of training describe.
    """
    first = next(filter(_is_normalization, graph.nodes), None)
    if first is None or not samples:
        return []
    up_to = Graph(graph.inputs, (("value", first.operands[0]),), graph.source_hash)
    names = [node.name for node in up_to.inputs]
    runs = (
        interpret(up_to, {name: feeds[name] for name in names})[0]
        for feeds in samples[:NORMALIZED_SAMPLES]
    )
    rows = np.concatenate([value.reshape(-1, value.shape[-1]) for value in runs], dtype=np.float64)
    mean, var = (getattr(first, name).value.reshape(-1) for name in ("mean", "var"))
    deviation = np.sqrt(var.astype(np.float64) + first.attributes()["epsilon"])
    shift = float(np.median(np.abs(rows.mean(0) - mean) / deviation))
    scale = float(np.median(rows.std(0) / deviation))
    if shift <= MAX_SHIFT and 1 / MAX_SCALE <= scale <= MAX_SCALE:
        return []
    return [
        f"the inputs are unlike those of training: behind the first layers ({first.name!r}) values "
        f"lie {shift:.2g} standard deviations from the mean that the model holds, and spread "
        f"{scale:.2g} times as far. Look at the preprocessing (division by 255, mean, channels)."
    ]


def _is_normalization(node: Node) -> bool:
    """Whether it holds the statistics of training, for values of at least two elements."""
    return isinstance(node, BatchNormalization) and all(
        isinstance(operand, Constant) for operand in (node.mean, node.var)
    )
