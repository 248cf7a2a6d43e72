"""Tuned kernels: every form, tile, order, unrolling and prefetch gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.codegen.llvm.isa.costs import Choices, KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import MatMul, Quantize, Transpose
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.tuning.trials import Task, find_tasks
from tests.generators.quantized_graphs.convolutions import Case, cases, floats, integers, tensor
from tests.matrix.harness import TARGETS, assert_agree, on_llvm, planned
from tests.support.effort import moderate
from tests.support.feeds import feeds_of

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
kinds = st.one_of(
    cases(), cases(wide=True), cases(depthwise=True), cases(depthwise=True, wide=True)
)
pytestmark = pytest.mark.skipif(not LEVELS, reason="every level here saves code: none is tuned")


def tasks(graph: Graph, target: Target) -> list[Task]:
    program, _ = planned(graph, target.isa.unsigned_activations)
    return find_tasks(program, target)


def tuned(target: Target, task: Task, choice: KernelChoice) -> Target:
    return replace(target, choices=Choices({task.key: choice}))


@pytest.mark.slow
@moderate
@given(data=st.data(), case=kinds, level=levels)
def test_tuned_integers_are_those_of_the_interpreter(
    data: st.DataObject, case: Case, level: str
) -> None:
    graph, feeds = integers(case)
    task_list = tasks(graph, resolve(level))
    assume(task_list)
    choice = data.draw(st.sampled_from(task_list[0].choices))
    target = tuned(resolve(level), task_list[0], choice)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.slow
@moderate
@given(data=st.data(), case=st.one_of(cases(), cases(depthwise=True)), level=levels)
def test_tuned_floats_are_those_of_the_default_bit_for_bit(
    data: st.DataObject, case: Case, level: str
) -> None:
    assert_same_bits(data, *floats(case), level)


def assert_same_bits(
    data: st.DataObject, graph: Graph, feeds: dict[str, np.ndarray], level: str
) -> None:
    task_list = tasks(graph, resolve(level))
    assume(task_list)
    choice = data.draw(st.sampled_from(task_list[0].choices))
    expected = on_llvm(graph, feeds, level)
    results = on_llvm(graph, feeds, tuned(resolve(level), task_list[0], choice))
    for one, other in zip(results, expected, strict=True):
        assert one.tobytes() == other.tobytes()


@st.composite
def products(draw: st.DrawFn) -> Graph:
    """A product of activations, of integers of either width or of floats; the columns of
    the second one may lie as rows."""
    x_type, y_type, result = draw(st.sampled_from(PRODUCTS))
    batch, rows, columns = draw(st.tuples(st.integers(1, 3), *[st.integers(1, 70)] * 2))
    depth = draw(st.one_of(st.integers(1, 40), st.sampled_from([66, 131])))
    turns = draw(st.booleans())
    shape = (columns, depth) if turns else (depth, columns)
    x = tensor("x", (batch, rows, depth), FLOAT)
    y = tensor("y", (draw(st.sampled_from([1, batch])), *shape), FLOAT)
    left, right = computed(x, x_type), computed(y, y_type)
    if turns:
        right = Transpose(name="turned", x=right, perm=(0, 2, 1))
    return Graph((x, y), (("out", MatMul(name="m", x=left, y=right, out=result)),))


def computed(x: Input, kind: ElementType) -> Node:
    """Values of a type, made of an input: only integers of the program are stored unsigned."""
    return x if kind.dtype.is_float else Quantize(name=f"{x.name}:values", x=x, out=kind)


BYTE, WORD = (
    ElementType(dtype, QuantParams.per_tensor(0.05, zero_point))
    for dtype, zero_point in ((DType.I8, 3), (DType.I16, 0))
)
FLOAT = ElementType(DType.F32)
PRODUCTS = (
    (BYTE, BYTE, ElementType(DType.I8, QuantParams.per_tensor(0.7, -5))),
    (BYTE, BYTE, None),
    (WORD, BYTE, None),
    (FLOAT, FLOAT, None),
)


@pytest.mark.slow
@moderate
@given(data=st.data(), graph=products(), level=levels)
def test_tuned_products_are_those_of_the_default_bit_for_bit(
    data: st.DataObject, graph: Graph, level: str
) -> None:
    assert_same_bits(data, graph, feeds_of(graph, 1), level)


@moderate
@given(graph=st.one_of(kinds.map(lambda case: integers(case)[0]), products()), level=levels)
def test_the_default_is_one_of_the_choices(graph: Graph, level: str) -> None:
    for task in tasks(graph, resolve(level)):
        assert task.choices[0] == task.default
        assert len(set(task.choices)) == len(task.choices)


@moderate
@given(graph=st.one_of(kinds.map(lambda case: integers(case)[0]), products()), level=levels)
def test_the_kernel_of_the_default_choice_is_the_default_kernel(graph: Graph, level: str) -> None:
    for task in tasks(graph, resolve(level)):
        kernel = task.kernel(task.default)
        assert kernel is not None
        tuned_call, call = kernel.call(), emit(task.step, task.target)
        assert (tuned_call.ir, tuned_call.items) == (call.ir, call.items)


@pytest.mark.parametrize(
    "choice",
    [
        KernelChoice("no such form"),
        KernelChoice("plain", (1, 100, 1)),
        KernelChoice("plain", (3, 2, 1)),
        KernelChoice("plain", None, None, 3),
        KernelChoice("plain", None, None, None, "late"),
        KernelChoice("matrix", (1, 1, 1)),
        KernelChoice("gathered", None, None, 4),
        KernelChoice("pairs", (1, 9, 9)),
    ],
    ids=str,
)
def test_choices_that_do_not_fit_are_not_used(choice: KernelChoice) -> None:
    assert_not_used(integers(CASE)[0], choice)


def assert_not_used(graph: Graph, choice: KernelChoice) -> None:
    target = resolve(LEVELS[0])
    (task,) = tasks(graph, target)
    assert task.kernel(choice) is None
    assert_agree(graph, feeds_of(graph, 1), tuned(target, task, choice))


@pytest.mark.parametrize(
    "choice",
    [
        KernelChoice("plain", (1, 2, 1)),
        KernelChoice("carried", None),
        KernelChoice("carried", (9, 1, 4)),
        KernelChoice("passes", (1, 1, 3)),
        KernelChoice("columns", (1, 4, 1)),
        KernelChoice("bytes", (1, 1, 1)),
    ],
    ids=str,
)
def test_choices_that_do_not_fit_a_depthwise_one_are_not_used(choice: KernelChoice) -> None:
    case = replace(CASE, group=40, c_group=1, o_group=1)
    assert_not_used(integers(case)[0], choice)


@pytest.mark.parametrize(
    "choice",
    [
        KernelChoice("plain", (1, 2, 1)),
        KernelChoice("bytes", None),
        KernelChoice("bytes", (1, 2, 1)),
        KernelChoice("words", (1, 1, 100)),
        KernelChoice("floats", (1, 1, 1)),
        KernelChoice("bytes", (1, 1, 1), True),
    ],
    ids=str,
)
def test_choices_that_do_not_fit_a_product_are_not_used(choice: KernelChoice) -> None:
    x, y = tensor("x", (2, 9, 20), BYTE), tensor("y", (2, 20, 30), BYTE)
    assert_not_used(Graph((x, y), (("out", MatMul(name="m", x=x, y=y)),)), choice)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("rows", "columns"), [(0, 30), (9, 0)])
def test_there_is_nothing_to_tune_in_a_product_without_results(
    rows: int, columns: int, level: str
) -> None:
    x, y = tensor("x", (2, rows, 20), FLOAT), tensor("y", (2, 20, columns), FLOAT)
    node = MatMul(name="m", x=computed(x, BYTE), y=computed(y, BYTE))
    assert tasks(Graph((x, y), (("out", node),)), resolve(level)) == []


@pytest.mark.parametrize("level", LEVELS)
def test_products_need_no_more_of_the_stack_than_by_default(level: str) -> None:
    x, y = tensor("x", (1, 70, 4096), FLOAT), tensor("y", (1, 4096, 64), FLOAT)
    node = MatMul(name="m", x=computed(x, WORD), y=computed(y, BYTE))
    (task,) = tasks(Graph((x, y), (("out", node),)), resolve(level))
    most = {choice.tile[0] for choice in task.choices if choice.tile and choice.form == "words"}
    assert max(most) <= 8


def test_choices_are_a_part_of_the_target_s_key_and_not_of_its_equality() -> None:
    target = resolve(LEVELS[0])
    (task,) = tasks(integers(CASE)[0], target)
    other = tuned(target, task, task.choices[-1])
    assert other == target and other.key != target.key


def test_choices_are_read_as_they_were_written() -> None:
    (task,) = tasks(integers(CASE)[0], resolve(LEVELS[0]))
    for choice in task.choices:
        assert KernelChoice.of(choice.to_json()) == choice
