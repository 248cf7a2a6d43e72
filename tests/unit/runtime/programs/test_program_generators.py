"""Code generators of program segments: what they are asked, given, and refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.interpreter.program import execute_program
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Add, Conv, Elementwise, Mul, Relu, Softmax
from quantglow.ir.program.layout import ALIGNMENT, ARENA, CONSTANTS, Bases
from quantglow.ir.program.program import Compute, Instruction, Repeat
from quantglow.ir.types import DType, f32
from quantglow.support.arrays import Array
from tests.generators.loops import loop_graphs
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.effort import moderate
from tests.support.equality import assert_equal_values
from tests.support.examples import NETWORKS, assert_equal_outputs, int8_graph
from tests.support.feeds import feeds_of
from tests.support.small_network import small_model, small_samples


@dataclass
class Reference(qg.ProgramGenerator):
    """The reference executor as a code generator of some operators."""

    kinds: tuple[type[Node], ...] = (Node,)
    unsigned_activations: bool = False
    planned: list[qg.PlannedProgram] = field(default_factory=list)
    name: str = "in NumPy"

    def runs(self, instruction: Instruction) -> bool:
        return not isinstance(instruction, Compute) or isinstance(instruction.op, self.kinds)

    def generate(self, planned: qg.PlannedProgram, num_threads: int) -> Callable[[Bases], None]:
        self.planned.append(planned)
        return lambda bases: execute_program(planned.layout, bases)


def steps_of(generator: Reference) -> list[Compute]:
    steps = [step for each in generator.planned for step in each.program.instructions]
    return [step for step in steps if isinstance(step, Compute)]


def loops_of(generator: Reference) -> list[Repeat]:
    steps = [step for each in generator.planned for step in each.program.instructions]
    return [step for step in steps if isinstance(step, Repeat)]


def chain() -> qg.Graph:
    """y = softmax(relu(x) * x) + x"""
    x = Input(name="x", tensor=f32(4, 8))
    product = Mul(name="product", x=Relu(name="relu", x=x), y=x)
    total = Add(name="total", x=Softmax(name="soft", x=product), y=x)
    return qg.Graph(inputs=(x,), outputs=(("y", total),))


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_generator_runs_whole_networks(name: str, unsigned: bool) -> None:
    generator = Reference(unsigned_activations=unsigned)
    model = qg.compile(int8_graph(name), backends=[generator])
    assert_equal_outputs(model, name)
    stored = {step.inputs[0].type.dtype for step in steps_of(generator) if step.op.op == "Conv"}
    assert stored == {DType.U8 if unsigned else DType.I8}


@given(graph=st.one_of(loop_graphs(), mixed_graphs()))
@moderate
def test_drawn_graphs_are_those_of_the_interpreter(graph: qg.Graph) -> None:
    feeds = feeds_of(graph)
    actual = qg.compile(graph, backends=[Reference()]).run(None, feeds)
    assert_equal_values(actual, qg.interpret(graph, feeds))


@given(graph=loop_graphs())
@moderate
def test_loops_go_to_it_with_their_bodies(graph: qg.Graph) -> None:
    generator = Reference(kinds=(Elementwise,))
    qg.compile(graph, backends=[generator])
    inner = [step for loop in loops_of(generator) for step in loop.steps]
    assert all(isinstance(step.op, Elementwise) for step in inner if isinstance(step, Compute))


def test_a_float_model_runs_on_it() -> None:
    model = qg.compile(small_model(), backends=[Reference()])
    (x,) = small_samples(1)
    for actual, expected in zip(model(x), qg.compile(small_model())(x), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_operators_are_cut_by_their_instructions() -> None:
    generator = Reference(kinds=(Elementwise,))
    model = qg.compile(chain(), backends=[generator])
    owners = {n.name: s.backend.name for s in model.build.segments for n in s.nodes}
    assert owners == {
        "relu": "in NumPy",
        "product": "in NumPy",
        "soft": "llvm",
        "total": "in NumPy",
    }
    assert {type(step.op) for step in steps_of(generator)} == {Elementwise}


def test_fused_instructions_that_it_refuses_are_named() -> None:
    @dataclass
    class SingleFunctions(Reference):
        def runs(self, instruction: Instruction) -> bool:
            is_single = (
                isinstance(instruction, Compute)
                and isinstance(instruction.op, Elementwise)
                and instruction.op.expression.size() == 1
            )
            return is_single or not isinstance(instruction, Compute)

    with pytest.raises(qg.BackendError, match=r"(?s)does not run Elementwise.*Remedy: Single"):
        qg.compile(chain(), backends=[SingleFunctions()])


def test_the_memory_of_a_call_is_aligned_and_guarded() -> None:
    memory: list[Bases] = []

    class Watching(Reference):
        def generate(self, planned: qg.PlannedProgram, num_threads: int) -> Callable[[Bases], None]:
            run = super().generate(planned, num_threads)

            def watched(bases: Bases) -> None:
                memory.append(bases)
                run(bases)

            return watched

    generator = Watching()
    qg.compile(int8_graph("mnist"), backends=[generator])(np.zeros((1, 1, 28, 28), np.float32))
    (bases,), (planned,) = memory, generator.planned
    assert [bases[at].ctypes.data % ALIGNMENT for at in (CONSTANTS, ARENA)] == [0, 0]
    assert bases[ARENA].size == planned.plan.peak_nbytes
    assert [base.flags.writeable for base in bases] == [False, True, False, True]
    (conv, *_) = (step for step in steps_of(generator) if isinstance(step.op, Conv))
    weights = conv.op.operands[1]
    assert isinstance(weights, Constant)
    place = planned.layout.place(conv.inputs[1])
    assert place.base == CONSTANTS
    assert place.offset_bytes % ALIGNMENT == 0
    np.testing.assert_array_equal(planned.layout.array(conv.inputs[1], bases), weights.value)


def test_threads_have_arenas_of_their_own() -> None:
    model = qg.compile(int8_graph("mnist"), backends=[Reference()])
    rng = np.random.default_rng(0)
    images = [rng.random((1, 1, 28, 28), np.float32) for _ in range(16)]
    expected = [model(image) for image in images]

    def run(image: Array) -> object:
        return model(image)

    with ThreadPoolExecutor(4) as pool:
        for actual, value in zip(pool.map(run, images), expected, strict=True):
            np.testing.assert_array_equal(actual, value)


def test_a_class_is_no_generator() -> None:
    with pytest.raises(qg.OptionError, match="pass objects"):
        qg.compile(small_model(), backends=[Reference])
