"""Functions of float32 where floating point is software: by 32-bit integers in the arguments that
networks have, by float arithmetic in others.  Results are those of the steps in floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.isa.cortex_m.float_gates import logistic, tangent
from quantglow.backends.llvm.isa.cortex_m.float_powers import power
from quantglow.backends.llvm.isa.cortex_m.float_products import quotient, scale_integer
from quantglow.backends.llvm.isa.cortex_m.integer_rounding import called
from quantglow.backends.llvm.isa.cortex_m.words import WEIGHTS
from quantglow.backends.llvm.isa.interface import Steps

DEFINITIONS: dict[str, Callable[[], str]] = {"exp": power, "tanh": tangent, "logistic": logistic}
CALLED = {"exp": ("exp",), "tanh": ("exp", "tanh"), "logistic": ("exp", "logistic")}
"""Functions that each needs: ``NAME_near``, and ``NAME_far`` for the other arguments."""

LEVELS = (
    {"tanh_near", "logistic_near", "scaled_near"},
    {"tanh_far", "logistic_far", "exp_near", "scaled_far"},
    {"exp_far"},
)
"""Names of functions; those of each level call those of the next ones only."""


def function(b: Builder, name: str, lanes: int, x: Value, steps: Mapping[str, Steps]) -> Value:
    """A function of float32, lane by lane."""
    if name not in DEFINITIONS:
        return steps[name](b, lanes, x)
    for each in CALLED[name]:
        b.declarations[f"{each}_far"] = in_floats(f"{each}_far", steps[each])
        b.declarations[f"{each}_near"] = DEFINITIONS[each]()
    if name == "logistic":
        b.declarations["quotient"] = quotient()
    b.declarations["weights of branches"] = WEIGHTS
    floats, ints = vector(lanes, "float"), vector(lanes, "i32")
    definition = b.declarations[f"{name}_near"]
    result = called(b, f"{name}_near", definition, lanes, b.cast("bitcast", floats, x, ints))
    return b.cast("bitcast", ints, result, floats)


def scaled(
    b: Builder,
    lanes: int,
    sums: Value,
    scale: Value,
    steps: Callable[[Builder, int, Value, Value], Value],
) -> Value:
    """``InstructionSet.scaled``, lane by lane; ``steps``: in floats."""
    far = Builder()
    result = steps(far, 1, "%x", far.cast("bitcast", "i32", "%y", "float"))
    b.declarations["scaled_far"] = ending(far, "scaled_far", result, "i32 %x, i32 %y")
    b.declarations["weights of branches"] = WEIGHTS
    floats, ints = vector(lanes, "float"), vector(lanes, "i32")
    bits = b.cast("bitcast", floats, scale, ints)
    return b.cast(
        "bitcast", ints, called(b, "scaled_near", scale_integer(), lanes, sums, bits), floats
    )


def in_floats(name: str, steps: Steps) -> str:
    """``i32 @name(i32 x)``: the bits of a function of one float32."""
    b = Builder()
    result = steps(b, 1, b.cast("bitcast", "i32", "%x", "float"))
    return ending(b, name, result, "i32 %x")


def ending(b: Builder, name: str, result: Value, arguments: str) -> str:
    """The definition of a function that gives the bits of a float32."""
    b.do(f"ret i32 {b.cast('bitcast', 'float', result, 'i32')}")
    body = "\n".join(["entry:", *b.lines])
    return f"define linkonce_odr i32 @{name}({arguments}) nounwind {{\n{body}\n}}\n"
