"""A saved model is the one that was built, bit for bit, at every shape and in every order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.api.pipeline.calibration import calibrate
from quantglow.api.pipeline.compilation import compile_quantized
from quantglow.api.pipeline.quantization import prepare_quantization, quantize_cases
from quantglow.api.pipeline.request import QuantizationRequest, import_request
from quantglow.quantization.options import EQUALIZATIONS, QuantizationConfig
from quantglow.runtime.programs.build import Compiler
from tests.generators.onnx_models.free_networks import (
    image_networks,
    recurrent_networks,
    transformers,
)
from tests.generators.onnx_models.network_drawing import Network, Sample, Shape
from tests.support.combinations import mark_slow
from tests.support.effort import very_expensive

Shapes = tuple[Shape, ...]
"""One shape for each input."""

FAMILIES = {
    "image": image_networks(),
    "transformer": transformers(),
    "recurrent": recurrent_networks(),
}


def built_model(model: Network, config: QuantizationConfig, threads: int) -> Any:
    """The result of ``quantize_and_compile`` with any techniques, without the check."""
    samples = [model.sample(shape, seed) for seed in range(2) for shape in model.calibrated]
    request = QuantizationRequest(
        config=config, subset_size=len(samples), progress=False, verify=False
    )
    built = quantize_cases(
        prepare_quantization(calibrate(import_request(model.proto, samples), request), request)
    )
    return compile_quantized(built, Compiler.of("native", threads))


def outputs(compiled: Any, model: Network, shapes: list[Shapes]) -> dict[Shapes, list[Any]]:
    """The outputs at each shape, run in this order."""
    return {shape: compiled.run(None, feeds(model, shape)) for shape in shapes}


def feeds(model: Network, shape: Shapes) -> Sample:
    return model.sample(shape, 9)


@pytest.mark.parametrize("family", mark_slow(FAMILIES, {"image"}))
@very_expensive
@given(data=st.data())
def test_a_loaded_model_is_the_built_one_at_every_shape(family: str, data: st.DataObject) -> None:
    model = data.draw(FAMILIES[family])
    config = QuantizationConfig(
        equalization=tuple(data.draw(st.sets(st.sampled_from(EQUALIZATIONS)))),
        recovery=data.draw(st.sampled_from([(), "auto"])),
        preset=data.draw(st.sampled_from(["mixed", "performance"])),
    )
    threads = data.draw(st.integers(1, 3))
    shapes = [*dict.fromkeys(model.calibrated), *model.others]
    built = built_model(model, config, threads)
    is_run_before = data.draw(st.booleans())
    early = outputs(built, model, shapes[-1:]) if is_run_before else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.qgm"
        built.save(path)
        loaded, again = (qg.load(path, num_threads=threads) for _ in range(2))
        loaded.save(Path(folder) / "second.qgm")
        second = qg.load(Path(folder) / "second.qgm", num_threads=1)
        results = outputs(built, model, data.draw(st.permutations(shapes)))
        assert same(early, {shape: results[shape] for shape in early})
        for value in (loaded, again, second):
            assert same(outputs(value, model, data.draw(st.permutations(shapes))), results)


def same(actual: dict[Shapes, list[Any]], expected: dict[Shapes, list[Any]]) -> bool:
    """Whether the outputs at some shapes have the same shapes and the same bits."""
    return all(
        (one.shape, one.tobytes()) == (other.shape, other.tobytes())
        for shape in expected
        for one, other in zip(actual[shape], expected[shape], strict=True)
    )
