"""Layers stay float where the whole program is faster for it, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.call_profile import CallTime
from quantglow.evaluation import layer_speed as speed
from quantglow.evaluation.layer_speed import LayerSpeed, SpeedSearch, layer_milliseconds, slower
from quantglow.support.arrays import Array
from tests.support.small_network import small_model, small_samples


@dataclass(frozen=True)
class Timed:
    """A program of which only its time is known."""

    seconds: float

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        return []


def search(gains: Mapping[str, float], conversion: float, layers: str) -> list[str]:
    """Layers kept in float if each has a gain in ``gains``.

    Every change between float and int8 along the chain costs ``conversion``; int8 takes 100 in all.
    """

    def build(kept: Sequence[str]) -> Timed:
        changes = sum((a in kept) != (b in kept) for a, b in pairwise(layers))
        return Timed(100 - sum(gains.get(name, -10.0) for name in kept) + conversion * changes)

    def ratio(one: object, other: object) -> float:
        assert isinstance(one, Timed)
        assert isinstance(other, Timed)
        return one.seconds / other.seconds

    worst_first = sorted(gains, key=lambda name: -gains[name])
    return SpeedSearch(build, ratio).run(worst_first, list(layers))


@pytest.mark.parametrize(
    ("gains", "conversion", "kept"),
    [
        ({}, 1.0, ""),
        ({"b": 20.0, "e": 9.0}, 1.0, "be"),
        ({"b": 20.0, "e": 3.0}, 2.0, "be"),
        ({"b": 20.0, "e": 3.0}, 8.0, "b"),
        ({"b": 20.0, "e": 3.0}, 30.0, ""),
        (dict.fromkeys("abcdef", 5.0), 50.0, "abcdef"),
        ({"b": 1.0}, 0.0, ""),
    ],
    ids=["none slower", "all slower", "still worth it", "one", "conversions", "whole", "noise"],
)
def test_layers_stay_float_where_the_whole_gains(
    gains: dict[str, float], conversion: float, kept: str
) -> None:
    assert sorted(search(gains, conversion, "abcdef")) == list(kept)


def call(name: str, seconds: float) -> CallTime:
    return CallTime(
        name=name, op="Conv", label="", seconds=seconds, work=1.0, macs=1, nbytes=1, is_integer=True
    )


def test_helpers_count_for_their_layer() -> None:
    calls = [call("a", 1.0), call("a:pad", 2.0), call("tf/b:0", 3.0), call("tf/b:0:nchw:x", 4.0)]
    actual = layer_milliseconds([*calls, call("input", 9.0)], ["a", "tf/b:0", "gone"])
    assert actual == {"a": 3000.0, "tf/b:0": 7000.0, "gone": 0.0}


def test_the_worst_loser_comes_first() -> None:
    times = {"wins": (3.0, 1.0), "loses": (1.0, 2.0), "loses most": (1.0, 5.0), "even": (1.0, 1.0)}
    speeds = [LayerSpeed(name, "Conv", "int8", *pair) for name, pair in times.items()]
    assert slower(speeds) == ["loses most", "loses"]


@pytest.mark.parametrize(("whole", "precision"), [(0.5, "float"), (2.0, "int8")])
def test_the_report_shows_what_was_measured_and_chosen(
    whole: float, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Times are faked: all trials win, or none.
    monkeypatch.setattr(
        "quantglow.api.pipeline.quantization.time_ratio", lambda one, other, feeds: whole
    )
    model = small_model()
    compiled = qg.quantize_and_compile(
        model, small_samples(), measure_speed=True, verify=False, num_threads=1
    )
    assert isinstance(compiled, qg.CompiledModel)
    speeds = compiled.report.speeds
    assert {s.precision for s in speeds} == {precision}
    assert all(s.float_ms >= 0 and s.int8_ms >= 0 for s in speeds)
    chosen = {layer.name: layer.precision for layer in compiled.report.layers}
    assert {chosen[s.name] for s in speeds} == {precision}
    compiled.save(tmp_path / "model.qgm")
    assert qg.load(tmp_path / "model.qgm").report.speeds == speeds


def test_a_profile_has_no_samples_to_measure_on() -> None:
    profile = qg.profile(small_model(), small_samples())
    with pytest.raises(qg.CalibrationError, match="measure speed"):
        qg.quantize_and_compile(small_model(), profile, measure_speed=True)


def test_a_program_takes_the_time_of_itself() -> None:
    compiled = qg.compile(small_model(), num_threads=1)
    program = compiled.build.executable
    ratio = speed.time_ratio(program, program, {"x": small_samples()[0]})
    assert np.isfinite(ratio)
    assert ratio > 0
