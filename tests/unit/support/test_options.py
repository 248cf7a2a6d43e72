"""Options are declared once: what a declaration gives, on one that is made up here."""

from __future__ import annotations

import argparse
import inspect
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.api.bisect import BisectArguments
from quantglow.api.compare import CompareArguments
from quantglow.api.compile import CompileArguments
from quantglow.api.diagnose import DiagnoseArguments
from quantglow.api.import_model import ImportArguments
from quantglow.api.load import LoadArguments
from quantglow.api.pipeline.request import QuantizationArguments, QuantizationRequest
from quantglow.api.profile import ProfileArguments
from quantglow.cli.arguments import option_flags, option_values
from quantglow.cli.flags import file_words
from quantglow.quantization.options import QuantizationConfig
from quantglow.support.options import (
    COUNT,
    Options,
    declarations,
    document,
    option,
    options_table,
    own_flags,
    select_options,
    takes_options,
)


@document
@dataclass(frozen=True, kw_only=True, repr=False)
class LoudConfig(QuantizationConfig):
    """A configuration."""

    loudness: int = option(3, COUNT, "how loud the fan may be beside ``seed``, in % of all fans")


@dataclass(frozen=True, kw_only=True, repr=False)
class LoudArguments(QuantizationArguments, LoudConfig):
    """Arguments."""


@takes_options(LoudArguments)
def quantize_loudly(options: LoudArguments) -> tuple[Any, int]:
    """Quantize loudly.

    It is loud.
    """
    return options.model, select_options(options, LoudConfig).loudness


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    option_flags(parser, ["loudness", "seed"], LoudArguments)
    return parser.parse_args(words)


def test_the_signature_has_it() -> None:
    parameter = inspect.signature(quantize_loudly).parameters["loudness"]
    assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, 3)
    assert inspect.signature(quantize_loudly).return_annotation == "tuple[Any, int]"


def test_functions_take_what_they_took_by_position() -> None:
    def shown(function: Any) -> str:
        positions = [
            each.replace(annotation=inspect.Parameter.empty)
            for each in inspect.signature(function).parameters.values()
            if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        return ", ".join(map(str, positions))

    assert shown(qg.import_model) == "model, input_shapes=None"
    assert shown(qg.profile) == "model, calibration_data"
    assert shown(qg.diagnose) == "model, calibration_data, config=None"
    assert shown(qg.compare) == "model, calibration_data"
    assert shown(qg.bisect) == "model, data"


def test_the_docstrings_have_it() -> None:
    line = "loudness              how loud the fan may be beside ``seed``, in % of all fans"
    assert line in str(quantize_loudly.__doc__)
    assert line in str(LoudConfig.__doc__)
    assert str(quantize_loudly.__doc__).startswith("Quantize loudly.\n\nmodel  ")
    assert str(quantize_loudly.__doc__).endswith("\n\nIt is loud.")


def test_the_function_and_the_configuration_take_it() -> None:
    assert quantize_loudly("m", None) == ("m", 3)
    assert quantize_loudly("m", None, loudness=5) == ("m", 5)
    assert replace(LoudConfig(loudness=4), seed=1).loudness == 4
    assert LoudConfig(loudness=4).texts["loudness"] == "4"


def test_a_wrong_value_is_named() -> None:
    with pytest.raises(qg.OptionError, match=r"loudness must be at least 1, got 0"):
        quantize_loudly("m", None, loudness=0)
    with pytest.raises(qg.OptionError, match=r"loudness must be an integer, got '3'"):
        LoudConfig(loudness="3")  # type: ignore[arg-type]


def test_a_misspelled_option_is_named_with_the_nearest() -> None:
    with pytest.raises(qg.OptionError, match="quantize_loudly has no option 'loudnes'; did you me"):
        quantize_loudly("m", None, loudnes=3)  # type: ignore[call-arg]


def test_missing_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"quantize_loudly\(\).*argument: 'calibration_data'"):
        quantize_loudly("m")  # type: ignore[call-arg]


def test_the_command_line_has_a_flag() -> None:
    assert option_values(parsed(), ["loudness"]) == {"loudness": 3}
    assert option_values(parsed("--loudness", "7"), ["loudness"]) == {"loudness": 7}


def test_the_help_is_the_same_text_in_flags() -> None:
    parser = argparse.ArgumentParser()
    option_flags(parser, ["loudness"], LoudArguments)
    shown = " ".join(parser.format_help().split())
    assert "how loud the fan may be beside --seed, in % of all fans (default: 3)" in shown


def test_a_file_of_flags_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "flags.toml"
    file.write_text("loudness = 9\n")
    parser = argparse.ArgumentParser()
    option_flags(parser, ["loudness"], LoudArguments)
    assert list(file_words(str(file), "quantize", parser)) == ["--loudness=9"]


def test_recipes_have_the_fields_of_the_configuration() -> None:
    assert LoudConfig(**tomllib.loads("loudness = 2")).loudness == 2


ARGUMENTS = [
    QuantizationArguments,
    CompileArguments,
    LoadArguments,
    ImportArguments,
    ProfileArguments,
    DiagnoseArguments,
    CompareArguments,
    BisectArguments,
]


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_every_argument_is_declared(kind: type[Options]) -> None:
    assert [each.name for each in fields(kind)] == list(declarations(kind))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_help_is_a_sentence_about_a_thing(kind: type[Options]) -> None:
    """No line of a table is wider than a docstring, and no help ends in a full stop."""
    assert all(len(line) <= 100 for line in options_table(kind).splitlines())
    assert [n for n, d in declarations(kind).items() if not d.help or d.help.endswith(".")] == []


def test_flags_of_a_function_are_those_that_its_class_declares() -> None:
    assert own_flags(LoudConfig) == ("loudness",)
    assert own_flags(LoudArguments) == ()
    assert own_flags(CompareArguments) == ("quantizers", "seconds", "peer_minutes")
    assert "client" not in own_flags(ProfileArguments)


def test_a_request_has_the_options_of_the_call() -> None:
    options = QuantizationArguments("m", None, seed=3, max_drop=0.5, subset_size=7, verify=False)
    request = QuantizationRequest.of(options)
    assert request.config == QuantizationConfig(seed=3)
    assert (request.subset_size, request.verify, request.holds_out) == (7, False, False)
    assert request.contract is not None
    assert request.contract.max_drop == 0.5


def test_a_configuration_takes_positions_which_derived_classes_do_not() -> None:
    config = QuantizationConfig("performance", "percentile", 99.9)  # type: ignore[call-arg]
    assert config == QuantizationConfig(
        preset="performance", calibrate_method="percentile", percentile=99.9
    )
    assert replace(config, seed=3).preset == "performance"
    many = [each.default for each in fields(QuantizationConfig)]
    assert QuantizationConfig(*many) == QuantizationConfig()
    with pytest.raises(TypeError, match="positional"):
        QuantizationConfig(*many, 1)
    with pytest.raises(TypeError, match="preset"):
        QuantizationConfig("performance", preset="mixed")  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError, match="positional"):
        LoudConfig("performance")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="quantize_and_compile"):
        qg.quantize_and_compile("net.onnx", None, "mixed")  # type: ignore[call-arg]
