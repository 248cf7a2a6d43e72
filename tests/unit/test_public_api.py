"""The public names, and the signature that the design fixes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.codegen.llvm import targets
from quantglow.codegen.llvm.isa.target import Host
from quantglow.support import errors
from tests.support.small_network import small_model, small_samples

API = Path(__file__).parents[2] / "docs/reference/api.md"

SIGNATURE = {
    "model": inspect.Parameter.empty,
    "calibration_data": inspect.Parameter.empty,
    "preset": "mixed",
    "subset_size": 300,
    "ignored_scope": None,
    "model_type": None,
    "max_drop": None,
    "drop_type": "absolute",
    "validation_fn": None,
    "max_minutes": None,
    "calibrate_method": "auto",
    "per_channel": True,
    "nodes_to_exclude": None,
    "op_types_to_quantize": None,
    "int16_activations": (),
    "target": "native",
    "num_threads": None,
    "verify": True,
    "progress": "auto",
    "seed": 0,
}
NAMES = {
    "quantize_and_compile",
    "import_model",
    "profile",
    "quantize",
    "interpret",
    "compile",
    "load",
    "QuantizationConfig",
    "QuantglowError",
    "ModelError",
    "UnsupportedOpError",
    "CalibrationError",
    "ProfileMismatchError",
    "IgnoredScopeError",
    "CompileBudgetError",
    "ImportBudgetError",
    "AccuracyDropError",
    "BackendError",
}


def test_the_fixed_names_exist() -> None:
    assert set(qg.__all__) >= NAMES


def test_every_public_name_resolves() -> None:
    assert all(hasattr(qg, name) for name in qg.__all__)


def tree_of(kind: type[Exception]) -> set[type[Exception]]:
    """A class of ``support.errors`` and those derived from it there; those of other modules are
    caught inside the package, or are one of these to users."""
    ours = [value for value in kind.__subclasses__() if value.__module__ == errors.__name__]
    return {kind}.union(*map(tree_of, ours))


@pytest.mark.parametrize("kind", sorted(tree_of(qg.QuantglowError), key=str))
def test_every_error_is_public_and_documented(kind: type[Exception]) -> None:
    assert kind.__name__ in qg.__all__
    assert f"::: quantglow.{kind.__name__}\n" in API.read_text(encoding="utf-8")
    assert f"── {kind.__name__} " in str(errors.__doc__) or kind is qg.QuantglowError


def test_the_tree_of_errors_is_aligned() -> None:
    branches = [line for line in str(errors.__doc__).splitlines() if "── " in line]
    columns = {len(re.match(r"[^A-Z]*\w+ +", line)[0]) for line in branches}  # type: ignore[index]
    assert len(columns) == 1


def test_quantize_and_compile_has_the_fixed_signature() -> None:
    parameters = inspect.signature(qg.quantize_and_compile).parameters
    defaults = {name: p.default for name, p in parameters.items()}
    assert {name: defaults[name] for name in SIGNATURE} == SIGNATURE


def test_all_options_are_keywords() -> None:
    parameters = list(inspect.signature(qg.quantize_and_compile).parameters.values())
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters[2:])


def test_the_model_type_of_nncf_changes_nothing() -> None:
    """NNCF's changes for transformers are decided for each layer of any model."""
    plain, named = (
        qg.quantize_and_compile(small_model(), small_samples(), verify=False, model_type=kind)
        for kind in (None, "transformer")
    )
    assert str(named.graph) == str(plain.graph)


def test_unknown_model_types_are_refused() -> None:
    with pytest.raises(qg.OptionError, match="did you mean 'transformer'"):
        qg.quantize_and_compile(small_model(), small_samples(), model_type="transformers")


def test_a_validation_function_needs_max_drop() -> None:
    with pytest.raises(qg.OptionError, match="belongs to max_drop"):
        qg.quantize_and_compile(small_model(), small_samples(), validation_fn=len)


def test_minutes_must_be_positive() -> None:
    with pytest.raises(qg.OptionError, match="max_minutes must be positive"):
        qg.quantize_and_compile(small_model(), small_samples(), max_minutes=0)


@pytest.mark.parametrize(
    "option",
    [
        {"preset": "mix"},
        {"calibrate_method": "min-max"},
        {"drop_type": "percent"},
        {"num_threads": 0},
        {"num_threads": True},
        {"subset_size": 0},
    ],
    ids=str,
)
def test_values_that_do_not_exist_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(qg.OptionError, match=next(iter(option))):
        qg.quantize_and_compile(small_model(), small_samples(), **option)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(qg.BackendError, match="unknown target 'pdp-11'"):
        qg.compile(small_model(), target="pdp-11")


def test_a_target_that_does_not_run_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "host", lambda: Host("x86_64-linux", "old", "+sse2"))
    targets.resolve.cache_clear()
    with pytest.raises(qg.BackendError, match="'avx2' does not run here: this processor lacks"):
        qg.compile(small_model(), target="avx2")


def test_missing_calibration_data_is_refused() -> None:
    with pytest.raises(qg.CalibrationError, match="missing"):
        qg.quantize_and_compile(small_model(), None)


def test_the_stages_give_what_the_one_call_gives(tmp_path: Path) -> None:
    model, samples = small_model(), small_samples()
    graph = qg.import_model(model)
    qg.profile(graph, samples).save(tmp_path / "profile.npz")
    config = qg.QuantizationConfig()
    int8 = qg.quantize(graph, tmp_path / "profile.npz", config, data=samples)
    whole = qg.quantize_and_compile(model, samples, verify=False)
    (expected, _), (actual, _) = (
        qg.interpret(int8, {"x": samples[0]}),
        whole.run(None, {"x": samples[0]}),
    )
    assert (expected == actual).all()


def test_quantizing_twice_is_refused() -> None:
    graph = qg.import_model(small_model())
    profile = qg.profile(graph, small_samples())
    with pytest.raises(qg.OptionError, match="quantized already"):
        qg.quantize(qg.quantize(graph, profile), profile)


def test_a_profile_stands_for_calibration_data(tmp_path: Path) -> None:
    model, samples = small_model(), small_samples()
    path = tmp_path / "profile.npz"
    qg.profile(model, samples).save(path)
    from_file = qg.quantize_and_compile(model, path)
    assert str(from_file.graph) == str(qg.quantize(qg.import_model(model), path))


def test_a_folder_for_dumps_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUANTGLOW_DUMP_DIR", str(tmp_path / "file" / "inner"))
    with pytest.raises(qg.OptionError, match=r"QUANTGLOW_DUMP_DIR=.*cannot be written"):
        qg.compile(small_model(), num_threads=1)
