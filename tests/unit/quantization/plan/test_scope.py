"""Exclusions: by name, pattern and type; what matches nothing is an error."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quantglow.quantization.options import IgnoredScope, QuantizationConfig, method_name
from quantglow.support.errors import IgnoredScopeError, OptionError
from tests.unit.quantization.quantization_networks import quantized, small_cnn, sqnr

CASES = {
    "name": {"nodes_to_exclude": ["c2"]},
    "glob": {"nodes_to_exclude": ["c[2]"]},
    "expression": {"nodes_to_exclude": ["re:c2$"]},
    "scope names": {"ignored_scope": IgnoredScope(names=("c2",))},
    "scope patterns": {"ignored_scope": SimpleNamespace(names=[], patterns=["c2$"], types=[])},
    "scope of strings": {"ignored_scope": ["c2"]},
}


@pytest.mark.parametrize("case", CASES)
def test_an_excluded_conv_stays_float_in_a_correct_mixed_graph(case: str) -> None:
    graph = small_cnn()
    result, report = quantized(graph, **CASES[case])
    assert [n.name for n in report.kept_float] == ["c2", "prob"]
    assert result.by_name("c2").type.dtype.is_float
    assert sqnr(graph, result) > 30


def test_types_are_excluded() -> None:
    _, report = quantized(small_cnn(), ignored_scope=IgnoredScope(types=("Gemm", "MaxPool")))
    assert [n.op for n in report.kept_float] == ["MaxPool", "Gemm", "Softmax"]


def test_op_types_to_quantize_excludes_the_others() -> None:
    _, report = quantized(small_cnn(), op_types_to_quantize=["Conv"])
    assert {n.op for n in report.nodes if n.precision == "int8"} == {"Conv"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nodes_to_exclude": ["c22"]}, "did you mean 'c2'"),
        ({"nodes_to_exclude": ["nothing*"]}, "'nothing\\*'"),
        ({"nodes_to_exclude": ["re:zzz"]}, "re:zzz"),
        ({"nodes_to_exclude": ["re:("]}, "not a regular expression"),
        ({"ignored_scope": IgnoredScope(types=("Convv",))}, "did you mean 'Conv'"),
        ({"ignored_scope": IgnoredScope(types=("LRN",))}, "op type 'LRN'"),
        ({"op_types_to_quantize": ["Convolution"]}, "op type 'Convolution'"),
    ],
)
def test_an_entry_that_matches_nothing_is_an_error_with_a_hint(
    options: dict[str, object], text: str
) -> None:
    with pytest.raises(IgnoredScopeError, match=text):
        quantized(small_cnn(), **options)


def test_validation_can_be_switched_off() -> None:
    scope = IgnoredScope(names=("nothing",), types=("Nothing",), validate=False)
    _, report = quantized(small_cnn(), ignored_scope=scope)
    assert len(report.kept_float) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "fast"},
        {"calibrate_method": "kl"},
        {"percentile": 10},
        {"nodes_to_exclude": [3]},
        {"ignored_scope": SimpleNamespace(names=(), subgraphs=[1])},
    ],
)
def test_options_that_do_not_exist_are_errors(options: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        QuantizationConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["MinMax", "minmax", 0, SimpleNamespace(name="MinMax")])
def test_onnxruntimes_method_names_are_accepted(method: object) -> None:
    assert method_name(method) == "minmax"
