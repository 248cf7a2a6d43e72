"""Models that onnxruntime runs have the public names and signatures of compiled ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from tests.unit.runtime.test_fallback import positions

ABSENT = {"graph", "build", "specialisations"}
"""Attributes that only a compiled model has."""


def public(kind: type[Any]) -> set[str]:
    actual = {*dir(kind), *(field.name for field in fields(kind))}
    return {name for name in actual if not name.startswith("_")}


@pytest.fixture(scope="module")
def model() -> qg.FallbackModel:
    compiled = qg.compile(positions()[0], num_threads=1)
    assert isinstance(compiled, qg.FallbackModel)
    return compiled


def test_all_public_names_are_there_or_explained() -> None:
    assert public(qg.CompiledModel) - public(qg.FallbackModel) == ABSENT
    assert all(f"{name}``" in (qg.FallbackModel.__doc__ or "") for name in ABSENT)


def test_all_signatures_are_equal() -> None:
    def signatures(owner: type[Any]) -> dict[str, Any]:
        actual = {name: getattr(owner, name, None) for name in public(qg.CompiledModel)}
        return {n: inspect.signature(f).parameters for n, f in actual.items() if callable(f)}

    assert signatures(qg.FallbackModel) == signatures(qg.CompiledModel)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, path: model.new_state(), "compiled whole.*Remedy: feed the caches"),
        (lambda model, path: model.export_bundle(path), "onnxruntime.*node '.*Remedy: cut"),
        (lambda model, path: model.save(path), "nothing of this model.*Remedy: keep the ONNX"),
        (lambda model, path: model.save(path, include="native"), "include"),
        (lambda model, path: model.export_onnx(path, shapes=None), "shapes"),
        (lambda model, path: model.export_onnx(path, {"x": (2, 3)}), "leave input_shapes out"),
        (lambda model, path: model.export_bundle(path, nam="n"), "name"),
    ],
)
def test_impossible_calls_say_why_and_write_nothing(
    model: Any, call: Callable[..., object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(qg.OptionError, match=message):
        call(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_float_model_has_no_profile(model: Any) -> None:
    assert model.profile is None
