"""``quantglow.ep.quantize`` makes of a session's model one that the provider runs in int8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import quantglow as qg
from quantglow import ep
from tests.support.plug_in import CPU, session
from tests.unit.ep.test_provider import network, picture

OPTIONS: dict[str, Any] = {"num_threads": 1, "effort": "fast", "verify": False, "progress": False}
SAMPLES = [picture(1, 8, seed) for seed in range(8)]


def from_path(folder: Path) -> str:
    onnx.save(network(1, 8), folder / "float.onnx")
    return str(folder / "float.onnx")


def from_session(folder: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(from_path(folder), providers=[CPU])


def from_bytes(folder: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(network(1, 8).SerializeToString(), providers=[CPU])


def from_provider(folder: Path) -> Any:
    return session(from_path(folder))


def from_proto(folder: Path) -> onnx.ModelProto:
    return network(1, 8)


@pytest.mark.parametrize("form", [from_path, from_session, from_bytes, from_provider, from_proto])
def test_the_provider_computes_the_integers_of_the_compiled_model(
    form: Callable[[Path], Any], tmp_path: Path
) -> None:
    quantized = ep.quantize(form(tmp_path), SAMPLES, **OPTIONS)
    compiled = qg.quantize_and_compile(network(1, 8), SAMPLES, **OPTIONS)
    opened = session(quantized)
    for seed in range(20, 24):
        x = picture(1, 8, seed)
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], compiled(x))


def test_the_cpu_provider_is_within_a_few_steps(tmp_path: Path) -> None:
    path = tmp_path / "qdq.onnx"
    ep.quantize(network(1, 8), SAMPLES, path, **OPTIONS)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    plain: Any = onnxruntime.InferenceSession(path, options, [CPU])
    opened = session(str(path))
    for seed in range(20, 24):
        feeds = {"x": picture(1, 8, seed)}
        (expected,), (actual,) = plain.run(None, feeds), opened.run(None, feeds)
        assert np.abs(actual - expected).max() <= 0.02 * np.abs(expected).max()


def test_free_dimensions_stay_free(tmp_path: Path) -> None:
    samples = [picture(1, height, height) for height in (6, 8, 10, 8)]
    opened = session(ep.quantize(network(), samples, **OPTIONS))
    compiled = qg.quantize_and_compile(network(), samples, **OPTIONS)
    for batch, height in ((1, 8), (2, 6), (3, 12)):
        x = picture(batch, height)
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], compiled(x))


def test_a_session_without_its_model_is_refused_with_a_remedy() -> None:
    opened = from_bytes(Path())
    opened._model_bytes = None
    with pytest.raises(qg.OptionError, match="Remedy: pass the path of the model"):
        ep.quantize(opened, SAMPLES)


def test_wrong_options_are_those_of_quantize_and_compile() -> None:
    with pytest.raises(qg.OptionError, match="presets"):
        ep.quantize(network(1, 8), SAMPLES, presets="mixed")
