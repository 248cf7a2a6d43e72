"""Bodies of loops with computed trips: profiles of them, and int8 ones from these."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import quantglow as qg
from tests.support.attending_loop import attending_loop, feeds_of
from tests.support.computed_loops import body_of, model_of, node
from tests.unit.importer.onnx.onnx_models import by_onnxruntime
from tests.unit.runtime.saved.test_saving import repacked

FLOAT, INTEGER = TensorProto.FLOAT, TensorProto.INT64
OPTIONS: dict[str, Any] = {"num_threads": 1, "effort": "fast", "progress": False, "verify": False}


@cache
def model() -> onnx.ModelProto:
    return attending_loop(None, start="P", behind=True)


def samples() -> list[dict[str, Any]]:
    return [feeds_of(model(), n, P=1 + n % 3, trips=5 + n) for n in range(6)]


@cache
def profile() -> qg.Profile:
    return qg.profile(model(), samples(), progress=False)


def note_of(compiled: Any) -> str:
    """The sentence of the report about the loop's body."""
    (note,) = [note for note in compiled.report.notes if "the body of the loop" in note]
    return str(note)


def test_a_profile_has_the_values_of_trips() -> None:
    body = profile().bodies["final"]
    assert body.samples == sum(range(5, 11))
    assert {"all keys", "products"} <= body.histograms.keys()


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (5, 2, 0, 1, 4, 3)])
def test_merged_profiles_are_those_of_all_samples(order: tuple[int, ...]) -> None:
    drawn = [samples()[number] for number in order]
    parts = [qg.profile(model(), part, progress=False) for part in (drawn[:2], drawn[2:])]
    assert qg.Profile.merged(parts) == profile()


def test_a_profile_is_saved_with_its_bodies(tmp_path: Path) -> None:
    profile().save(tmp_path / "p.npz")
    assert qg.Profile.load(tmp_path / "p.npz") == profile()


def test_a_profile_with_other_counts_is_refused(tmp_path: Path) -> None:
    profile().save(tmp_path / "p.npz")

    def shorten(members: dict[str, bytes]) -> None:
        members["counts.npy"] = members["counts.npy"][:-8]

    with pytest.raises(qg.FileFormatError, match="Remedy: profile the model again"):
        qg.Profile.load(repacked(tmp_path / "p.npz", shorten))


def test_a_body_is_int8_from_a_profile() -> None:
    compiled = qg.quantize_and_compile(model(), profile(), **OPTIONS)
    assert "in int8" in note_of(compiled)
    assert not [layer for layer in compiled.report.layers if layer.op == "Loop"]
    feeds = feeds_of(model(), 9, P=2, trips=8)
    for one, other in zip(compiled.run(None, feeds), by_onnxruntime(model(), feeds), strict=True):
        assert np.abs(one - other).max() < 0.1 * np.abs(other).max()


def test_the_profile_of_a_model_has_the_trips_that_it_was_quantized_on() -> None:
    compiled = qg.quantize_and_compile(model(), samples(), **OPTIONS)
    assert compiled.profile.bodies.keys() == {"final"}
    assert "in int8" in note_of(qg.quantize_and_compile(model(), compiled.profile, **OPTIONS))


def test_a_profile_without_trips_leaves_the_body_float() -> None:
    """As samples do that lead to none."""
    idle = [feeds_of(model(), n, P=2, trips=0) for n in range(3)]
    without = qg.profile(model(), idle, progress=False)
    assert not without.bodies
    noted = note_of(qg.quantize_and_compile(model(), without, **OPTIONS))
    assert noted.endswith("in float: the profile has no trips of it")
    noted = note_of(qg.quantize_and_compile(model(), idle, **OPTIONS))
    assert noted.endswith("in float: no calibration sample leads to values of it")


def test_each_of_two_loops_has_a_body() -> None:
    """The second one reads what the first one gives, and the same weight; both stack values."""

    def step(prefix: str) -> onnx.GraphProto:
        nodes = [
            node("MatMul", [f"{prefix}s", "w"], ["product"]),
            node("Tanh", ["product"], [f"{prefix}n"]),
            node("Neg", [f"{prefix}n"], [f"{prefix}row"]),
        ]
        ends = {f"{prefix}n": FLOAT, f"{prefix}row": FLOAT}
        return body_of(nodes, {f"{prefix}s": FLOAT}, ends, prefix=prefix)

    nodes = [
        node("Loop", ["trips", "", "x"], ["one", "ones"], body=step("a")),
        node("Loop", ["times", "", "one"], ["two", "twos"], body=step("b")),
        node("ReduceSum", ["ones", "first"], ["all"], keepdims=0),
        node("ReduceSum", ["twos", "first"], ["others"], keepdims=0),
        node("Sum", ["two", "all", "others"], ["both"]),
        node("MatMul", ["both", "w"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    w = {"first": np.array([0]), "w": (rng.normal(size=(32, 32)) / 5).astype(np.float32)}
    inputs = {"x": (FLOAT, ["rows", 32]), "trips": (INTEGER, []), "times": (INTEGER, [])}
    built = model_of(nodes, inputs, {"y": FLOAT}, w)

    def feeds(seed: int, trips: int, times: int) -> dict[str, Any]:
        x = np.random.default_rng(seed).normal(size=(3, 32)).astype(np.float32)
        return {"x": x, "trips": np.array(trips), "times": np.array(times)}

    calibration = [feeds(seed, seed % 4, seed % 3) for seed in range(12)]
    compiled = qg.quantize_and_compile(built, calibration, **OPTIONS)
    notes = [note for note in compiled.report.notes if "the body of the loop" in note]
    assert len(notes) == 2 and all("in int8" in note for note in notes)
    for trips, times in ((3, 2), (0, 2), (3, 0), (1, 1), (0, 0)):
        sample = feeds(trips, trips, times)
        ((actual,), (expected,)) = compiled.run(None, sample), by_onnxruntime(built, sample)
        assert np.abs(actual - expected).max() < 0.1 * max(np.abs(expected).max(), 1)
