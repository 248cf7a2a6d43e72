"""Generation with a cache that grows: few programs serve all its lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnxruntime
import pytest

import quantglow as qg
from quantglow.importer.onnx.operators.nn import attention
from quantglow.runtime.compiled import CompiledModel
from tests.support.combinations import mark_slow
from tests.support.decoder import Decoder, decoder_model

DECODER = Decoder()
ATOL = 2e-5


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    compiled = qg.compile(decoder_model(DECODER), num_threads=1)
    assert isinstance(compiled, CompiledModel)
    return compiled


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(decoder_model(DECODER).SerializeToString())


def prompt(batch: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, DECODER.vocabulary, (batch, length))


def assert_generates(
    compiled: CompiledModel,
    session: onnxruntime.InferenceSession,
    tokens: np.ndarray,
    count: int,
    config: Decoder = DECODER,
) -> None:
    """The same logits and tokens as onnxruntime's, each of which runs on its own cache."""
    ours = other = config.empty_cache(len(tokens))
    for _ in range(count):
        results = compiled.run(None, config.feeds(tokens, ours))
        expected = session.run(None, config.feeds(tokens, other))
        for mine, its in zip(results, expected, strict=True):
            np.testing.assert_allclose(mine, its, atol=ATOL)
        ours, other = config.next_cache(results), config.next_cache(expected)
        tokens = results[0][:, -1:].argmax(-1)
        np.testing.assert_array_equal(tokens, expected[0][:, -1:].argmax(-1))


def programs_of(compiled: CompiledModel) -> int:
    """The number of programs for which code was made."""
    return len(compiled.specialisations.served())


@pytest.mark.slow
def test_300_tokens_take_three_programs(session: onnxruntime.InferenceSession) -> None:
    compiled = qg.compile(decoder_model(DECODER), num_threads=1)
    assert isinstance(compiled, CompiledModel)
    # A cache of 6 rows, and the new one, are shorter than a vector of 256 bits.
    assert_generates(compiled, session, prompt(1, 6), 300)
    assert programs_of(compiled) == 3  # the prompt, and tokens behind short and long caches


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "length"), [(3, 20), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_batches_generate(batch: int, length: int, session: onnxruntime.InferenceSession) -> None:
    compiled = qg.compile(decoder_model(DECODER), num_threads=1)
    assert isinstance(compiled, CompiledModel)
    assert_generates(compiled, session, prompt(batch, length), 40)
    assert programs_of(compiled) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("batch", mark_slow([1, 3], {3}))
def test_decoders_of_onnxruntimes_operators_generate(batch: int) -> None:
    config = Decoder(fused=True)
    model = decoder_model(config)
    compiled = qg.compile(model, num_threads=1)
    assert isinstance(compiled, CompiledModel)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert_generates(compiled, session, prompt(batch, 7), 60, config)
    assert not compiled.build.fallback
    assert programs_of(compiled) <= 4


@pytest.mark.slow
def test_long_prompts_are_read_in_blocks() -> None:
    """Memory grows with the length of a prompt, not with its square; one program serves all."""
    config = Decoder(fused=True, layers=1)
    model = decoder_model(config)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    most = patch.object(attention, "MOST_SCORES", 4 * 64 * 64)
    with most, patch.object(attention, "BLOCK_ROWS", 16):
        compiled = qg.compile(model, num_threads=1)
        arenas = {}
        for length in (100, 101, 96, 255, 200, 400):
            feeds = config.feeds(prompt(1, length), config.empty_cache(1))
            for mine, its in zip(compiled.run(None, feeds), session.run(None, feeds), strict=True):
                np.testing.assert_allclose(mine, its, atol=ATOL)
            arenas[length] = arena_nbytes(compiled, feeds)
    assert arenas[400] < 2.2 * arenas[200]
    assert programs_of(compiled) == 1


def arena_nbytes(compiled: CompiledModel, feeds: dict[str, np.ndarray]) -> int:
    """The memory of a call."""
    executable: Any = compiled.specialisations.at(feeds).build.executable
    return int(executable.binding.arena_nbytes)


@pytest.mark.slow
def test_parts_of_a_prompt_give_what_all_of_it_gives(compiled: CompiledModel) -> None:
    tokens = prompt(1, 60)
    (whole, *caches) = compiled.run(None, DECODER.feeds(tokens, DECODER.empty_cache(1)))
    cache, logits = DECODER.empty_cache(1), []
    for begin, end in ((0, 20), (20, 31), (31, 57), (57, 60)):
        results = compiled.run(None, DECODER.feeds(tokens[:, begin:end], cache))
        cache = DECODER.next_cache(results)
        logits.append(results[0])
    np.testing.assert_allclose(np.concatenate(logits, axis=1), whole, atol=ATOL)
    for mine, its in zip(cache.values(), caches, strict=True):
        np.testing.assert_allclose(mine, its, atol=ATOL)


def test_hidden_tokens_of_a_batch_change_nothing(
    compiled: CompiledModel, session: onnxruntime.InferenceSession
) -> None:
    tokens, cache = prompt(2, 9), DECODER.empty_cache(2)
    feeds = DECODER.feeds(tokens, cache)
    feeds["attention_mask"][0, :4] = 0
    feeds["position_ids"][0] = np.maximum(feeds["position_ids"][0] - 4, 0)
    actual, expected = compiled.run(None, feeds), session.run(None, feeds)
    for mine, its in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine[:, :, 4:], its[:, :, 4:], atol=ATOL)


@pytest.mark.slow
def test_a_program_of_a_prompt_is_saved(compiled: CompiledModel, tmp_path: Path) -> None:
    cache = DECODER.empty_cache(1)
    compiled.run(None, DECODER.feeds(prompt(1, 7), cache))
    compiled.save(tmp_path / "decoder.qgm")
    loaded = qg.load(tmp_path / "decoder.qgm")
    for length in (7, 12):
        feeds = DECODER.feeds(prompt(1, length), cache)
        for mine, its in zip(loaded.run(None, feeds), compiled.run(None, feeds), strict=True):
            np.testing.assert_array_equal(mine, its)
