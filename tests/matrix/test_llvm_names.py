"""Kernel calls of one name have one text on every x86 level, whatever their constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.kernel import call_names
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import LEVELS, level_target
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Alloc, Dealloc
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.matrix.harness import planned
from tests.matrix.test_llvm_convolution import Case, cases, integers
from tests.support.combinations import mark_slow
from tests.support.effort import moderate

DAILY = {"avx512vnni", "avx2", "dotprod", "rv64gcv", "wasm32", "cortex-m4", "portable"}
"""A few levels of each family; the others are slow."""

SCALES = (1e-3, 1.0, 1.0, 7.0, 1e9)


def texts(graph: Graph, target: str) -> dict[str, str]:
    """The texts of a graph's calls by their names."""
    program, _ = planned(graph)
    steps = [step for step in program.instructions if not isinstance(step, Alloc | Dealloc)]
    calls = [emit(step, level_target(target)) for step in steps]
    names = call_names(steps, calls, level_target(target))
    assert names is not None
    return {name: call.ir for name, call in zip(names, calls, strict=True)}


def varied(graph: Graph, seed: int) -> Graph:
    """The same convolution with other weights and other parameters of quantization."""
    rng = np.random.default_rng(seed)
    conv = graph.outputs[0][1]
    assert isinstance(conv, Conv) and isinstance(conv.w, Constant) and isinstance(conv.b, Constant)
    scales = np.asarray(conv.w.type.params.scales) * float(rng.choice(SCALES))
    element = ElementType(DType.I8, QuantParams.symmetric(scales, 3))
    weights = rng.choice([0, 1, 127], conv.w.type.shape).astype(np.int8)
    inputs = tuple(replace(i, tensor=varied_type(rng, i.type)) for i in graph.inputs)
    out = None
    if conv.out is not None:
        kind = varied_type(rng, conv.type)
        out = ElementType(kind.dtype, kind.quant)
    changed = replace(
        conv,
        x=inputs[0],
        w=Constant(name="w", value=weights, element=element),
        b=Constant(name="b", value=rng.choice([0, 2**30], conv.b.type.shape).astype(np.int32)),
        residual=None if conv.residual is None else inputs[1],
        out=out,
    )
    return Graph(tuple(i for i in inputs if isinstance(i, Input)), (("y", changed),))


def varied_type(rng: np.random.Generator, kind: TensorType) -> TensorType:
    """An element type with another scale, and sometimes another zero point."""
    if kind.quant is None:
        return kind
    zero_point = kind.params.zero_point
    if kind.dtype is DType.I8 and rng.integers(2):
        zero_point = int(rng.integers(-128, 128))
    scale = kind.params.scale * float(rng.choice(SCALES[:4]))
    return replace(kind, quant=QuantParams.per_tensor(scale, zero_point))


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(LEVELS, DAILY))
@moderate
@given(case=st.one_of(cases(wide=True), cases(), cases(depthwise=True)))
def test_calls_of_one_name_have_one_text(target: str, case: Case) -> None:
    graph, _ = integers(replace(case, in_place=False))
    actual = texts(graph, target)
    for seed in range(4):
        for name, text in texts(varied(graph, case.seed + seed), target).items():
            assert actual.setdefault(name, text) == text
