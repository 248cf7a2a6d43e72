"""``bisect`` finds injected faults unaided: in passes, in kernels, in code generators of a user."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.api import bisect as bisection
from quantglow.api.bisect import Bisection, cut_after, difference
from quantglow.codegen.llvm.kernel import KernelCall, emit_rules
from quantglow.importer.onnx import source as importing
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.graph.signature import numpy_type
from quantglow.ir.ops import AveragePool, MaxPool
from quantglow.support.arrays import Array
from quantglow.support.processes.isolation import call_isolated
from quantglow.transforms import float as passes
from quantglow.transforms import lowering
from quantglow.transforms.rewrite import Pass, RewritePass, repeat
from tests.generators.onnx_models.float_types import all_of
from tests.support.embedded import network
from tests.support.feeds import feeds_of
from tests.support.small_network import small_model, small_samples
from tests.unit.api.models.test_late_families import chosen_twice, with_chosen
from tests.unit.importer.onnx.onnx_models import floats

MNIST = network("mnist")
FEEDS = MNIST.feeds(8)


def doubled(node: Node, uses: Any) -> Node | None:
    """A fault: the filters of every convolution twice as large."""
    if node.op != "Conv" or not isinstance(w := node.operands[1], Constant):
        return None
    if w.name.endswith(":doubled"):
        return None
    value = (w.value * 2).astype(w.value.dtype)
    other = Constant(name=f"{w.name}:doubled", value=value)
    return node.with_operands((node.operands[0], other, *node.operands[2:]))


FAULT = RewritePass("double-filters", doubled)


def with_fault(steps: tuple[Pass, ...], fault: Pass) -> tuple[Pass, ...]:
    """The passes with a faulty one in their middle."""
    half = len(steps) // 2
    return (*steps[:half], fault, *steps[half:])


def test_a_model_that_is_right_has_no_part() -> None:
    bisection = qg.bisect(MNIST.path, FEEDS)
    assert bisection == Bisection()
    assert "give the results of the reference" in str(bisection)


def test_a_model_in_which_nodes_decide_sizes_has_no_part() -> None:
    assert qg.bisect(chosen_twice(), with_chosen(7, 3)) == Bisection()


def test_a_pass_is_found_behind_nodes_that_decide_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(node: Node, uses: Any) -> Node | None:
        """A fault: the weights of the last layer are lost."""
        if not isinstance(node, Constant) or node.value.shape[-1:] != (4,) or not node.value.any():
            return None
        return Constant(name=f"{node.name}:lost", value=np.zeros_like(node.value))

    steps = with_fault(passes.FLOAT_PASSES, RewritePass("lose-weights", lose))
    for module in (passes, bisection):
        monkeypatch.setattr(module, "FLOAT_PASSES", steps)
    actual = qg.bisect(chosen_twice(), with_chosen(7, 3))
    assert (actual.stage, actual.name) == ("pass", "lose-weights")


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", ["float16", "float64", "bfloat16"])
def test_a_model_of_another_float_type_has_no_part(kind: str) -> None:
    x = [sample.astype(numpy_type(kind)) for sample in small_samples()]
    assert qg.bisect(all_of(small_model(), kind), x) == Bisection()


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 2])
def test_an_int8_graph_that_is_right_has_no_part(threads: int) -> None:
    graph = qg.quantize_and_compile(MNIST.path, FEEDS, progress=False).graph
    assert qg.bisect(graph, FEEDS, num_threads=threads) == Bisection()


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "fault", [FAULT, repeat("some-passes", FAULT)], ids=["alone", "in-a-group"]
)
def test_a_faulty_pass_is_found(fault: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = with_fault(passes.FLOAT_PASSES, fault)
    for module in (passes, bisection):
        monkeypatch.setattr(module, "FLOAT_PASSES", steps)
    actual = qg.bisect(MNIST.path, FEEDS)
    assert (actual.stage, actual.name) == ("pass", "double-filters")
    assert actual.difference > 0.1


@pytest.mark.slow
def test_a_faulty_lowering_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = qg.quantize_and_compile(MNIST.path, FEEDS, progress=False).graph
    fault = RewritePass("drop-last-row", dropped)
    steps = (*lowering.LOWERING_PASSES, fault)
    for module in (lowering, bisection):
        monkeypatch.setattr(module, "LOWERING_PASSES", steps)
    actual = qg.bisect(graph, FEEDS)
    assert (actual.stage, actual.name) == ("pass", "drop-last-row")


def dropped(node: Node, uses: Any) -> Node | None:
    """A fault: constants of 100 elements and more lose their last one."""
    for operand in node.operands:
        if isinstance(operand, Constant) and operand.value.size >= 100 and operand.value.flat[-1]:
            value = operand.value.copy()
            value.flat[-1] = 0
            other = replace(operand, value=value)
            return node.with_operands(tuple(other if x is operand else x for x in node.operands))
    return None


@pytest.mark.slow
def test_a_faulty_kernel_is_found() -> None:
    """In a process of its own, whose kernels nobody else uses."""
    (text,) = call_isolated(f"{__name__}:found_in_faulty_kernels", seconds=120)
    first = next(n for n in ready_graph().nodes if n.op == "MaxPool")
    assert bytes(text).decode() == f"kernel {first.name} MaxPool"


def found_in_faulty_kernels(arrays: list[Array]) -> list[Array]:
    """The finding of ``bisect`` where maximum pools compute averages."""
    os.environ["QUANTGLOW_CACHE_DIR"] = ""
    emit: Callable[..., KernelCall] = emit_rules[MaxPool]

    def averaging(step: Any, target: Any) -> KernelCall:
        names = [f.name for f in fields(AveragePool) if f.init and f.name in vars(step.op)]
        ours = {name: getattr(step.op, name) for name in names}
        return emit(replace(step, op=AveragePool(**ours)), target)

    emit_rules[MaxPool] = averaging
    bisection = qg.bisect(MNIST.path, FEEDS)
    return [np.frombuffer(f"{bisection.stage} {bisection.name} {bisection.op}".encode(), np.uint8)]


def ready_graph() -> Graph:
    """MNIST as it is compiled."""
    return passes.optimize(qg.import_model(MNIST.path))


@dataclass(frozen=True)
class Negating:
    """A backend whose code for an operator gives the negative of every result."""

    op: str
    name: str = "negating"

    def supports(self, node: Node) -> bool:
        return node.op == self.op

    def compile(self, segment: Graph, target: str, num_threads: int) -> Any:
        @dataclass(frozen=True)
        class Negated:
            def run(self, feeds: Any) -> list[Array]:
                return [-array for array in interpret(segment, feeds)]

        return Negated()


def test_a_faulty_backend_of_a_user_is_found() -> None:
    op = ready_graph().compute_nodes()[-1].op
    bisection = qg.bisect(MNIST.path, FEEDS, backends=[Negating(op)])
    assert (bisection.stage, bisection.op) == ("kernel", op)
    assert "machine code" in str(bisection)


def test_a_faulty_import_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = importing.Source.graph

    def wrong(self: Any, *inputs: Any, **options: Any) -> Graph:
        return FAULT(whole(self, *inputs, **options))

    monkeypatch.setattr(importing.Source, "graph", wrong)
    assert qg.bisect(MNIST.path, FEEDS).stage == "import"


def test_cuts_compute_what_later_nodes_read() -> None:
    graph = ready_graph()
    nodes = graph.compute_nodes()
    for count in range(1, len(nodes) + 1):
        cut = cut_after(graph, nodes[:count])
        assert set(cut.compute_nodes()) == set(nodes[:count])
        interpret(cut, feeds_of(graph))


@pytest.mark.parametrize(
    ("expected", "actual", "size"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.0, -2.0], 0.5),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.inf], [1.0, 2.0], np.inf),
        ([0.0], [1.0, 2.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_differences_are_relative(expected: list[float], actual: list[float], size: float) -> None:
    assert difference(np.float32(expected), np.float32(actual)) == size


def test_integers_are_equal_or_not() -> None:
    assert difference(np.int8([1, 2]), np.int8([1, 2])) == 0
    assert difference(np.int8([1, 2]), np.int8([1, 3])) == np.inf


def test_no_samples_are_an_error() -> None:
    with pytest.raises(qg.CalibrationError, match="holds no samples"):
        qg.bisect(MNIST.path, [])


DELEGATED = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
g (float[2, 3] x) => (float[2, 3] y) {
    a = ai.onnx.ml.Normalizer <norm = "L2"> (x)
    y = Relu (a)
}"""


def test_nodes_of_onnxruntime_are_part_of_the_search() -> None:
    assert qg.bisect(onnx.parser.parse_model(DELEGATED), [floats(2, 3)]) == Bisection()
