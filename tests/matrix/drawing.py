"""Drawn operands that are transposed or sliced inputs, and results that lie inside others."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from quantglow.backends.llvm.runtime.executable import LlvmExecutable, compile_program
from quantglow.backends.llvm.targets import LEVELS, resolve, runs_here
from quantglow.backends.reference import ReferenceExecutable
from quantglow.graph.graph import Graph
from quantglow.graph.node import Input, Node
from quantglow.ops import Concat, Pad, Slice, Transpose
from quantglow.types import Array, DType, ElementType, QuantParams, TensorType
from tests.matrix.harness import planned
from tests.support.guarded import guarded

TARGETS = ("native", *(name for name in LEVELS if runs_here(name)))
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
SCALES = (0.0117, 0.05, 0.4)
CHANNELS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 130)


@dataclass
class Drawing:
    """A graph under construction, drawn by hypothesis."""

    draw: st.DrawFn
    dtype: DType
    inputs: list[Input] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, *values):
        return self.draw(st.sampled_from(values))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def element(self, dtype: DType | None = None) -> ElementType:
        """Quantization with any scale and an odd zero point; float has none."""
        dtype = dtype or self.dtype
        if dtype.is_float:
            return ElementType(dtype)
        low, high = dtype.limits
        zero_point = self.pick(low, high, 0, 3, low + 1, high - 6)
        if dtype is DType.I16:
            zero_point = self.pick(0, 0, 0, zero_point)
        return ElementType(dtype, QuantParams.per_tensor(self.pick(*SCALES), zero_point))

    def input(self, shape: Sequence[int], dtype: DType | None = None) -> Node:
        """A value of ``shape``: an input, or a transposed or strided view of one."""
        shape = tuple(shape)
        how = self.pick("plain", "plain", "transposed", "sliced")
        element = self.element(dtype)
        if how == "transposed":
            perm = tuple(self.draw(st.permutations(range(len(shape)))))
            source = [0] * len(shape)
            for axis, p in enumerate(perm):
                source[p] = shape[axis]
            x = self.plain_input(tuple(source), element)
            return Transpose(name=self.name(), x=x, perm=perm)
        if how == "sliced":
            return self._sliced(shape, element)
        return self.plain_input(shape, element)

    def plain_input(self, shape: tuple[int, ...], element: ElementType) -> Input:
        made = Input(name=self.name(), tensor=TensorType(element.dtype, shape, element.quant))
        self.inputs.append(made)
        return made

    def _sliced(self, shape: tuple[int, ...], element: ElementType) -> Node:
        steps = tuple(self.pick(1, 1, 2, -1) for _ in shape)
        sizes = tuple((d - 1) * abs(s) + 2 for d, s in zip(shape, steps, strict=True))
        starts = tuple(1 if s > 0 else d - 1 for d, s in zip(sizes, steps, strict=True))
        x = self.plain_input(sizes, element)
        return Slice(name=self.name(), x=x, starts=starts, sizes=shape, steps=steps)

    def placed(self, node: Node) -> Node:
        """The node as an output, or computed inside a Pad or a Concat."""
        rank = node.type.rank
        how = self.pick("plain", "padded", "joined") if rank else "plain"
        if how == "padded":
            widths = [self.pick(0, 1, 3) for _ in range(2 * rank)]
            before, after = tuple(widths[:rank]), tuple(widths[rank:])
            return Pad(name=self.name(), x=node, before=before, after=after, value=1.0)
        if how == "joined":
            axis = self.number(0, rank - 1)
            other = self.plain_input(node.type.shape, node.type.element)
            parts = (node, other) if self.draw(st.booleans()) else (other, node)
            return Concat(name=self.name(), parts=parts, axis=axis)
        return node

    def graph(self, *nodes: Node) -> Graph:
        outputs = tuple((f"out{i}", self.placed(node)) for i, node in enumerate(nodes))
        return Graph(tuple(self.inputs), outputs)


def drawn_feeds(graph: Graph, seed: int, spread: float = 3.0) -> dict[str, Array]:
    """Random values, the extremes of the type among them, on guarded pages."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for node in graph.inputs:
        kind = node.type
        if kind.dtype.is_float:
            values = (rng.normal(size=kind.shape) * spread).astype(np.float32)
        else:
            low, high = kind.dtype.limits
            values = rng.integers(low, high + 1, kind.shape).astype(kind.dtype.numpy)
            values[rng.random(kind.shape) < 0.1] = low
            values[rng.random(kind.shape) < 0.1] = high
        feeds[node.name] = guarded(values, at_end=bool(rng.integers(2)))
    return feeds


def assert_targets_agree(
    graph: Graph, feeds: dict[str, Array], *, unsigned: bool = False, rtol: float = 1e-5
) -> None:
    """Check machine code of every target, whole or item by item, against the reference.

    Integers are equal bit for bit, floats within ``rtol`` of the largest.
    """
    program, plan = planned(graph, unsigned)
    expected = ReferenceExecutable(program, plan).run(feeds)
    for target in TARGETS:
        executable = compile_program(program, plan, resolve(target))
        runs = {"whole": executable.run(feeds), "split": run_backwards(executable, feeds)}
        for how, found in runs.items():
            for want, got in zip(expected, found, strict=True):
                assert_equal_or_close(got, want, rtol, f"{target}, {how}")


def run_backwards(executable: LlvmExecutable, feeds: dict[str, Array]) -> list[Array]:
    """Every work item of a kernel in a call of its own, the last one first."""
    outputs = [guarded(array, at_end=True) for array in executable.new_outputs()]
    with executable.bound(feeds, outputs) as table:
        for row, call in zip(table, executable.program.calls, strict=True):
            kernel = ENTRY(int(row[0]))
            for item in reversed(range(call.items)):
                kernel(int(row[1]), item, item + 1)
    return outputs


def assert_equal_or_close(got: Array, want: Array, rtol: float, where: str) -> None:
    if want.dtype != np.float32:
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale, err_msg=where)
