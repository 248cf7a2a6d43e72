"""The steps out of int8, and their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.evaluation.layers import noise_of_each
from quantglow.interpreter import stacks
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.contraction import Contraction
from quantglow.profiling import Profile, profile
from quantglow.quantization.accuracy_control import (
    FLOAT,
    INT16,
    PrecisionOverrides,
    PrecisionStep,
    float_steps,
    int16_steps,
    rank_steps,
)
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.float_rules import OVERRIDDEN
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.quantizer import quantize_for_all_shapes
from quantglow.quantization.search.time_budget import float_seconds, int16_seconds
from quantglow.support.processes.interrupts import Deadline
from quantglow.transforms.float import optimize
from tests.unit.quantization.quantization_networks import conv, graph_of, image, samples_for


def network() -> Graph:
    """Three convolutions, ``one`` and ``two`` stored as integers."""
    x = image(3, 8)
    two = conv("two", conv("one", x, 8, low=0.0), 8, low=0.0)
    return optimize(graph_of(conv("three", two, 4), inputs=(x,)))


GRAPH = network()
SEEN: Profile = profile(GRAPH, samples_for(GRAPH, 3), progress=False)
PLAN: Plan = make_plan(GRAPH, SEEN, QuantizationConfig())
NAMES = ["one", "two", "three"]
errors = st.floats(0, 1, allow_subnormal=False)


def precisions(
    overrides: PrecisionOverrides, config: QuantizationConfig | None = None
) -> dict[str, str]:
    quantized = quantize_for_all_shapes(GRAPH, SEEN, config, progress=False, overrides=overrides)
    return {node.name: node.precision for node in quantized.report.nodes}


@given(wide=st.lists(errors, min_size=3, max_size=3), real=st.lists(errors, min_size=3, max_size=3))
def test_the_order_has_every_step_once_and_those_of_float_by_worth(
    wide: list[float], real: list[float]
) -> None:
    values = ["x", "one", "two"]
    steps16 = [PrecisionStep(n, INT16, harm, 1e-6) for n, harm in zip(values, wide, strict=True)]
    steps32 = [PrecisionStep(n, FLOAT, harm, 1e-5) for n, harm in zip(NAMES, real, strict=True)]
    order = rank_steps(PLAN, steps16, steps32)
    assert sorted(map(str, order)) == sorted(map(str, [*steps16, *steps32]))
    worths = [s.worth for s in order if s.precision == FLOAT]
    assert worths == sorted(worths, reverse=True)


def test_values_become_int16_before_their_operator_becomes_float() -> None:
    steps16 = [PrecisionStep(n, INT16, 0.1, 1.0) for n in ("x", "one", "two")]
    steps32 = [PrecisionStep("two", FLOAT, 0.5, 1e-3), PrecisionStep("three", FLOAT, 0.4, 1e-3)]
    order = [str(step) for step in rank_steps(PLAN, steps16, steps32)]
    assert order == [
        "one to int16", "two to int16", "two to float", "three to float", "x to int16"
    ]  # fmt: skip


def test_int16_without_benefit_does_not_delay_float() -> None:
    steps16 = [PrecisionStep("one", INT16, 1e-9, 1.0)]
    order = [
        str(step) for step in rank_steps(PLAN, steps16, [PrecisionStep("two", FLOAT, 0.5, 1e-3)])
    ]
    assert order == ["two to float", "one to int16"]


def test_each_stored_value_and_each_operator_has_a_step() -> None:
    wide = int16_steps(PLAN, samples_for(GRAPH, 2))
    assert {s.name for s in wide} == {"x", "one", "two"}
    assert [s.name for s in float_steps(PLAN, {"two": 0.5})] == NAMES
    assert [s.error for s in float_steps(PLAN, {"two": 0.5})] == [0.0, 0.5, 0.0]


def test_the_steps_are_the_same_every_time() -> None:
    samples = samples_for(GRAPH, 2)
    assert int16_steps(PLAN, samples) == int16_steps(PLAN, samples)


@dataclasses.dataclass(frozen=True)
class Looks(Deadline):
    """The time is up at the next look after so many."""

    left: Iterator[int] = dataclasses.field(default_factory=lambda: iter(()))

    @property
    def is_over(self) -> bool:
        return next(self.left, None) is None


def test_measuring_ends_where_the_time_is_up() -> None:
    samples = samples_for(GRAPH, 2)
    assert int16_steps(PLAN, samples, Deadline(0.0)) == []
    assert noise_of_each(GRAPH, GRAPH, NAMES, samples, Deadline(0.0)) == {}


def test_measurements_before_the_deadline_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look for samples that run together, and one for each of their values."""
    monkeypatch.setattr(stacks, "GROUP_NBYTES", 1)
    samples = samples_for(GRAPH, 2)
    one, two = int16_steps(PLAN, samples[:1]), int16_steps(PLAN, samples)
    assert int16_steps(PLAN, samples, Looks(left=iter(range(3)))) == one[:2]
    assert int16_steps(PLAN, samples, Looks(left=iter(range(6)))) == [two[0], *one[1:]]
    int8 = quantize_for_all_shapes(GRAPH, SEEN, progress=False).graph
    actual = noise_of_each(GRAPH, int8, NAMES, samples, Looks(left=iter(range(1))))
    first = noise_of_each(GRAPH, int8, NAMES, samples[:1])
    assert actual == {NAMES[0]: first[NAMES[0]]}


def test_float_costs_more_than_int16() -> None:
    for node in GRAPH.nodes:
        if isinstance(node, Contraction):
            assert float_seconds(PLAN, node) > int16_seconds(PLAN, [node.x]) > 0


def test_overridden_values_and_operators_are_those_of_the_steps() -> None:
    steps = [PrecisionStep("one", INT16, 1.0, 1.0), PrecisionStep("three", FLOAT, 1.0, 1.0)]
    actual = precisions(PrecisionOverrides.by(steps))
    assert actual == {"one": "int16", "two": "int8", "three": "float"}


def test_an_overridden_operator_says_why_it_is_float() -> None:
    quantized = quantize_for_all_shapes(
        GRAPH, SEEN, overrides=PrecisionOverrides(to_float=("two",)), progress=False
    )
    assert {n.name: n.reason for n in quantized.report.nodes}["two"] == OVERRIDDEN


def test_a_value_that_is_no_integer_any_more_stays_float() -> None:
    assert precisions(PrecisionOverrides(("one", "two"), tuple(NAMES))) == dict.fromkeys(
        NAMES, "float"
    )


def test_named_int16_values_may_become_float() -> None:
    config = dataclasses.replace(QuantizationConfig(), int16_activations="two")
    assert precisions(PrecisionOverrides(), config)["two"] == "int16"
    assert precisions(PrecisionOverrides(to_float=tuple(NAMES)), config)["two"] == "float"
