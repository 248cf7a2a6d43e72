"""Run programs with every buffer beside a guard page.

``python -m tests.unit.codegen.guard_pages TARGET FIRST STEP`` runs every ``STEP``-th case, from
``FIRST`` on, and prints its name before, so that the last line names the one that crashed.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    Add,
    AveragePool,
    Concat,
    Conv,
    LayerNormalization,
    MatMul,
    MaxPool,
    Pad,
    ReduceMean,
    Resize,
    Sigmoid,
    Softmax,
    Table,
    Transpose,
)
from quantglow.ir.program.program import Program
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.memory.planner import MemoryPlan, plan_memory
from quantglow.runtime.native.compilation import compile_program
from quantglow.support.arrays import Array
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from quantglow.transforms.program.sharing import share_in_place
from tests.support.guarded import guarded, protect
from tests.support.harsh import patterned

PAGE = mmap.PAGESIZE
CHANNELS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 33, 47, 49, 63, 64, 65)
ELEMENTS = {
    "u8": ElementType(DType.U8, QuantParams.per_tensor(0.05, 131)),
    "i16": ElementType(DType.I16, QuantParams.per_tensor(0.0003, 0)),
    "f32": ElementType(DType.F32),
    "i8": ElementType(DType.I8, QuantParams.per_tensor(0.05, 3)),
}
SHOWN = "shown"
"""Name of a node that is a second output."""


# -- memory


@dataclass(frozen=True)
class PagedPlan:
    """A memory plan with every temporary on pages of its own, at the end or the start of them, and
    guarded gaps.
    """

    plan: MemoryPlan
    gaps: tuple[tuple[int, int], ...]
    slack_nbytes: int

    @staticmethod
    def of(program: Program, slack_nbytes: int, at_end: bool) -> PagedPlan:
        offsets, gaps, position = {}, [], 0
        for buffer in plan_memory(program).offsets:
            room = -(-buffer.nbytes // PAGE) * PAGE
            offsets[buffer] = position + (room - buffer.nbytes if at_end else 0)
            gaps.append((position + room, PAGE))
            position += room + PAGE
        # An odd size distinguishes the arena from constants.
        plan = MemoryPlan(offsets, position + 1, position)
        return PagedPlan(plan, tuple(gaps), slack_nbytes)

    def allocate(self, nbytes: int, at_end: bool) -> Array:
        """Memory for ``compile_program``: the arena with its gaps, or a constant."""
        if nbytes != self.plan.peak_nbytes + self.slack_nbytes:
            return guarded(patterned(nbytes), at_end)
        arena = guarded(patterned(nbytes), at_end=False)
        for start, length in self.gaps:
            protect(arena.ctypes.data + start, length)
        return arena


def check(graph: Graph, target: Target, at_end: bool) -> None:
    """Run on guarded memory, and in one piece of plain memory; both results must be equal."""
    lowered = lower(graph, unsigned=target.isa.unsigned_activations)
    program = share_in_place(generate(lowered, slack_nbytes=target.isa.slack_nbytes))
    feeds = {node.name: values(node.type) for node in graph.inputs}
    expected = compile_program(program, plan_memory(program), target).run(feeds)
    paged = PagedPlan.of(program, target.isa.slack_nbytes, at_end)
    executable = compile_program(
        program, paged.plan, target, allocate=lambda nbytes: paged.allocate(nbytes, at_end)
    )
    outputs = [guarded(np.zeros_like(array), at_end) for array in expected]
    executable.run({name: guarded(array, at_end) for name, array in feeds.items()}, outputs)
    for want, got in zip(expected, outputs, strict=True):
        np.testing.assert_array_equal(got, want)


def values(kind: TensorType) -> Array:
    """Deterministic values of a type."""
    rng = np.random.default_rng(kind.size)
    if kind.dtype.is_float:
        return rng.normal(size=kind.shape).astype(np.float32)
    low, high = kind.dtype.limits
    return rng.integers(low, high + 1, kind.shape).astype(kind.dtype.numpy)


# -- cases


def an_input(name: str, element: ElementType, *shape: int) -> Input:
    return Input(name=name, tensor=TensorType(element.dtype, shape, element.quant))


def a_conv(
    x: Node, channels: int, kernel: tuple[int, int], *, group: int = 1, stride: int = 1
) -> Conv:
    """A convolution of the element type of ``x``, named ``y``."""
    rng = np.random.default_rng(channels)
    shape = (*kernel, x.type.shape[3] // group, channels)
    strides = (stride, stride)
    if x.type.dtype.is_float:
        w = Constant(name="w", value=rng.normal(size=shape).astype(np.float32))
        b = Constant(name="b", value=rng.normal(size=channels).astype(np.float32))
        return Conv(name="y", x=x, w=w, b=b, group=group, strides=strides)
    scales = QuantParams.symmetric(np.full(channels, 0.01, np.float32), 3)
    w_value = rng.integers(-127, 128, shape).astype(np.int8)
    w = Constant(name="w", value=w_value, element=ElementType(DType.I8, scales))
    b = Constant(name="b", value=rng.integers(-99, 99, channels).astype(np.int32))
    return Conv(name="y", x=x, w=w, b=b, group=group, strides=strides, out=x.type.element)


Case = tuple[str, Callable[[], Node]]


def convolutions(kind: str) -> Iterator[Case]:
    """A convolution directly on an input, with every channel count; and inside a padded
    temporary.
    """
    element = ELEMENTS[kind]
    for c in CHANNELS:
        for kernel, stride in (((1, 1), 1), ((2, 3), 2)):
            name = f"conv {kind} {c} channels {kernel} stride {stride}"
            yield (
                name,
                lambda c=c, k=kernel, s=stride: a_conv(
                    an_input("x", element, 1, 5, 6, c), 66 - c, k, stride=s
                ),
            )
    yield (
        f"conv {kind} three channels (5, 3)",
        lambda: a_conv(an_input("x", element, 1, 6, 17, 3), 40, (5, 3)),
    )
    for c in CHANNELS[::3]:
        yield (
            f"conv {kind} {c} channels on padded",
            lambda c=c: a_conv(padded(element, c), c, (3, 3)),
        )
        yield (
            f"conv {kind} {c} channels on an output",
            lambda c=c: a_conv(shown(an_input("x", element, 1, 3, 5, c)), c, (2, 1)),
        )
        residual = lambda c=c: with_residual(element, c)  # noqa: E731
        yield f"conv {kind} {c} channels residual", residual


def with_residual(element: ElementType, channels: int) -> Conv:
    conv = a_conv(an_input("x", element, 2, 3, 5, 9), channels, (1, 1))
    return replace(conv, residual=an_input("r", element, *conv.type.shape))


def padded(element: ElementType, channels: int) -> Node:
    x = an_input("x", element, 1, 4, 5, channels)
    return Pad(name="p", x=x, before=(0, 1, 1, 0), after=(0, 1, 1, 0))


def depthwise(kind: str) -> Iterator[Case]:
    element = ELEMENTS[kind]
    for c in (*CHANNELS[1::2], 96, 127):
        for kernel, stride in (((3, 3), 1 + c % 2), ((2, 5), 1), ((5, 5), 1 + c % 2)):
            name = f"depthwise {kind} {c} channels {kernel} stride {stride}"
            yield (
                name,
                lambda c=c, k=kernel, s=stride: a_conv(
                    an_input("x", element, 1, 7, 8, c), c, k, group=c, stride=s
                ),
            )
    for c in CHANNELS[1::3]:
        yield (
            f"depthwise {kind} {c} channels on padded",
            lambda c=c: a_conv(padded(element, c), c, (3, 3), group=c),
        )


def a_function(x: Node) -> Node:
    if x.type.dtype.is_float:
        return Sigmoid(name="y", x=x)
    entries = np.arange(2 ** (8 * x.type.dtype.nbytes))[::-1].astype(x.type.dtype.numpy)
    table = Constant(name="t", value=entries, element=x.type.element)
    return Table(name="y", x=x, table=table, out=x.type.element)


def shown(x: Node) -> Node:
    """A function of x that is an output, too."""
    return replace(a_function(x), name=SHOWN)  # type: ignore[type-var]


def others(kind: str) -> Iterator[Case]:
    element = ELEMENTS[kind]
    out = None if element.dtype.is_float else element
    window = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
    for c in CHANNELS[::3]:

        def x(c: int = c) -> Input:
            return an_input("x", element, 1, 5, 4, c)

        def z(c: int = c) -> Input:
            return an_input("z", element, 1, 5, 1, c)

        yield f"maxpool {kind} {c}", lambda x=x: MaxPool(name="y", x=x(), **window)
        yield (
            f"averagepool {kind} {c}",
            lambda x=x: AveragePool(name="y", x=x(), **window, out=out),
        )
        yield f"add {kind} {c}", lambda x=x, z=z: Add(name="y", x=x(), y=z(), out=out)
        yield f"table or sigmoid {kind} {c}", lambda x=x: a_function(x())
        yield (
            f"layer normalization {kind} {c}",
            lambda x=x: LayerNormalization(name="y", x=x(), out=out),
        )
        if kind != "i16":
            yield f"softmax {kind} {c}", lambda x=x: Softmax(name="y", x=x(), out=out)
        yield f"mean {kind} {c}", lambda x=x: ReduceMean(name="y", x=x(), axes=(1, 2), out=out)
        yield f"transpose {kind} {c}", lambda x=x: Transpose(name="y", x=x(), perm=(0, 3, 1, 2))
        yield (
            f"concat {kind} {c}",
            lambda x=x, z=z: Concat(name="y", parts=(x(), z()), axis=2),
        )
        for mode in ("nearest", "linear"):
            yield (
                f"resize {kind} {c} {mode}",
                lambda x=x, mode=mode: Resize(
                    name="y", x=x(), sizes=(7, 9), scales=(1.4, 2.25), mode=mode
                ),
            )
        yield (
            f"matmul {kind} {c}",
            lambda c=c: MatMul(
                name="y",
                x=an_input("x", element, 2, 5, c),
                y=an_input("z", element, 2, c, 66 - c),
                out=out,
            ),
        )


def cases() -> Iterator[Case]:
    for kind in ELEMENTS:
        yield from convolutions(kind)
        yield from depthwise(kind)
        yield from others(kind)


def graph_of(node: Node) -> Graph:
    """The graph of a node and of those that are shown, its inputs found."""
    inputs: dict[str, Input] = {}
    outputs = {"out": node}

    def visit(node: Node) -> None:
        if isinstance(node, Input):
            inputs[node.name] = node
        if node.name == SHOWN:
            outputs[SHOWN] = node
        for operand in node.operands:
            visit(operand)

    visit(node)
    return Graph(tuple(inputs.values()), tuple(outputs.items()))


def main(target: str, first: int, step: int) -> None:
    for name, make in islice(cases(), first, None, step):
        for at_end in (True, False):
            print(f"{name}, {'before' if at_end else 'after'} a forbidden page", flush=True)
            check(graph_of(make()), resolve(target), at_end)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
