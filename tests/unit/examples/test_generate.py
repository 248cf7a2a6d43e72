"""The example of generation: greedy tokens are those of onnxruntime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest

import quantglow as qg
from tests.support.decoder import Decoder, decoder_model

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "generate.py"
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow_variants
@pytest.mark.parametrize("fused", [False, True])
def test_tokens_are_those_of_onnxruntime(example: ModuleType, fused: bool) -> None:
    config = Decoder(fused=fused)
    model = decoder_model(config)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    tokens, cache, expected = np.array([PROMPT]), config.empty_cache(1), []
    for _ in range(12):
        outputs = session.run(None, config.feeds(tokens, cache))
        tokens, cache = outputs[0][:, -1:].argmax(-1), config.next_cache(outputs)
        expected.append(tokens.item())
    assert list(example.generated(qg.compile(model, num_threads=1), PROMPT, 12)) == expected


def test_drawn_tokens_depend_on_the_temperature(example: ModuleType) -> None:
    scores = np.array([0.0, 4.0, 1.0])
    cold, hot = (example.sampler(temperature) for temperature in (0.1, 100.0))
    assert {cold(scores) for _ in range(20)} == {1}
    assert {hot(scores) for _ in range(50)} == {0, 1, 2}
