"""Weights of a decoder are in memory once, as its kernels read them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.support import pages
from tests.support.combinations import covering, mark_slow
from tests.support.decoder import Decoder, decoder_model
from tests.support.owned_memory import owned

CONFIG = Decoder(2, 256, 4, 2, 512, 2048, fused=True)
BASE_NBYTES = 650_000
"""Bytes of arrays beside the weights: tables of positions, of which all programs have copies."""
SHARES = {"int4": 0.5 + 4 / 64, "int8": 1 + 4 / 64}
"""Bytes of a weight and its share of a scale."""

Open = Callable[[onnx.ModelProto, str, Path], Any]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files for the weights of small models, too."""
    monkeypatch.setattr(pages, "LEAST_NBYTES", 1 << 12)
    monkeypatch.setattr(pages, "LEAST_TOTAL_NBYTES", 1)


def quantized(model: onnx.ModelProto, weights: str, folder: Path) -> Any:
    return qg.quantize_and_compile(model, None, weights=weights, num_threads=1, progress=False)


def loaded(model: onnx.ModelProto, weights: str, folder: Path) -> Any:
    return qg.load(saved(weights, False, folder), num_threads=1)


def loaded_after_a_run(model: onnx.ModelProto, weights: str, folder: Path) -> Any:
    return qg.load(saved(weights, True, folder), num_threads=1)


def saved(weights: str, is_run: bool, folder: Path) -> Path:
    """A file of the quantized decoder, saved before or after a run."""
    path = folder / "model.qgm"
    path.write_bytes(content(weights, is_run))
    return path


@cache
def content(weights: str, is_run: bool) -> bytes:
    """The bytes of such a file."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = quantized(decoder_model(CONFIG), weights, Path(folder))
        if is_run:
            logits(compiled)
        compiled.save(Path(folder) / "model.qgm")
        return (Path(folder) / "model.qgm").read_bytes()


WAYS = covering([quantized, loaded, loaded_after_a_run], ["int4", "int8"])


def logits(compiled: Any) -> np.ndarray:
    """Logits of a prompt, of a token behind it, and of a call without a state."""
    state, rng = compiled.new_state(capacity=16), np.random.default_rng(0)
    tokens = rng.integers(0, CONFIG.vocabulary, (1, 6))
    parts = [
        state.run(None, {"input_ids": ids, "attention_mask": np.ones((1, total), np.int64)})[0]
        for ids, total in ((tokens[:, :5], 5), (tokens[:, 5:], 6))
    ]
    parts.append(compiled.run(None, CONFIG.feeds(tokens, CONFIG.empty_cache(1)))[0])
    return np.concatenate(parts, axis=1)


def count(model: onnx.ModelProto) -> int:
    """Number of weights of products and of the embedding."""
    return sum(int(np.prod(t.dims)) for t in model.graph.initializer if len(t.dims) == 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("opened", "weights"), WAYS)
def test_weights_are_in_memory_once(opened: Open, weights: str, tmp_path: Path) -> None:
    model = decoder_model(CONFIG)
    before = owned().keys()
    compiled = opened(model, weights, tmp_path)
    logits(compiled)
    nbytes = sum(size for key, size in owned().items() if key not in before)
    assert nbytes < SHARES[weights] * count(model) + BASE_NBYTES


def test_before_the_first_call_no_weights_are_in_memory(tmp_path: Path) -> None:
    model = decoder_model(CONFIG)
    before = owned().keys()
    compiled = loaded(model, "int8", tmp_path)
    nbytes = sum(size for key, size in owned().items() if key not in before)
    assert (nbytes < BASE_NBYTES, compiled.specialisations.is_empty) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize("weights", mark_slow(["int4", "int8"], {"int4"}))
@pytest.mark.parametrize(
    "opened", mark_slow([quantized, loaded, loaded_after_a_run], [loaded_after_a_run])
)
def test_pages_change_no_bit(
    opened: Open, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder_model(CONFIG)
    actual = logits(opened(model, weights, tmp_path))
    monkeypatch.setattr(pages, "LEAST_TOTAL_NBYTES", 2**40)
    np.testing.assert_array_equal(actual, logits(opened(model, weights, tmp_path)))
