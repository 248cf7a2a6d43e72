"""Float functions of the LLVM backend: accuracy, borders, equality across targets, no libm."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy import special

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.compiler import assembly
from quantglow.codegen.llvm.kernels.vector.scalars import Scalars
from quantglow.codegen.llvm.targets import LEVELS, level_target, resolve, runs_here
from quantglow.codegen.llvm.values import FLOAT, vector
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Elementwise
from quantglow.ir.ops.expression import Expr, arg, call, const
from quantglow.ir.ops.functions import BINARY
from quantglow.ir.types import DType, ElementType, f32
from quantglow.memory.planner import plan_memory
from quantglow.runtime.native.compilation import compile_program
from quantglow.support.arrays import Array
from quantglow.transforms.program.generate import generate

TARGETS = tuple(name for name in LEVELS if runs_here(name))
BORDERS = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1e-38, 3.4e38, -3.4e38, 88.72,
     88.73, -87.4, -103.9, -104, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 0.625, 0.99999994,
     8388607.5, -8388607.5, 8388608, 2147483648],
    np.float32,
)  # fmt: skip
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": special.erf,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "rint": np.rint,
    "abs": np.abs,
    "neg": np.negative,
}
EXPONENTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, -0.5, -1.0, 0.0, 2.2, -3.0)


@cache
def samples() -> Array:
    """Every magnitude, and any bits."""
    rng = np.random.default_rng(0)
    spread = (rng.normal(size=4000) * np.repeat([0.1, 1, 30, 1000], 1000)).astype(np.float32)
    magnitudes = np.exp(rng.uniform(-87, 88, 4000)).astype(np.float32)
    patterns = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    return np.concatenate([BORDERS, spread, magnitudes, patterns])


def evaluate(expression: Expr, target: str, *operands: Array) -> Array:
    inputs = tuple(Input(name=f"x{i}", tensor=f32(*a.shape)) for i, a in enumerate(operands))
    node = Elementwise(name="y", args=inputs, expression=expression, out=ElementType(DType.F32))
    program = generate(Graph(inputs, (("out", node),)))
    executable = compile_program(program, plan_memory(program), resolve(target))
    (result,) = executable.run({f"x{i}": a for i, a in enumerate(operands)})
    return result


def assert_close(got: Array, exact: Array, relative: float) -> None:
    """Check the relative error where float32 is normal, and infinities and NaN elsewhere."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
    special_values = ~np.isfinite(rounded)
    np.testing.assert_array_equal(got[special_values], rounded[special_values])
    smallest = float(np.finfo(np.float32).smallest_normal)
    np.testing.assert_allclose(
        got[~special_values].astype(np.float64),
        exact[~special_values],
        rtol=relative,
        atol=smallest * relative,
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate_everywhere(name: str, target: str) -> None:
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](samples().astype(np.float64))
    assert_close(evaluate(call(name, arg(0)), target, samples()), exact, 2.5e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_target_gives_the_same_bits(name: str) -> None:
    results = [evaluate(call(name, arg(0)), target, samples()) for target in TARGETS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_constant_powers_are_accurate(exponent: float) -> None:
    rng = np.random.default_rng(1)
    bases = np.exp(rng.uniform(-18, 18, 2000)).astype(np.float32)
    exact = bases.astype(np.float64) ** float(np.float32(exponent))
    got = evaluate(call("pow", arg(0), const(exponent)), TARGETS[0], bases)
    np.testing.assert_allclose(got, exact, rtol=3e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_powers_have_the_borders_of_ieee(target: str) -> None:
    exponents = [0.0, 1, -1, 2, 3, -3, 0.5, -0.5, 0.75, np.inf, -np.inf, np.nan, 1e9, 16777217]
    x, y = (
        np.ascontiguousarray(m.reshape(-1))
        for m in np.meshgrid(BORDERS, np.array(exponents, np.float32))
    )
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert_close(evaluate(call("pow", arg(0), arg(1)), target, x, y), exact, 1e-6)


@pytest.mark.parametrize("name", ["max", "min", "fmax", "fmin"])
def test_extremes_treat_nan_as_numpy_does(name: str) -> None:
    x = np.array([np.nan, 1, np.nan, 2], np.float32)
    y = np.array([1, np.nan, np.nan, 3], np.float32)
    got = evaluate(call(name, arg(0), arg(1)), TARGETS[0], x, y)
    np.testing.assert_array_equal(got, BINARY[name].compute(x, y))


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_no_function_becomes_a_call(target: str, lanes: int) -> None:
    """Arithmetic that a processor lacks, such as float64 on microcontrollers, is a call of the
    compiler's own library, and the square root one of C's.  Armv6-M jumps far by ``bl``, too, and
    calls functions of the text itself.
    """
    b = Builder()
    source, destination = b.kernel(2)
    kind = vector(lanes, FLOAT)
    operands = [b.load(kind, source), b.load(kind, b.at(source, 64))]
    scalars = Scalars(b, level_target(target), lanes, operands, (DType.F32, DType.F32))
    expressions = [call(name, arg(0)) for name in FUNCTIONS]
    expressions += [
        call(name, arg(0), arg(1)) for name in ("pow", "max", "min", "fmax", "fmin", "div")
    ]
    for index, expression in enumerate(expressions):
        b.store(kind, scalars.value(expression), b.at(destination, 64 * index))
    text = assembly(level_target(target), b.finish())
    known = "|".join([*re.findall(r"^(\w+):", text, re.MULTILINE), "__aeabi_", "sqrtf", r"\.L"])
    assert not re.search(rf"\t(call|tail)|\b(jmp|b)\s+\w*f\b|\tbl\s+(?!{known})", text)
