"""Networks out of PyPI packages run compiled, unaltered.

These are silero-vad (both sampling rates, with its state passed from call to call), magika, and the
spectra before speech recognizers of onnx-asr.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import quantglow as qg
from quantglow.ir.types import DType
from tests.support.combinations import mark_slow
from tools.downloads.silero_vad import CHUNKS, calls, model_file
from tools.downloads.wheels import wheel_member

CALIBRATION_SECONDS = 2.0
SPECTRA = ["gigaam_v2", "kaldi", "nemo80", "whisper80"]


def session(model: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options)


def fetched(file: Callable[[], Any]) -> str:
    """The path of a file.

    The tests are skipped only if no package index is reached; any other failure is an error.
    """
    try:
        return str(file())
    except ConnectionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def silero() -> str:
    return fetched(model_file)


@pytest.fixture(scope="module")
def magika() -> str:
    file = "magika/models/standard_v3_3/model.onnx"
    return fetched(lambda: wheel_member("magika==1.0.3", file, "magika-1.0.3.onnx"))


def probabilities(model: Any, rate: int, seconds: float = 3) -> np.ndarray:
    return np.array([value for _, value in calls(model, rate, seconds)])


@pytest.fixture(scope="module")
def float_vad(silero: str) -> Any:
    return qg.compile(silero, num_threads=1)


@pytest.fixture(scope="module")
def int8_vad(silero: str) -> Any:
    reference = session(silero)
    samples = [feeds for rate in CHUNKS for feeds, _ in calls(reference, rate, CALIBRATION_SECONDS)]
    return qg.quantize_and_compile(silero, samples, num_threads=1, progress=False)


@pytest.mark.slow_variants
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
    fed = [feeds for rate in CHUNKS for feeds, _ in calls(float_vad, rate, 0.2)]
    assert not any(programs.at(feeds).build.fallback for feeds in fed)
    assert programs.deciding == ("sr",)


@pytest.mark.slow_variants
@pytest.mark.parametrize("rate", CHUNKS)
def test_int8_voice_activity_follows_float(silero: str, int8_vad: Any, rate: int) -> None:
    """Each call begins with the state of the call before.  Measured: 0.003, 0.004; with gates,
    states and the power spectrum in int8 0.02 and 0.1.
    """
    expected = probabilities(session(silero), rate)
    assert np.abs(probabilities(int8_vad, rate) - expected).mean() < 0.008


@pytest.mark.parametrize("rate", CHUNKS)
def test_int8_voice_activity_is_that_of_the_interpreter(int8_vad: Any, rate: int) -> None:
    for feeds, value in calls(int8_vad, rate, 0.2):
        graph = int8_vad.specialisations.at(feeds).graph
        assert any(node.op == "Conv" and node.type.dtype is DType.I8 for node in graph.nodes)
        # The last operator is a Sigmoid in float.
        assert value == pytest.approx(float(qg.interpret(graph, feeds)[0][0, 0]), abs=1e-6)


@pytest.mark.slow
def test_a_saved_int8_model_knows_both_rates(int8_vad: Any, tmp_path: Path) -> None:
    int8_vad.save(tmp_path / "vad.qgm")
    loaded = qg.load(tmp_path / "vad.qgm", num_threads=1)
    for rate in CHUNKS:
        expected = probabilities(int8_vad, rate, 0.5)
        np.testing.assert_array_equal(probabilities(loaded, rate, 0.5), expected)


def files(count: int) -> list[np.ndarray]:
    """Texts and random bytes in the form that magika reads: 1024 tokens of the begin, 1024 of the
    end.
    """
    rng = np.random.default_rng(0)
    texts = [p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py"))]
    collected = []
    for i in range(count):
        data = texts[i % len(texts)] if i % 3 else rng.integers(0, 256, 5000).astype("u1").tobytes()
        tokens = np.frombuffer(data[:1024].ljust(1024) + data[-1024:].rjust(1024), np.uint8)
        collected.append(tokens.astype(np.int32)[None])
    return collected


@pytest.mark.slow
def test_float_magika_is_that_of_onnxruntime(magika: str) -> None:
    compiled, reference = qg.compile(magika, num_threads=1), session(magika)
    for tokens in files(3):
        (expected,) = reference.run(None, {"bytes": tokens})
        np.testing.assert_allclose(compiled(tokens), expected, atol=1e-4)


@pytest.mark.slow
def test_int8_magika_names_the_same_types(magika: str) -> None:
    """Its layer normalizations take roots of variances: 30 dB and more; 2 dB with these in int8."""
    compiled = qg.quantize_and_compile(magika, files(6), num_threads=1, progress=False)
    reference = session(magika)
    for tokens in files(9):
        (expected,) = reference.run(None, {"bytes": tokens})
        compiled_model = compiled(tokens)
        assert np.argmax(compiled_model) == np.argmax(expected)
        assert np.abs(compiled_model - expected).max() < 0.05


WAVE = 16000


def spectra(name: str) -> str:
    member = f"onnx_asr/preprocessors/data/{name}.onnx"
    return fetched(lambda: wheel_member("onnx-asr==0.12.0", member, f"onnx-asr-{name}.onnx"))


def waves(count: int) -> list[dict[str, np.ndarray]]:
    """Harmonics that swell and fade, one second each."""
    rng, time = np.random.default_rng(1), np.arange(WAVE) / WAVE
    collected = []
    for _ in range(count):
        pitch, beat = rng.uniform(90, 260), rng.uniform(1, 4)
        tones = [np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 25)]
        loud = 0.15 * np.clip(np.sin(2 * np.pi * beat * time), 0, 1)
        wave = loud * np.sum(tones, axis=0) + 0.0005 * rng.normal(size=WAVE)
        collected.append({"waveforms": wave[None].astype("f4"), "waveforms_lens": np.array([WAVE])})
    return collected


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_slow(SPECTRA, SPECTRA[1:3]))
@pytest.mark.parametrize("form", mark_slow(["", "_conv"], {""}))
def test_spectra_are_those_of_onnxruntime(name: str, form: str) -> None:
    """The reference is its version with convolutions: its STFT of 400 samples is off by half in the
    logarithm near 0.
    """
    compiled = qg.compile(spectra(name + form), num_threads=1)
    reference = session(spectra(f"{name}_conv"))
    (feeds,) = waves(1)
    for value, expected in zip(compiled.run(None, feeds), reference.run(None, feeds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_need_no_onnxruntime(name: str) -> None:
    (feeds,) = waves(1)
    compiled = qg.compile(spectra(name), num_threads=1)
    compiled.run(None, feeds)
    assert not compiled.report.fallback


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_slow(["nemo80_conv", "whisper80_conv"], {"nemo80_conv"}))
def test_int8_does_not_flatten_logarithms(name: str) -> None:
    """Measured: 116 and 33 dB; 5 dB with the operands of logarithms in int8."""
    path = spectra(name)
    compiled = qg.quantize_and_compile(path, waves(12), num_threads=1, progress=False)
    (feeds,) = waves(13)[12:]
    actual, expected = compiled.run(None, feeds)[0], session(path).run(None, feeds)[0]
    noise = np.square(actual - expected, dtype=np.float64).sum()
    assert np.square(expected - expected.mean()).sum() > 10**2.5 * noise
