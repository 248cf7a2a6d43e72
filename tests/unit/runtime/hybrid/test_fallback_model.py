"""Models that onnxruntime runs have the public names and signatures of compiled ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from tests.unit.runtime.test_fallback import positions
from tests.unit.runtime.test_partly_compiled import detector

pytestmark = pytest.mark.usefixtures("in_parts")

KINDS = [qg.FallbackModel, qg.PartlyCompiledModel]
ABSENT = {"graph", "build"}
"""Attributes that only a model that is compiled whole has."""


def public(kind: type[Any]) -> set[str]:
    actual = {*dir(kind), *(field.name for field in fields(kind))}
    return {name for name in actual if not name.startswith("_")}


@pytest.fixture(scope="module", params=[positions()[0], detector()], ids=["whole", "in part"])
def model(request: pytest.FixtureRequest) -> qg.FallbackModel:
    compiled = qg.compile(request.param, num_threads=1)
    assert isinstance(compiled, qg.FallbackModel)
    return compiled


@pytest.mark.parametrize(
    ("kind", "absent"), [(KINDS[0], {*ABSENT, "specialisations"}), (KINDS[1], ABSENT)]
)
def test_all_public_names_are_there_or_explained(kind: type[Any], absent: set[str]) -> None:
    assert public(qg.CompiledModel) - public(kind) == absent
    assert all(f"{name}``" in (kind.__doc__ or "") for name in absent)


@pytest.mark.parametrize("kind", KINDS)
def test_all_signatures_are_equal(kind: type[Any]) -> None:
    def signatures(owner: type[Any]) -> dict[str, Any]:
        actual = {name: getattr(owner, name, None) for name in public(qg.CompiledModel)}
        return {n: inspect.signature(f).parameters for n, f in actual.items() if callable(f)}

    assert signatures(kind) == signatures(qg.CompiledModel)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, path: model.new_state(), "compiled whole.*Remedy: feed the caches"),
        (lambda model, path: model.export_bundle(path), "onnxruntime.*node '.*Remedy: cut"),
        (lambda model, path: model.save(path, include="native"), "include"),
        (lambda model, path: model.export_onnx(path, shapes=None), "shapes"),
        (lambda model, path: model.export_bundle(path, nam="n"), "name"),
    ],
)
def test_impossible_calls_say_why_and_write_nothing(
    model: Any, call: Callable[..., object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(qg.OptionError, match=message):
        call(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_input_shapes_that_cannot_be_fixed_are_refused(model: Any, tmp_path: Path) -> None:
    is_partly = isinstance(model, qg.PartlyCompiledModel)
    error, message = (qg.InputError, "takes") if is_partly else (qg.OptionError, "leave input_shap")
    with pytest.raises(error, match=message):
        model.export_onnx(tmp_path / "out", input_shapes={"x": (2, 3)})
    assert not (tmp_path / "out").exists()


def test_a_float_model_has_no_profile(model: Any) -> None:
    assert model.profile is None


def test_the_profile_is_that_of_the_quantized_part() -> None:
    samples = [np.random.default_rng(seed).normal(size=(1, 3, 8, 8)) for seed in range(3)]
    compiled = qg.quantize_and_compile(
        detector(), [s.astype(np.float32) for s in samples], verify=False, progress=False
    )
    assert isinstance(compiled, qg.PartlyCompiledModel)
    assert compiled.profile is compiled.head.profile is not None
