"""Places that program generation chooses for values: each awkward one computes the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Concat, Conv, Elementwise, Expand, Pad, Reshape, Slice, Transpose
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.program.program import BufferKind, Compute, Copy, Program
from quantglow.ir.program.verify import verify_program
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from quantglow.memory.planner import plan_memory
from quantglow.transforms.program.generate import generate
from quantglow.transforms.program.sharing import share_in_place

SHAPE = (1, 3, 4, 2)


def doubled(name: str, x: Node) -> Node:
    expression = call("add", arg(0), arg(0))
    return Elementwise(name=name, args=(x,), expression=expression, out=ElementType(DType.F32))


def pad(name: str, x: Node, width: int, value: float = 0.0) -> Pad:
    around = (0, width, width, 0)
    return Pad(name=name, x=x, before=around, after=around, value=value)


def concat(name: str, *parts: Node, axis: int = 3) -> Concat:
    return Concat(name=name, parts=parts, axis=axis)


def wider_pad_last(x: Node) -> list[Node]:
    """The narrower Pad is read before the wider one, which contains it, is computed."""
    a = doubled("a", x)
    narrow = doubled("n", pad("narrow", a, 1, 3.0))
    return [narrow, doubled("w", pad("wide", a, 2, 3.0))]


def narrow_pad_in_concat(x: Node) -> list[Node]:
    a = doubled("a", x)
    narrow = pad("narrow", a, 1)
    return [doubled("w", pad("wide", a, 2)), concat("j", narrow, narrow, axis=1)]


def narrow_pad_is_an_output(x: Node) -> list[Node]:
    a = doubled("a", x)
    return [pad("narrow", a, 1), pad("wide", a, 2)]


def pads_with_zeros_of_both_signs(x: Node) -> list[Node]:
    a = doubled("a", x)
    one = Constant(name="one", value=np.float32(1))
    pads = (pad("narrow", a, 1, -0.0), pad("wide", a, 2, 0.0))
    div = call("div", arg(1), arg(0))
    return [
        Elementwise(name=f"d{i}", args=(p, one), expression=div, out=ElementType(DType.F32))
        for i, p in enumerate(pads)
    ]


def pad_of_pad(x: Node) -> list[Node]:
    return [doubled("r", pad("outer", pad("inner", doubled("a", x), 1, 1.0), 2, 2.0))]


def part_twice(x: Node) -> list[Node]:
    a = doubled("a", x)
    return [concat("j", a, a, axis=1), concat("k", a, a)]


def part_is_an_output(x: Node) -> list[Node]:
    a = doubled("a", x)
    return [a, concat("j", a, doubled("b", a))]


def part_reads_its_sibling(x: Node) -> list[Node]:
    a = doubled("a", x)
    b = doubled("b", a)
    return [doubled("r", pad("p", concat("j", a, b, doubled("c", b)), 1))]


def empty_part(x: Node) -> list[Node]:
    sizes = (1, 3, 0, 2)
    nothing = Slice(name="s", x=x, starts=(0,) * 4, sizes=sizes, steps=(1,) * 4)
    return [nothing, concat("j", doubled("a", x), nothing, axis=2)]


def input_and_twice(x: Node) -> list[Node]:
    a = doubled("a", x)
    return [x, a, a, Transpose(name="t", x=a, perm=(3, 2, 1, 0))]


def written_over_an_expansion(x: Node) -> list[Node]:
    row = Slice(name="s", x=doubled("a", x), starts=(0,) * 4, sizes=(1, 1, 4, 2), steps=(1,) * 4)
    return [doubled("r", doubled("m", Expand(name="e", x=row, shape=SHAPE)))]


def value_is_read_again(x: Node) -> list[Node]:
    a = doubled("a", x)
    b = doubled("b", a)
    both = call("add", arg(0), arg(1))
    return [Elementwise(name="r", args=(a, b), expression=both, out=ElementType(DType.F32))]


def container_is_begun_before(x: Node) -> list[Node]:
    """c lies in the second Concat before b, its first part, could take over the first Concat."""
    c, a = doubled("c", doubled("e", doubled("f", x))), doubled("a", x)
    first = concat("j", a, doubled("a2", a), axis=1)
    second = concat("k", doubled("b", a), c, axis=1)
    return [doubled("q", c), doubled("r", first), doubled("s", second)]


def residual_is_the_image(x: Node) -> list[Node]:
    w = Constant(name="w", value=np.array([[[[1, 2], [3, 4]]]], np.float32))
    b = Constant(name="b", value=np.zeros(2, np.float32))
    a = doubled("a", x)
    return [doubled("r", Conv(name="c", x=a, w=w, b=b, residual=a))]


def reshape(name: str, x: Node, *shape: int) -> Reshape:
    return Reshape(name=name, x=x, shape=shape)


def reshaped_part_of_a_concat(x: Node) -> list[Node]:
    """Rows of one image between rows of another."""
    parts = [reshape(f"{n}-cells", doubled(n, x), 1, 3, 1, 8) for n in ("a", "b")]
    return [doubled("r", reshape("rows", concat("j", *parts, axis=2), 1, 6, 4, 2))]


def reshaped_concat_in_a_pad(x: Node) -> list[Node]:
    parts = [reshape(f"{n}-cells", doubled(n, x), 1, 3, 1, 8) for n in ("a", "b")]
    image = reshape("rows", concat("j", *parts, axis=2), 1, 6, 4, 2)
    return [doubled("r", pad("p", image, 1))]


def reshape_that_no_box_allows(x: Node) -> list[Node]:
    """The values of a would lie two bytes apart; rows of a padded image are no vector."""
    stacked = concat("j", *[reshape(f"{n}1", doubled(n, x), *SHAPE, 1) for n in "ab"], axis=4)
    flat = reshape("flat", doubled("c", x), 1, 2, 4, 3)
    return [doubled("r", stacked), doubled("s", pad("p", flat, 1))]


def reshape_is_an_output(x: Node) -> list[Node]:
    a = doubled("a", x)
    return [reshape("flat", a, 24), reshape("other", a, 2, 12), concat("j", a, doubled("b", a))]


CASES: list[Callable[[Node], list[Node]]] = [
    wider_pad_last,
    narrow_pad_in_concat,
    narrow_pad_is_an_output,
    pads_with_zeros_of_both_signs,
    pad_of_pad,
    part_twice,
    part_is_an_output,
    part_reads_its_sibling,
    empty_part,
    input_and_twice,
    written_over_an_expansion,
    value_is_read_again,
    container_is_begun_before,
    residual_is_the_image,
    reshaped_part_of_a_concat,
    reshaped_concat_in_a_pad,
    reshape_that_no_box_allows,
    reshape_is_an_output,
]


def graph_of(case: Callable[[Node], list[Node]], name: str = "out{}") -> Graph:
    x = Input(name="x", tensor=f32(*SHAPE))
    return Graph((x,), tuple((name.format(i), node) for i, node in enumerate(case(x))))


def programs(graph: Graph) -> list[Program]:
    program = generate(graph)
    return [program, share_in_place(program)]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("name", ["out{}", "out"], ids=["many names", "one name"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_every_placement_computes_the_graph(case: Callable[[Node], list[Node]], name: str) -> None:
    graph = graph_of(case, name)
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(np.float32)}
    for program in programs(graph):
        verify_program(program)
        executable = ReferenceExecutable(program, plan_memory(program)).run(feeds)
        for a, b in zip(executable, interpret(graph, feeds), strict=True):
            np.testing.assert_array_equal(a, b)


def copies(program: Program) -> int:
    return sum(isinstance(step, Copy) for step in program.instructions)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (pad_of_pad, 0),
        (part_reads_its_sibling, 0),
        (part_is_an_output, 1),
        (reshaped_part_of_a_concat, 0),
        (reshaped_concat_in_a_pad, 0),
        (reshape_that_no_box_allows, 3),
        (reshape_is_an_output, 2),
    ],
)
def test_containers_are_filled_in_place(case: Callable[[Node], list[Node]], expected: int) -> None:
    assert copies(generate(graph_of(case))) == expected


def shared_steps(case: Callable[[Node], list[Node]]) -> list[str]:
    """Names of the computations that run in place."""
    steps = share_in_place(generate(graph_of(case))).instructions
    return [
        s.op.name
        for s in steps
        if isinstance(s, Compute) and any(v.buffer is s.output.buffer for v in s.inputs)
    ]


def test_a_chain_of_maps_runs_in_one_buffer() -> None:
    def chain(x: Node) -> list[Node]:
        return [doubled("d", doubled("c", doubled("b", doubled("a", x))))]

    assert shared_steps(chain) == ["b", "c"]


def test_a_convolution_never_overwrites_the_image_it_reads() -> None:
    assert "c" not in shared_steps(residual_is_the_image)


def test_an_expanded_view_is_never_overwritten() -> None:
    assert "m" not in shared_steps(written_over_an_expansion)


def test_convolutions_read_no_buffer_of_the_caller() -> None:
    """They may read beyond the end, and only the program's own memory has slack."""
    element = ElementType(DType.I16, QuantParams.per_tensor(0.01, 0))
    x = node = Input(name="x", tensor=TensorType(DType.I16, (1, 3, 3, 2), element.quant))
    scales = QuantParams.symmetric(np.full(2, 0.01, np.float32), 3)
    w = Constant(
        name="w", value=np.ones((1, 1, 2, 2), np.int8), element=ElementType(DType.I8, scales)
    )
    b = Constant(name="b", value=np.zeros(2, np.int32))
    ends = []
    for name in ("first", "second"):
        node = Conv(name=name, x=node, w=w, b=b, out=element)
        ends.append((name, node))
    program = generate(Graph((x,), tuple(ends)), slack_nbytes=64)
    read = [step.ins[0].buffer.kind for step in program.instructions if isinstance(step, Compute)]
    assert read == [BufferKind.TEMP, BufferKind.TEMP]
