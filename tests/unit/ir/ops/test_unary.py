"""The laws that tie what an operator of one value declares."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.node import OPS, Input
from quantglow.ir.ops.unary import Unary
from quantglow.ir.types import f32
from tests.generators.unary_functions import FUNCTIONS, Declared

RNG = np.random.default_rng(0)
REALS = np.concatenate(
    [RNG.normal(size=500) * size for size in (1e-3, 0.3, 3.0, 30.0, 300.0)] + [[0.0, 3.0, -3.0]]
)
OWN_FUNCTIONS = [
    form
    for form in FUNCTIONS
    if form.kind.function is not Unary.function or form.kind.formula is not Unary.formula
]


def of(form: Declared) -> Unary:
    return form.node("y", Input(name="x", tensor=f32(1)))


def arguments(form: Declared) -> np.ndarray:
    return np.abs(REALS) + 1e-3 if form.positive else REALS


@pytest.mark.parametrize("form", OWN_FUNCTIONS, ids=str)
def test_the_expression_is_the_exact_function_but_for_rounding(form: Declared) -> None:
    x = arguments(form)
    with np.errstate(all="ignore"):
        exact = of(form).function(x)
        steps = of(form).expression().evaluate([x], real=np.float64)
    np.testing.assert_allclose(steps, exact, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("form", FUNCTIONS, ids=str)
def test_the_steps_of_targets_are_the_exact_function_to_float_tolerance(form: Declared) -> None:
    x = arguments(form).astype(np.float32)
    node = of(form)
    with np.errstate(all="ignore"):
        exact = node.function(x.astype(np.float64)).astype(np.float32)
        steps = node.expression().rounded().evaluate([x])
    np.testing.assert_allclose(steps, exact, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("form", OWN_FUNCTIONS, ids=str)
def test_an_exact_function_of_its_own_is_declared_only_where_it_differs(form: Declared) -> None:
    x = arguments(form).astype(np.float32)
    with np.errstate(all="ignore"):
        assert np.any(of(form).function(x) != of(form).expression().evaluate([x]))


@pytest.mark.parametrize("form", FUNCTIONS, ids=str)
def test_constants_are_rounded_for_float32_only(form: Declared) -> None:
    expression = of(form).expression()
    x = np.linspace(0.5, 2, 9, dtype=np.float32)
    with np.errstate(all="ignore"):
        assert np.array_equal(expression.evaluate([x]), expression.rounded().evaluate([x]))


@pytest.mark.parametrize("form", FUNCTIONS, ids=str)
def test_arguments_are_left_as_they_are(form: Declared) -> None:
    """Steps may overwrite results of steps, nothing else."""
    x = arguments(form).copy()
    with np.errstate(all="ignore"):
        of(form).function(x)
    assert np.array_equal(x, arguments(form))


def test_every_attribute_has_the_default_of_onnx() -> None:
    """The importer takes absent attributes from the declaration."""
    import onnx

    for form in (f for f in FUNCTIONS if f.importable):
        schema = onnx.defs.get_schema(form.name, max(form.kind.since, 13))
        known = {name: a.default_value.f for name, a in schema.attributes.items()}
        declared = {name: getattr(form.kind, name) for name in form.attributes}
        known.pop("consumed_inputs", None)
        assert declared == pytest.approx(known), form.name


@pytest.mark.parametrize("form", [f for f in FUNCTIONS if f.importable], ids=str)
def test_since_is_the_first_opset_of_the_operator(form: Declared) -> None:
    import onnx

    versions = [
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if s.name == form.name and s.domain == ""
    ]
    assert form.kind.since == min(versions)


def test_every_declared_function_is_an_operator() -> None:
    assert {form.name for form in FUNCTIONS} == {
        name for name, kind in OPS.items() if issubclass(kind, Unary)
    }
