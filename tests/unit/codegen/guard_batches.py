"""Run batches in pieces and on several threads, with all memory before guard pages.

``python -m tests.unit.codegen.guard_batches TARGET FIRST STEP`` runs every ``STEP``-th case, from
``FIRST`` on, and prints its name before, so that the last line names the one that crashed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

import numpy as np

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import resolve
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Conv, Gemm, ReduceMax, Reshape
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.runtime.programs.build import Compiler
from tests.support.guarded import guarded
from tests.support.harsh import harsh
from tests.unit.codegen.guard_pages import a_conv, an_input, values

ELEMENT = ElementType(DType.I8, QuantParams.per_tensor(0.05, 3))
CHANNELS = 17


def network(batch: int) -> tuple[Input, Conv, Gemm]:
    """An image, a Conv of it, and a Gemm of that."""
    x = an_input("x", ELEMENT, batch, 5, 4, 9)
    conv = a_conv(x, CHANNELS, (3, 3))
    rows = Reshape(name="rows", x=conv, shape=(batch, conv.type.size // batch))
    scales = QuantParams.per_tensor(0.01, 0)
    codes = np.random.default_rng(batch).integers(-127, 128, (rows.type.shape[1], 5))
    w = Constant(name="gw", value=codes.astype(np.int8), element=ElementType(DType.I8, scales))
    return x, conv, Gemm(name="z", x=rows, w=w, out=ELEMENT)


def constant(name: str, *shape: int) -> Constant:
    return Constant(name=name, value=np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def endings(batch: int) -> dict[str, tuple[Input, list[Node]]]:
    """Outputs of a graph besides its last value."""
    x, conv, last = network(batch)
    no_axes = ReduceMax(name="m", x=last, axes=(0, 1), keepdims=False)
    row = constant("c", batch, 7)
    cases: dict[str, list[Node]] = {
        "one output": [],
        "images": [conv],
        "an input": [x],
        "the same value": [last],
        "a constant": [row],
        "a constant for all samples": [constant("c", 1, 7)],
        "no axes": [no_axes],
        "all of them": [x, row, conv, last, no_axes],
    }
    return {name: (x, [last, *others, last]) for name, others in cases.items()}


def cases() -> Iterator[tuple[str, Graph, int]]:
    """Name, graph and number of threads."""
    for batch in range(2, 9):
        for name, (x, outputs) in endings(batch).items():
            graph = Graph((x,), tuple((node.name, node) for node in outputs))
            for threads in (1, 2, 3):
                yield f"batch of {batch}, {threads} threads, outputs: {name}", graph, threads


def check(graph: Graph, target: Target, threads: int) -> None:
    """The integers of the interpreter."""
    feeds = {node.name: guarded(values(node.type), at_end=True) for node in graph.inputs}
    with harsh():
        compiler = Compiler(target, threads).compile(graph).executable.run(feeds)
    for want, got in zip(interpret(graph, feeds), compiler, strict=True):
        np.testing.assert_array_equal(got, want)


def main(target: str, first: int, step: int) -> None:
    for name, graph, threads in islice(cases(), first, None, step):
        print(name, flush=True)
        check(graph, resolve(target), threads)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
