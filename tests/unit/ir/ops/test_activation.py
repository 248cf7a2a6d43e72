"""Activations of contractions: their numbers, their text, their expression."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.attributes import encode, parse_call
from quantglow.ir.ops import HardSwish
from quantglow.ir.ops.activation import Activation
from tests.generators.values import activations
from tests.support.builder import Builder

X = np.concatenate([np.linspace(-9, 9, 1001), [0.0, -0.0, 3.0, -3.0, 1e6, -1e6]]).astype(np.float32)


def exact(activation: Activation) -> np.ndarray:
    """The activation in float64, by its operator."""
    b = Builder()
    wide = X.astype(np.float64)
    values = activation.unary("f", b.input(1)).function(wide)
    return np.asarray(values * activation.factor + activation.offset)


@given(activations())
def test_the_expression_is_the_operator(activation: Activation) -> None:
    expected = exact(activation)
    np.testing.assert_allclose(activation.evaluate(X), expected, rtol=2e-6, atol=2e-6)


@given(activations(), st.sampled_from([1e-3, 0.07, 1.0, 30.0]))
def test_steps_are_the_operator_over_the_step(activation: Activation, step: float) -> None:
    expected = exact(activation) / step
    sums = (X / activation.unit(step)).astype(np.float32)
    atol = 4e-6 * max(1.0, 1 / step)
    np.testing.assert_allclose(activation.evaluate(sums, step), expected, rtol=4e-6, atol=atol)


@given(activations())
def test_outside_of_what_is_live_nothing_changes(activation: Activation) -> None:
    low, high = activation.live
    values = activation.evaluate(X)
    for dead in (values[low - 1e-3 > X], values[high + 1e-3 < X]):
        assert np.ptp(dead) <= 1e-6 if dead.size else True


@given(activations(), st.floats(0.1, 1e4))
def test_nothing_is_beyond_its_reach(activation: Activation, limit: float) -> None:
    step = 0.05
    sums = np.linspace(-limit, limit, 257).astype(np.float32)
    assert np.abs(activation.evaluate(sums, step)).max() <= activation.reach(limit, step) * 1.00001


@given(activations())
def test_text_is_read_back(activation: Activation) -> None:
    _, values = parse_call(f"Conv(activation={encode(activation)})")
    assert values["activation"] == activation


def test_the_plain_form_is_short() -> None:
    assert encode(Activation("HardSwish")) == "Activation('HardSwish')"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("Gelu",), "is not one of"),
        (("HardSwish", (1.0,)), "takes 0 parameters"),
        (("HardSigmoid", (0.2,)), "takes 2 parameters"),
        (("HardSwish", (), math.inf), "finite"),
        (("LeakyRelu", (0.1,), 1e39), "finite"),
    ],
)
def test_others_are_refused(fields: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Activation(*fields)


@pytest.mark.parametrize("text", ["Activation('HardSwish', 3)", "Activation(5)"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wrong arguments"):
        parse_call(f"Conv(activation={text})")


def test_integer_sums_take_three_operations() -> None:
    assert Activation("HardSwish").expression(0.1).size() == 4  # max and min are one, if need be


def test_numbers_are_float32() -> None:
    activation = Activation("LeakyRelu", (0.1,)).scaled(1 / 3)
    assert (activation.parameters[0], activation.factor) == (
        float(np.float32(0.1)),
        float(np.float32(1 / 3)),
    )


def test_an_operator_is_told() -> None:
    b = Builder()
    assert Activation.of(b.make(HardSwish, x=b.input(2))) == Activation("HardSwish")
