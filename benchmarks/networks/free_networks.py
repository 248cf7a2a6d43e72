"""Networks with free dimensions: all sizes that a run may draw, and inputs of a size.

The inputs are random numbers, because times do not depend on them; calibration samples are
realistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import onnx

from benchmarks.networks import registry
from benchmarks.networks.network import Array, Feeds, graph_inputs
from tools.downloads import silero_vad
from tools.downloads.model_cache import cached, content_key
from tools.downloads.wheels import WheelFile

Sizes = tuple[int, ...]
"""Values of the free dimensions of a network."""

SEED = 7
CHUNK, RATE = 576, 16000
VOICE = WheelFile("silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx")


@dataclass(frozen=True)
class FreeNetwork:
    """``ranges``: the sizes that each free dimension may take; ``calibration``: so many samples."""

    name: str
    source: Callable[[], Path]
    ranges: tuple[range, ...]
    feeds: Callable[[Sizes, np.random.Generator], Feeds]
    calibration: Callable[[int], list[Feeds]]


def drawn(ranges: tuple[range, ...], count: int, seed: int = SEED) -> list[Sizes]:
    """At most ``count`` different combinations of sizes in random order."""
    lengths = tuple(map(len, ranges))
    chosen = np.random.default_rng(seed).permutation(prod(lengths))[:count]
    places = zip(*np.unravel_index(chosen, lengths), strict=True)
    return [tuple(r[int(i)] for r, i in zip(ranges, place, strict=True)) for place in places]


def uniform(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers in [-1, 1), float32."""
    return rng.random(shape, np.float32) * 2 - 1


def tokens(sizes: Sizes, rng: np.random.Generator) -> Feeds:
    """A sentence of this length."""
    return {"ids": rng.integers(1, 30_000, (1, *sizes))}


def line(sizes: Sizes, rng: np.random.Generator) -> Feeds:
    """A line of text of this width."""
    return {"x": uniform(rng, 1, 3, 48, *sizes)}


def page(sizes: Sizes, rng: np.random.Generator) -> Feeds:
    """A page of this height and width."""
    return {"x": uniform(rng, 1, 3, *sizes)}


def lines(sizes: Sizes, rng: np.random.Generator) -> Feeds:
    """This number of lines, all of this width."""
    batch, width = sizes
    return {"x": uniform(rng, batch, 3, 48, width)}


def photos(sizes: Sizes, rng: np.random.Generator) -> Feeds:
    """This number of photographs."""
    return {"input": uniform(rng, *sizes, 3, 224, 224)}


def chunks(sizes: Sizes, rng: np.random.Generator) -> Feeds:
    """This number of chunks of sound, each with the end of the one before."""
    return with_state(uniform(rng, *sizes, CHUNK))


def with_state(sound: Array) -> Feeds:
    """Inputs of the voice detection at its first call."""
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": sound, "h": state, "c": state}


def voices(count: int) -> list[Feeds]:
    """Synthetic speech of different lengths."""
    waves = [silero_vad.voice(RATE, 1 + 0.2 * index) for index in range(count)]
    return [
        with_state(wave[: len(wave) // CHUNK * CHUNK].reshape(-1, CHUNK).astype(np.float32))
        for wave in waves
    ]


def with_free_batch(name: str) -> Path:
    """The file of a registered network, its batch a symbol."""
    source = registry.network(name).path()
    target = f"{name}-free-{content_key(source)}.onnx"
    return cached(target, lambda path: onnx.save(free_batch(onnx.load(source)), path))


def free_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with ``batch`` as the first dimension of its inputs and outputs."""
    for value in (*graph_inputs(model.graph), *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def registered(
    name: str,
    ranges: tuple[range, ...],
    feeds: Callable[[Sizes, np.random.Generator], Feeds],
    source: Callable[[], Path] | None = None,
) -> FreeNetwork:
    """A network of the registry; its file has free dimensions unless ``source`` makes another."""
    network = registry.network(name)
    return FreeNetwork(name, source or network.path, ranges, feeds, network.feeds)


NETWORKS = {
    network.name: network
    for network in (
        registered("minilm", (range(1, 513),), tokens),
        registered("ppocr_rec", (range(8, 2001),), line),
        registered("ppocr_det", (range(160, 961, 32),) * 2, page),
        registered("ppocr_cls", (range(1, 9), range(32, 385)), lines),
        registered("resnet50", (range(1, 17),), photos, partial(with_free_batch, "resnet50")),
        FreeNetwork("silero_vad", VOICE.path, (range(1, 4001),), chunks, voices),
    )
}
