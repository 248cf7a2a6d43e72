"""The networks whose integers are the same on every processor: files, and samples of small shapes.

Sizes that a network leaves free are small, because emulated processors take seconds for what this
one does in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import free_networks
from benchmarks.networks.network import Feeds
from benchmarks.networks.registry import network

WIDTH, SIDE, LENGTH, CHUNKS = 96, 160, 16, 8
"""Columns of a line of text, pixels of a side of a page, tokens, and chunks of sound."""


@dataclass(frozen=True)
class HashedNetwork:
    """``feeds``: so many samples, ``calibration`` of which calibrate it.  ``options``: those of
    ``QuantizationConfig``."""

    source: Callable[[], Path]
    feeds: Callable[[int], list[Feeds]]
    calibration: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)


def registered(name: str, corner: tuple[slice, ...] = (), **options: Any) -> HashedNetwork:
    """A network of the benchmarks, on a corner of its samples."""

    chosen: Any = (..., *corner)

    def feeds(count: int) -> list[Feeds]:
        return [
            {key: np.ascontiguousarray(x[chosen]) for key, x in feed.items()}
            for feed in network(name).feeds(count)
        ]

    return HashedNetwork(lambda: network(name).path(), feeds, options=options)


def sounds(count: int) -> list[Feeds]:
    """Successive chunks of synthetic speech, ``CHUNKS`` each."""
    *_, longest = free_networks.voices(CHUNKS * count)
    starts = range(0, CHUNKS * count, CHUNKS)
    return [longest | {"input": longest["input"][start : start + CHUNKS]} for start in starts]


NETWORKS = {
    "mnist": registered("mnist"),
    "ppocr_cls": registered("ppocr_cls"),
    "ppocr_rec": registered("ppocr_rec", (slice(WIDTH),)),
    "ppocr_det": registered("ppocr_det", (slice(SIDE), slice(SIDE))),
    "efficientnet_lite0": registered("efficientnet_lite0"),
    "resnet50": registered("resnet50"),
    "mobilenet_v2": registered("mobilenet_v2"),
    "minilm": registered("minilm", (slice(LENGTH),)),
    "silero_vad": HashedNetwork(free_networks.VOICE.path, sounds),
    "ppocr_cls_int16": registered("ppocr_cls", int16_activations="auto"),
}
