"""Advice names the cause, and flags that the command line takes for the layer meant."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

import pytest

import quantglow as qg
from quantglow.cli.arguments import parse_config
from quantglow.cli.main import parser
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.quantization.plan.scope import match_names
from quantglow.report import CodeUse, LayerAccuracy
from quantglow.report.sections import (
    CLIP,
    GOOD_DB,
    GOOD_LOCAL_DB,
    NEAR_DB,
    SHOWN,
    WIDEN,
    Remedy,
    advice,
    option_flag,
)
from tests.support.small_network import small_model, small_samples
from tests.unit.report.test_webpage import data_of

WELL = CodeUse(-1.0, 1.0, levels=256, used=250, saturation=0.0, seen=1.0, core=0.9)
NASTY = ("a b", "it's", "$(touch x)", "a*[b]", "re:a", "-v", "--seed", "a\nb", "</script>", "é")


def layer(name: str, alone: float | None, use: CodeUse | None = WELL) -> LayerAccuracy:
    return LayerAccuracy(name, "Conv", "int8", "", 30.0, None, alone, use)


def remedies(use: CodeUse, outside: float = 0.0) -> tuple[Remedy, ...]:
    (actual,) = advice([layer("a", 20.0, use)], (), {"a": outside})
    return actual.remedies


def test_outliers_are_clipped_first() -> None:
    assert remedies(replace(WELL, core=0.1))[0].flag == CLIP


def test_a_narrow_range_is_widened_first() -> None:
    assert remedies(WELL, outside=0.01)[0].flag == WIDEN


def test_a_layer_that_uses_its_codes_is_mended_alone() -> None:
    flags = [remedy.flag for remedy in remedies(WELL)]
    assert flags == ["--nodes-to-exclude a", "--int16-activations a"]


def test_int16_is_no_advice_for_int16() -> None:
    assert len(remedies(replace(WELL, levels=65536, used=60000))) == 1


def test_few_codes_are_named() -> None:
    (actual,) = advice([layer("a", 20.0, replace(WELL, used=9))])
    assert "9 of 256" in actual.finding


def test_good_layers_get_no_advice() -> None:
    lines = advice([layer("a", GOOD_DB), layer("b", math.inf), layer("c", GOOD_DB - 1)])
    assert [each.layer for each in lines] == ["c"]
    assert advice([layer("a", GOOD_DB)]) == []


@pytest.mark.parametrize(("local", "count"), [(GOOD_LOCAL_DB, 0), (GOOD_LOCAL_DB - 1, 1)])
def test_without_sensitivity_the_local_error_counts(local: float, count: int) -> None:
    assert len(advice([replace(layer("a", None), sqnr_local_db=local)])) == count


def test_the_worst_layers_come_first_and_few() -> None:
    layers = [layer(str(i), 10 + i / 2) for i in range(20)]
    assert [value.layer for value in advice(layers)] == [str(i) for i in range(SHOWN)]


def test_layers_that_add_little_get_no_advice() -> None:
    lines = advice([layer("a", 20.0), layer("b", 19.9 + NEAR_DB), layer("c", 20.0 + NEAR_DB)])
    assert [each.layer for each in lines] == ["a", "b"]


def test_noise_powers_add() -> None:
    """Two equal errors: without one of them half of the noise is left, 3 dB less."""
    lines = advice([layer("a", 20.0), layer("b", 20.0)])
    assert "about +3.0 dB" in lines[0].remedies[0].text


def test_the_cost_is_a_share_of_the_time_of_all_layers() -> None:
    speeds = [LayerSpeed("a", "Conv", "int8", 1.5, 1.0), LayerSpeed("b", "Conv", "int8", 9.0, 4.0)]
    (actual,) = advice([layer("a", 20.0)], speeds)
    assert "for +10.0% time" in actual.remedies[0].text


@pytest.mark.parametrize("flag", [CLIP, WIDEN])
def test_the_command_line_takes_flags_for_all_layers(flag: str) -> None:
    options = parser().parse_args(["quantize", "net.onnx", *shlex.split(flag)])
    assert parse_config(options).calibrate_method == flag.split()[1]


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("option", ["--nodes-to-exclude", "--int16-activations"])
def test_a_flag_means_the_layer_of_that_name_only(option: str, name: str) -> None:
    line = ["quantize", "net.onnx", *shlex.split(option_flag(option, name))]
    config = parse_config(parser().parse_args(line))
    (entry,) = (*(config.nodes_to_exclude or ()), *config.int16_activations)
    names = dict.fromkeys([*NASTY, "a", "ab", "ax[b]"])
    assert match_names(entry, {n: (n,) for n in names}) == [name]


def test_flags_have_no_characters_that_a_terminal_obeys() -> None:
    assert option_flag("--nodes-to-exclude", "a\x1b[201~\nrm b").isprintable()


def test_a_layer_that_moves_values_is_not_kept_in_float() -> None:
    (actual,) = advice([replace(layer("a", 20.0), op="Transpose", moves=True)])
    assert [remedy.flag for remedy in actual.remedies] == ["--int16-activations a"]


def diagnosis(flags: list[str]) -> qg.Diagnosis:
    """A diagnosis as the command line makes it, of a network without other help for accuracy."""
    line = ["debug", "a.onnx", "--calibration-data", "b.npz", "--recovery", "none"]
    options = parser().parse_args([*line, "--equalization", "none", *flags])
    config = parse_config(options)
    return qg.diagnose(small_model(), small_samples(32), config, samples=32, progress=False)


@pytest.mark.parametrize(
    "flags",
    [["--calibrate-method", "minmax"], ["--calibrate-method", "percentile", "--percentile", "90"]],
    ids=["rounding", "clipping"],
)
def test_the_first_remedy_of_each_layer_mends(flags: list[str]) -> None:
    """The SQNR of the worst output rises."""
    before = diagnosis(flags)
    actual = data_of(before.to_html())
    assert isinstance(actual, dict)
    assert actual["advice"]
    for entry in actual["advice"]:
        after = diagnosis([*flags, *shlex.split(entry["remedies"][0]["flag"])])
        assert worst_db(after) > worst_db(before), entry


def worst_db(actual: qg.Diagnosis) -> float:
    return min(output.sqnr_db for output in actual.outputs)
