"""Tuned convolutions: every form, tile, order, unrolling and prefetch gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.backends.llvm.isa.choices import Choice, Choices
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels import emit
from quantglow.backends.llvm.kernels.conv.conv import default_choice
from quantglow.backends.llvm.kernels.conv.forms import kernel_of
from quantglow.backends.llvm.targets import resolve
from quantglow.graph.graph import Graph
from quantglow.tuning.tasks import Task, tasks_of
from quantglow.types import DType
from tests.generators.quantized_graphs.convolutions import Case, cases, floats, integers
from tests.matrix.harness import TARGETS, assert_agree, on_llvm, planned
from tests.support.effort import moderate

CASE = Case(
    n=1,
    h=9,
    w=9,
    group=1,
    c_group=40,
    o_group=40,
    kernel=(3, 3),
    strides=(1, 1),
    dilations=(1, 1),
    pads=(1, 1, 1, 1),
    residual=False,
    float_result=False,
    zero_points=(3, -5),
    dtypes=(DType.I8, DType.I8, DType.I8),
    bounds=(0.0, 6.0),
    seed=1,
)
LEVELS = tuple(name for name in TARGETS if not resolve(name).saves_code)
levels = st.sampled_from(LEVELS)
pytestmark = pytest.mark.skipif(not LEVELS, reason="every level here saves code: none is tuned")


def tasks(graph: Graph, target: Target) -> list[Task]:
    program, _ = planned(graph, target.isa.unsigned_activations)
    return tasks_of(program, target)


def tuned(target: Target, task: Task, choice: Choice) -> Target:
    return replace(target, choices=Choices({task.key: choice}))


@moderate
@given(data=st.data(), case=st.one_of(cases(), cases(wide=True)), level=levels)
def test_tuned_integers_are_those_of_the_interpreter(
    data: st.DataObject, case: Case, level: str
) -> None:
    graph, feeds = integers(case)
    found = tasks(graph, resolve(level))
    assume(found)
    choice = data.draw(st.sampled_from(found[0].choices))
    target = tuned(resolve(level), found[0], choice)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@moderate
@given(data=st.data(), case=cases(), level=levels)
def test_tuned_floats_are_those_of_the_default_bit_for_bit(
    data: st.DataObject, case: Case, level: str
) -> None:
    graph, feeds = floats(case)
    found = tasks(graph, resolve(level))
    assume(found)
    choice = data.draw(st.sampled_from(found[0].choices))
    expected = on_llvm(graph, feeds, level)
    results = on_llvm(graph, feeds, tuned(resolve(level), found[0], choice))
    for one, other in zip(results, expected, strict=True):
        assert one.tobytes() == other.tobytes()


@moderate
@given(case=cases(), level=levels)
def test_the_default_is_one_of_the_choices(case: Case, level: str) -> None:
    for task in tasks(integers(case)[0], resolve(level)):
        assert task.choices[0] == task.default == default_choice(task.step, task.target)
        assert len(set(task.choices)) == len(task.choices)


@moderate
@given(case=cases(), level=levels)
def test_the_kernel_of_the_default_choice_is_the_default_kernel(case: Case, level: str) -> None:
    graph, _ = integers(case)
    for task in tasks(graph, resolve(level)):
        kernel = kernel_of(task.step, task.target, task.default)
        assert kernel is not None
        tuned_call, call = kernel.call(), emit(task.step, task.target)
        assert (tuned_call.ir, tuned_call.items) == (call.ir, call.items)


@pytest.mark.parametrize(
    "choice",
    [
        Choice("no such form"),
        Choice("plain", (1, 100, 1)),
        Choice("plain", (3, 2, 1)),
        Choice("plain", None, None, 3),
        Choice("plain", None, None, None, "late"),
        Choice("matrix", (1, 1, 1)),
        Choice("gathered", None, None, 4),
        Choice("pairs", (1, 9, 9)),
    ],
    ids=str,
)
def test_choices_that_do_not_fit_are_not_used(choice: Choice) -> None:
    graph, feeds = integers(CASE)
    target = resolve(LEVELS[0])
    (task,) = tasks(graph, target)
    assert kernel_of(task.step, target, choice) is None
    assert_agree(graph, feeds, tuned(target, task, choice))


def test_choices_are_a_part_of_the_target_s_key_and_not_of_its_equality() -> None:
    target = resolve(LEVELS[0])
    (task,) = tasks(integers(CASE)[0], target)
    other = tuned(target, task, task.choices[-1])
    assert other == target and other.key != target.key


def test_choices_are_read_as_they_were_written() -> None:
    (task,) = tasks(integers(CASE)[0], resolve(LEVELS[0]))
    for choice in task.choices:
        assert Choice.of(choice.to_json()) == choice
