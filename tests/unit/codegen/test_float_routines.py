"""Float32 in integers, for processors without it: the results of IEEE 754, executed here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.isa.cortex_m import float_arithmetic as float_routines
from quantglow.codegen.llvm.isa.cortex_m import float_functions
from quantglow.codegen.llvm.isa.interface import InstructionSet, Steps
from quantglow.codegen.llvm.kernels.vector import math_functions as mathfun
from quantglow.codegen.llvm.kernels.vector.scalars import VECTOR_FUNCTIONS
from quantglow.codegen.llvm.targets import level_target, resolve
from quantglow.codegen.llvm.values import FLOAT, I1, I32, Value, splat, vector
from quantglow.codegen.llvm.values import f32 as literal
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Sigmoid, Tanh
from quantglow.ir.ops.unary import SMALLEST_EXPONENT
from quantglow.ir.types import f32
from quantglow.runtime.jit.library import addresses
from quantglow.support.arrays import Array
from tests.matrix.harness import ENTRY, planned

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "__aeabi_fadd": np.add,
    "__aeabi_fsub": np.subtract,
    "__aeabi_fmul": np.multiply,
    "__aeabi_fdiv": np.divide,
    "__aeabi_fcmplt": np.less,
    "__aeabi_fcmple": np.less_equal,
    "__aeabi_fcmpgt": np.greater,
    "__aeabi_fcmpge": np.greater_equal,
    "__aeabi_fcmpeq": np.equal,
}
SPECIAL = [0, 1, 2, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000, 0x3F000000]
SPECIAL += [0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x4B000000, 0x4B800000, 0x7F000000, 0x7F7FFFFF]
SPECIAL += [0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]
SIGN = np.uint32(1 << 31)
COUNT = 1 << 18


def bits_of_pairs(seed: int) -> tuple[Array, Array]:
    """All pairs of special numbers, and random ones: of any exponent, near each other, of a few
    bits, subnormal, and with results that are."""
    rng = np.random.default_rng(seed)
    x, y, z = (rng.integers(0, 2**32, COUNT, np.uint32) for _ in range(3))
    special = np.array(SPECIAL, np.uint32)
    special = np.concatenate([special, special | SIGN])
    parts = [np.meshgrid(special, special), (x, y), (x, special[y % special.size])]
    parts += [(x, (x + y % 7 - 3) ^ (z & SIGN)), (x, (x + ((y % 55 - 27) << 23)) ^ (z & SIGN))]
    parts += [(x & 0xFFFE0000, y & z & (z >> 3) | 0x3F000000)]
    parts += [(x & 0x807FFFFF, y), (x & 0x81FFFFFF, y & 0xBFFFFFFF)]
    parts += [(x & 0x83FFFFFF | 0x1F000000, y & 0x83FFFFFF | 0x1F000000)]
    left, right = ([np.asarray(pair[i], np.uint32).ravel() for pair in parts] for i in (0, 1))
    return np.concatenate(left), np.concatenate(right)


def executed(name: str, *operands: Array) -> Array:
    """A routine of 32-bit patterns, executed on this machine."""
    texts = float_routines.routines(["fadd fmul fdiv sitofp fcmp"])
    b = Builder()
    out, *pointers = b.kernel(1 + len(operands))
    with b.loop("%begin", "%end") as index:
        at = b.mul(index, 4)
        values = ", ".join(f"i32 {b.load(I32, b.at(pointer, at))}" for pointer in pointers)
        b.store(I32, b.emit(I32, f"call i32 @{name}({values})"), b.at(out, at))
    ours = re.sub(r"^define dso_local ", "define internal ", texts, flags=re.MULTILINE)
    (address,) = addresses(resolve("native"), [f"{ours}\n{b.finish()}"])
    array = np.zeros(operands[0].size, np.uint32)
    places = np.array([array.ctypes.data for array in (array, *operands)], np.uint64)
    ENTRY(address)(places.ctypes.data, 0, array.size)
    return array


def is_nan(bits: Array) -> Array:
    return np.asarray((bits << 1) > 0xFF000000)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", BINARY)
def test_results_are_those_of_this_machine(name: str, seed: int) -> None:
    """Bit for bit, but for the payload of NaN."""
    x, y = bits_of_pairs(seed)
    with np.errstate(all="ignore"):
        expected = BINARY[name](x.view(np.float32), y.view(np.float32))
    executed_nodes = executed(name, x, y)
    if expected.dtype == bool:
        np.testing.assert_array_equal(executed_nodes, expected)
        return
    reference = expected.view(np.uint32)
    np.testing.assert_array_equal(is_nan(executed_nodes), is_nan(reference))
    np.testing.assert_array_equal(
        executed_nodes[~is_nan(executed_nodes)], reference[~is_nan(executed_nodes)]
    )


def test_integers_are_rounded_half_to_even() -> None:
    x, y = bits_of_pairs(3)
    ints = np.concatenate([x.view(np.int32), x.view(np.int32) >> (y % 32).astype(np.int32)])
    executed_nodes = executed("__aeabi_i2f", ints)
    np.testing.assert_array_equal(executed_nodes, ints.astype(np.float32).view(np.uint32))


def test_texts_without_floats_need_no_routine() -> None:
    assert float_routines.routines(["%a = add i32 %b, %c", "%f_add = mul i32 %x, %y"]) == ""


def test_levels_name_each_function_once() -> None:
    """The stack of a run is the sum over levels: nobody is missing, and calls go down."""
    isa, b = level_target("cortex-m0plus").isa, Builder()
    for name in float_functions.DEFINITIONS:
        isa.function(b, name, 1, "%x", VECTOR_FUNCTIONS)
    isa.scaled(b, 1, "%x", "%y")
    del b.declarations["quotient"]  # the routines have it, too
    text = "\n".join([isa.routines(["fadd fmul fdiv sitofp fcmp"]), *b.declarations.values()])
    listed = [name for level in isa.routine_levels for name in level]
    bodies = dict(re.findall(r"^define \w+ i32 @(\w+)(.*?)^}", text, re.MULTILINE | re.DOTALL))
    assert sorted(listed) == sorted(bodies)
    place = {name: at for at, level in enumerate(isa.routine_levels) for name in level}
    for name, body in bodies.items():
        assert all(place[name] < place[other] for other in re.findall(r"call i32 @(\w+)", body))


STRIDE = 1021
"""Distance of the patterns that a test of a function of one float takes; a prime number."""


def patterns() -> Array:
    """Special numbers, both sides of the limits of the integer steps, and every ``STRIDE``-th of
    all float32."""
    ends = [2.0**-12, 2.0**-7, 0.25, math.log(2) / 2, 0.625, 8.0, 16.0]
    near = [int(np.float32(end).view(np.uint32)) + np.arange(-300, 300) for end in ends]
    special = np.concatenate([np.array(SPECIAL), *near]).astype(np.uint32)
    spread = np.arange(0, 2**32, STRIDE, dtype=np.int64).astype(np.uint32)
    return np.concatenate([special, special | SIGN, spread])


def assert_same_bits(name: str, x: Array) -> None:
    """Integer and float steps of a function give the same bits of some patterns."""
    results = []
    for level in ("cortex-m0plus", "portable"):
        isa = level_target(level).isa

        def steps(b: Builder, lanes: int, value: Value, isa: InstructionSet = isa) -> Value:
            return isa.function(b, name, lanes, value, VECTOR_FUNCTIONS)

        results.append(of_patterns(steps, x))
    np.testing.assert_array_equal(*results)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", float_functions.DEFINITIONS)
def test_integer_steps_of_functions_give_the_bits_of_float_steps(name: str) -> None:
    assert_same_bits(name, patterns())


@pytest.mark.slow
@pytest.mark.parametrize("name", float_functions.DEFINITIONS)
def test_integer_steps_are_exact_on_every_float32_that_takes_them(name: str) -> None:
    """From 2^-18 to 32, which is more than any of them takes."""
    for exponent in range(109, 132):
        x = np.arange(exponent << 23, (exponent + 1) << 23, dtype=np.uint32)
        assert_same_bits(name, x)
        assert_same_bits(name, x | np.uint32(SIGN))


SHORT = {"tanh": mathfun.tanh_by_branches, "logistic": mathfun.logistic_above}


@pytest.mark.parametrize("name", SHORT)
def test_shorter_steps_give_the_bits_of_the_others(name: str) -> None:
    """Sigmoids take no number below that of the smallest normal power."""
    x = patterns()
    if name == "logistic":
        lowest = np.float32(SMALLEST_EXPONENT)
        x = x[~(x.view(np.float32) < lowest)]
        below = np.arange(int(lowest.view(np.uint32)) - 300, int(lowest.view(np.uint32)) + 1)
        x = np.concatenate([x, below.astype(np.uint32)])
    actual, expected = (of_patterns(steps[name], x) for steps in (SHORT, VECTOR_FUNCTIONS))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("level", ["cortex-m4", "portable"])
def test_processors_with_branches_take_the_shorter_steps(level: str) -> None:
    (x,) = (Input(name="x", tensor=f32(1, 7)),)
    graph = Graph((x,), (("y", Sigmoid(name="y", x=Tanh(name="t", x=x))),))
    program, plan = planned(graph, unsigned=False)
    texts = emit_program(program, plan, level_target(level)).texts
    is_short = any(literal(88.8) in text for text in texts)
    assert is_short == (level == "cortex-m4")


def of_patterns(steps: Steps, x: Array) -> Array:
    """The bits of a function of some patterns, on this machine; one pattern for NaN."""
    b = Builder()
    out, pointer = b.kernel(2)
    with b.loop("%begin", "%end") as index:
        at = b.mul(index, 4)
        value = b.load(FLOAT, b.at(pointer, at))
        b.store(FLOAT, steps(b, 1, value), b.at(out, at))
    (address,) = addresses(resolve("native"), [b.finish()])
    array = np.zeros(x.size, np.uint32)
    places = np.array([array.ctypes.data for array in (array, x)], np.uint64)
    ENTRY(address)(places.ctypes.data, 0, array.size)
    return np.where(is_nan(array), np.uint32(0x7FC00000), array)


def test_scaled_sums_are_those_of_float_steps() -> None:
    """Sums of any size, and multipliers that are special, too."""
    x, y = bits_of_pairs(4)
    sums = x.view(np.int32) >> (y % 32).astype(np.int32)
    sums = np.concatenate([sums, sums, np.arange(-300, 300), 2**24 + np.arange(-300, 300)])
    scales = np.concatenate([x, x & 0x3FFFFFFF | 0x30000000])
    scales = np.resize(scales, sums.size).view(np.float32)
    b = Builder()
    out, left, right = b.kernel(3)
    with b.loop("%begin", "%end") as index:
        at = b.mul(index, 4)
        operands = b.load(I32, b.at(left, at)), b.load(FLOAT, b.at(right, at))
        b.store(FLOAT, level_target("cortex-m0plus").isa.scaled(b, 1, *operands), b.at(out, at))
    (address,) = addresses(resolve("native"), [b.finish()])
    sums, actual = sums.astype(np.int32), np.zeros(sums.size, np.float32)
    places = np.array([array.ctypes.data for array in (actual, sums, scales)], np.uint64)
    ENTRY(address)(places.ctypes.data, 0, actual.size)
    with np.errstate(all="ignore"):
        expected = sums.astype(np.float32) * scales
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), ~number)
    np.testing.assert_array_equal(actual.view(np.int32)[number], expected.view(np.int32)[number])


LIMITS = [0.0, -0.0, 0.5, -0.5, 87.3, -87.3, 2.0**-149, -(2.0**-149), 3.4028235e38, -3.4028235e38]


@pytest.mark.slow_variants
@pytest.mark.parametrize("predicate", ["olt", "ogt", "ole"])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("lanes", [1, 4])
def test_comparisons_with_constants_are_those_of_floats(
    lanes: int, is_first: bool, predicate: str
) -> None:
    """Comparisons that become integers, and those that stay."""
    x, _ = bits_of_pairs(5)
    x = x[: x.size // 4 * 4]
    compare = {"olt": np.less, "ogt": np.greater, "ole": np.less_equal}[predicate]
    kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
    changed = 0
    for limit in LIMITS:
        b = Builder()
        out, pointer = b.kernel(2)
        with b.loop("%begin", "%end", lanes) as index:
            at = b.mul(index, 4)
            pair = b.load(kind, b.at(pointer, at)), splat(kind, literal(limit))
            bit = b.compare(predicate, kind, *(pair[::-1] if is_first else pair))
            b.store(ints, b.cast("zext", vector(lanes, I1), bit, ints), b.at(out, at))
        text = level_target("cortex-m0plus").isa.legal(b.finish())
        changed += "icmp ult" in text
        (address,) = addresses(resolve("native"), [text])
        array = np.zeros(x.size, np.int32)
        places = np.array([array.ctypes.data for array in (array, x)], np.uint64)
        ENTRY(address)(places.ctypes.data, 0, array.size)
        operands = x.view(np.float32), np.float32(limit)
        with np.errstate(invalid="ignore"):
            expected = compare(*(operands[::-1] if is_first else operands))
        np.testing.assert_array_equal(array, expected)
    # Zeros of both signs and the four limits of one sign.
    assert changed == (0 if predicate == "ole" else 6)
