"""Every compiled float function, on numbers of every exponent, within the bounds of the docs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.importer.onnx.operators.math.elementwise import PLAIN
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import OPS
from quantglow.ir.ops.expression import arg
from quantglow.ir.ops.functions import ROW_FUNCTIONS, UNARY
from quantglow.ir.ops.unary import Unary
from quantglow.support.arrays import Array
from tests.support import effort
from tools.function_accuracy import FUNCTIONS, PAGE, updated
from tools.function_errors import (
    ALL,
    BLOCK,
    Errors,
    compiled,
    errors_of,
    errors_of_block,
    floats_from,
    measure,
    sampled_floats,
    unit,
)

TARGETS = tuple(name for name in LEVELS if runs_here(name))
FORMULAS_OF_ONNX = {"Relu", "Clip", "ThresholdedRelu", "Shrink", "Neg", "Abs", "LeakyRelu"}
FORMULAS_OF_ONNX |= {"HardSigmoid", "HardSwish"}
"""Operators whose steps are those of ONNX's definition: sums, products and comparisons."""
ROWS = {*ROW_FUNCTIONS}
NUMBERS = sampled_floats(arg(0))
WORST = {
    "Acos": 0.879327118396759,
    "Acosh": 1.028424859046936,
    "Asin": 0.2465239316225052,
    "Asinh": 0.37028470635414124,
    "Atan": 0.4143066108226776,
    "Atanh": 0.18900355696678162,
    "Celu": -0.3763830065727234,
    "Cos": 1.1718491737665812e37,
    "Cosh": 6.215331077575684,
    "Elu": -0.3763830065727234,
    "Erf": 0.9828551411628723,
    "Exp": -59.91941452026367,
    "Gelu": -8.551217079162598,
    "Gelu (tanh)": -9.798625946044922,
    "Log": 0.7015700936317444,
    "Mish": -0.10950490087270737,
    "Pow, exponent -0.5": 1.1827658286835154e-38,
    "Pow, exponent 0.75": 1.8402630555459662e-38,
    "Pow, exponent 3": 3.5970879053159877e-13,
    "Pow, exponent 2.2": 90470835290112.0,
    "Pow, exponent -3": 1.43790226036708e-13,
    "Pow, exponent 17": 27.177627563476562,
    "Selu": -0.15221482515335083,
    "Sigmoid": -16.635704040527344,
    "Sin": 6091155963904.0,
    "Sinh": 1.4061790704727173,
    "Softplus": -1.2621196508407593,
    "Softsign": 2047.3748779296875,
    "Swish": -16.677827835083008,
    "Tan": 10405329920.0,
    "Tanh": 0.6310442090034485,
    "exp(x) - 1": 0.3719174861907959,
    "log(1 + x)": 0.41896137595176697,
    "normal distribution": -6.950789928436279,
    "powers in Softmax": -86.6440200805664,
}
"""The argument of the largest error of each function, of all float32."""
EXACT, ROUNDED = {"Ceil", "Floor", "Round"}, {"Pow, exponent 0.5", "Pow, exponent 2"}
ROUNDED |= {"Reciprocal", "Sqrt"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_within_their_bounds(name: str) -> None:
    function = FUNCTIONS[name]
    errors = measure(function, [sampled_floats(function.steps)])
    assert errors.within(function.bound), errors


@pytest.mark.parametrize("name", WORST)
def test_bounds_are_the_largest_errors_rounded_up(name: str) -> None:
    function, x = FUNCTIONS[name], np.full(64, WORST[name], np.float32)
    errors = errors_of(function, compiled(function.steps), x)
    assert errors.within(function.bound) and function.is_reached(errors.largest)


def test_other_functions_are_rounded_correctly() -> None:
    assert set(FUNCTIONS) - set(WORST) == EXACT | ROUNDED
    assert {FUNCTIONS[name].bound for name in EXACT} == {0}
    assert {FUNCTIONS[name].bound for name in ROUNDED} == {0.5}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_level_gives_the_same_bits(name: str) -> None:
    results = [compiled(FUNCTIONS[name].steps, level)(NUMBERS) for level in TARGETS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
        signs = (np.signbit(each[~np.isnan(each)]) for each in (result, results[0]))
        np.testing.assert_array_equal(*signs)


def test_all_functions_have_bounds() -> None:
    names = {name.split()[0].strip(",") for name in FUNCTIONS}
    kinds = {name for name, kind in OPS.items() if issubclass(kind, Unary)}
    exact = {name for name in kinds if Trait.EXACT_STEPS in OPS[name].traits}
    functions = {part.op for each in FUNCTIONS.values() for part in each.steps.parts()}
    assert {name for name, each in UNARY.items() if each.signature == "f:f"} <= functions | ROWS
    assert (kinds | set(PLAIN)) - names == FORMULAS_OF_ONNX
    assert exact <= FORMULAS_OF_ONNX


def test_the_page_states_the_bounds() -> None:
    text = PAGE.read_text()
    assert updated(text) == text


def test_a_rounded_result_has_half_a_unit_at_most() -> None:
    function = replace(FUNCTIONS["Exp"], exact=lambda x: x + 2.0**-24)
    errors = errors_of(function, lambda x: x, floats_from(0x3F800000))
    assert errors.largest == 0.5 and not errors.wrong


@pytest.mark.parametrize(
    ("right", "wrong"), [(np.inf, 1e38), (np.nan, 0.0), (0.0, -0.0), (1.0, np.nan)]
)
def test_wrong_kinds_of_results_are_errors(right: float, wrong: float) -> None:
    function = replace(FUNCTIONS["Exp"], exact=lambda x: np.full_like(x, right))
    x = np.ones(4, np.float32)
    assert errors_of(function, lambda x: np.full_like(x, right), x).within(0)
    assert not errors_of(function, lambda x: np.full_like(x, wrong), x).within(1e30)


@pytest.mark.parametrize("name", ["Acosh", "Erf", "Mish", "Round", "Tan", "log(1 + x)"])
@pytest.mark.parametrize("start", [0x3E800000, 0x3F7F0000, 0x42AE0000, 0xC0000000, 0x7F7F0000])
def test_errors_of_blocks_are_those_of_each_number(name: str, start: int) -> None:
    function, x = FUNCTIONS[name], floats_from(start)
    compute = compiled(function.steps)
    each = errors_of(function, compute, x)
    for before in (Errors(), Errors(0.5), Errors(0.99 * each.largest), each):
        errors = before.join(errors_of_block(function, compute, before, x))
        assert errors.largest == max(each.largest, before.largest)
        assert errors.wrong == each.wrong


@pytest.mark.slow
@effort.effort(200, 1000)
@given(
    name=st.sampled_from(["Exp", "Floor", "Sigmoid", "Sin"]),
    start=st.integers(0, ALL // BLOCK - 1),
    place=st.integers(0, BLOCK - 1),
    wrong=st.sampled_from([np.nan, -1.5, 1e-30, 2.0**127]),
)
def test_no_result_of_a_block_is_left_out(name: str, start: int, place: int, wrong: float) -> None:
    function, x = FUNCTIONS[name], floats_from(start * BLOCK)
    right, before = compiled(function.steps), Errors(3.0)
    results = right(x)
    assume(not np.isnan(results[place]))
    results[place] = wrong
    expected = errors_of(function, lambda _: results[place : place + 1], x[place : place + 1])
    block = errors_of_block(function, Results(x, results), before, x)
    assert block.largest >= min(expected.largest, 4.0) or expected.wrong == block.wrong != ()


@dataclass
class Results:
    """A function by its results."""

    x: Array
    y: Array

    def __call__(self, x: Array) -> Array:
        places = (x.view(np.uint32) - self.x.view(np.uint32)[0]).astype(int)
        return self.y[places]


def test_units_are_those_of_float32() -> None:
    values = np.abs(NUMBERS)[np.abs(NUMBERS) < 2.0**127]
    np.testing.assert_array_equal(unit(values.astype(np.float64)), np.spacing(values))
