"""Networks that PyPI packages ship run compiled, as they are: silero-vad (both sampling rates, its
state carried from call to call) and magika.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import quantglow as qg
from benchmarks.wheels import wheel_member
from quantglow.types import DType

CHUNKS = {16000: (512, 64), 8000: (256, 32)}
"""Sampling rate -> new samples of a call, and old ones before them."""


def member(requirement: str, name: str, file: str) -> str:
    try:
        return str(wheel_member(requirement, name, file))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{requirement} cannot be downloaded: {error}")


@pytest.fixture(scope="module")
def silero() -> str:
    wheel = "silero-vad==6.2.3"
    return member(wheel, "silero_vad/data/silero_vad.onnx", "silero_vad-6.2.3.onnx")


@pytest.fixture(scope="module")
def magika() -> str:
    wheel = "magika==1.0.3"
    return member(wheel, "magika/models/standard_v3_3/model.onnx", "magika-1.0.3.onnx")


def session(path: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options)


def voice(rate: int, seconds: float) -> np.ndarray:
    """Harmonics of a moving pitch with pauses, over noise: what the network takes for speech."""
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * t)) / rate
    tone = sum(np.sin(k * phase) / k for k in range(1, 12)) * (np.sin(3 * np.pi * t) > 0)
    noise = np.random.default_rng(rate).standard_normal(len(t))
    return (0.2 * tone + 0.01 * noise).astype(np.float32)


def calls(model: Any, rate: int, seconds: float) -> Iterator[tuple[dict[str, Any], float]]:
    """Feeds and probability of each call; the state goes from call to call."""
    new, old = CHUNKS[rate]
    sound = np.concatenate([np.zeros(old, np.float32), voice(rate, seconds)])
    state = np.zeros((2, 1, 128), np.float32)
    for start in range(old, len(sound) - new, new):
        chunk = sound[None, start - old : start + new]
        feeds = {"input": chunk, "state": state, "sr": np.array(rate)}
        probability, state = model.run(None, feeds)
        yield feeds, float(probability[0, 0])


def probabilities(model: Any, rate: int, seconds: float = 3) -> np.ndarray:
    return np.array([found for _, found in calls(model, rate, seconds)])


@pytest.fixture(scope="module")
def float_vad(silero: str) -> Any:
    return qg.compile(silero, num_threads=1)


@pytest.fixture(scope="module")
def int8_vad(silero: str) -> Any:
    reference = session(silero)
    samples = [feeds for rate in CHUNKS for feeds, _ in calls(reference, rate, 2)]
    return qg.quantize_and_compile(silero, samples, num_threads=1, progress=False)


@pytest.mark.parametrize("rate", CHUNKS)
def test_float_voice_activity_is_that_of_onnxruntime(
    silero: str, float_vad: Any, rate: int
) -> None:
    expected = probabilities(session(silero), rate)
    assert expected.max() > 0.3 > 0.1 > expected.min()
    np.testing.assert_allclose(probabilities(float_vad, rate), expected, atol=1e-4)


def test_both_rates_are_compiled_without_onnxruntime(float_vad: Any) -> None:
    for rate in CHUNKS:
        probabilities(float_vad, rate, 0.2)
    programs = float_vad.specialisations
    assert [len(p.build.programs) for p in programs._ready.values()] == [1, 1]
    assert programs.deciding == ("sr",)


@pytest.mark.parametrize("rate", CHUNKS)
def test_int8_voice_activity_follows_float(silero: str, int8_vad: Any, rate: int) -> None:
    """Though each call begins with the state that the call before gave.  Measured: 0.003, 0.004;
    with gates, states and the power spectrum in int8 0.02 and 0.1."""
    expected = probabilities(session(silero), rate)
    assert np.abs(probabilities(int8_vad, rate) - expected).mean() < 0.008


@pytest.mark.parametrize("rate", CHUNKS)
def test_int8_voice_activity_is_that_of_the_interpreter(int8_vad: Any, rate: int) -> None:
    for feeds, found in calls(int8_vad, rate, 0.2):
        graph = int8_vad.specialisations.at(feeds).graph
        assert any(node.op == "Conv" and node.type.dtype is DType.I8 for node in graph.nodes)
        # The last operator is a Sigmoid in float.
        assert found == pytest.approx(float(qg.interpret(graph, feeds)[0][0, 0]), abs=1e-6)


def test_a_saved_int8_model_knows_both_rates(int8_vad: Any, tmp_path: Path) -> None:
    int8_vad.save(tmp_path / "vad.qgm")
    loaded = qg.load(tmp_path / "vad.qgm", num_threads=1)
    for rate in CHUNKS:
        expected = probabilities(int8_vad, rate, 0.5)
        np.testing.assert_array_equal(probabilities(loaded, rate, 0.5), expected)


def files(count: int) -> list[np.ndarray]:
    """Texts and random bytes, as magika takes a file: 1024 tokens of its begin, 1024 of its end."""
    rng = np.random.default_rng(0)
    texts = [p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py"))]
    found = []
    for i in range(count):
        data = texts[i % len(texts)] if i % 3 else rng.integers(0, 256, 5000).astype("u1").tobytes()
        tokens = np.frombuffer(data[:1024].ljust(1024) + data[-1024:].rjust(1024), np.uint8)
        found.append(tokens.astype(np.int32)[None])
    return found


def test_float_magika_is_that_of_onnxruntime(magika: str) -> None:
    compiled, reference = qg.compile(magika, num_threads=1), session(magika)
    for tokens in files(3):
        (expected,) = reference.run(None, {"bytes": tokens})
        np.testing.assert_allclose(compiled(tokens), expected, atol=1e-4)


def test_int8_magika_names_the_same_types(magika: str) -> None:
    compiled = qg.quantize_and_compile(magika, files(6), num_threads=1, progress=False)
    reference = session(magika)
    for tokens in files(3):
        (expected,) = reference.run(None, {"bytes": tokens})
        assert np.argmax(compiled(tokens)) == np.argmax(expected)
