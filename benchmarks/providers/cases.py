"""The models: networks in float and as QDQ, networks out of wheels, decoders with caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.accuracy import unseen, unseen_int8
from benchmarks.latency.decode import config_of, packed
from benchmarks.networks import registry
from benchmarks.networks.network import Feeds
from benchmarks.support.peer_runtimes import onnxruntime_int8_file
from benchmarks.support.runtime import shaped
from quantglow.quantization.options import WeightType
from tests.support.decoder import decoder_model
from tools.downloads.model_cache import cached

NETWORKS = (*registry.TABLE, "ppocr_rec", "ppocr_det", "minilm")
"""Networks that are measured in float and as QDQ."""

WEIGHTS: tuple[WeightType | None, ...] = (None, "int8", "int4")
PROMPT, TOKENS, LAYERS, SAMPLES = 32, 16, 4, 8


@dataclass(frozen=True)
class ProviderCase:
    """A model and the feeds of a call.  ``tokens``: a call is a text of a decoder, of so many
    tokens behind the feeds."""

    name: str
    precision: str
    file: Callable[[], Path]
    feeds: Callable[[], Feeds]
    tokens: int = 0


def all_cases() -> Iterator[ProviderCase]:
    """Every case, the networks of the registry first."""
    for name in NETWORKS:
        network = registry.network(name)
        feeds = partial(_first, network.feeds, 1, 1)
        yield ProviderCase(name, "float", partial(shaped, network, 1), feeds)
        quantized = partial(onnxruntime_int8_file, network, 1, SAMPLES)
        yield ProviderCase(name, "QDQ", quantized, feeds)
    for wheel in unseen.NETWORKS:
        yield ProviderCase(wheel.name, "float", wheel.path, partial(_as_dict, wheel))
    for other in unseen_int8.NETWORKS:
        draw = partial(other.draw, np.random.default_rng(0), 0)
        yield ProviderCase(other.name, "float", other.path, draw)
    for form in ("standard", "fused"):
        for weights in WEIGHTS:
            file = partial(_decoder_file, form, weights)
            name = f"decoder {form}"
            yield ProviderCase(name, weights or "float", file, partial(_prompt, form), TOKENS)


def _first(draw: Callable[[int, int], list[Feeds]], count: int, seed: int) -> Feeds:
    return draw(count, seed)[0]


def _as_dict(network: unseen.UnseenNetwork) -> Feeds:
    return dict(unseen.feeds_of(network))


def _decoder_file(form: str, weights: WeightType | None) -> Path:
    def build(path: Path) -> None:
        model = decoder_model(config_of(form, LAYERS))
        onnx.save(packed(model, weights) if weights else model, path)

    return cached(f"decoder-{form}-{LAYERS}-{weights or 'float'}.onnx", build)


def _prompt(form: str) -> Feeds:
    config = config_of(form, LAYERS)
    tokens = np.random.default_rng(0).integers(0, config.vocabulary, (1, PROMPT))
    return config.feeds(tokens, config.empty_cache(1))
