"""Hypothesis: convolutions as graphs of one node, integer and float, with their feeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Constant, Conv, Dequantize, Input, Neg, Quantize
from quantglow.ir.ops.activation import Activation
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.generators.values import activations
from tests.support.feeds import feeds_of


@dataclass(frozen=True)
class Case:
    """One drawn convolution."""

    n: int
    h: int
    w: int
    group: int
    c_group: int
    o_group: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    residual: bool = False
    float_result: bool = False
    zero_points: tuple[int, int] = (-3, 9)
    dtypes: tuple[DType, DType, DType] = (DType.I8, DType.I8, DType.I8)
    """Quantization of x, the residual and the result."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    seed: int = 0
    activation: Activation | None = None
    in_place: bool = False
    """Whether the residual and the result are temporary, so that they may lie in one place."""


@st.composite
def cases(draw: st.DrawFn, depthwise: bool = False, wide: bool = False) -> Case:
    """Shapes at the edges of tiles: channels 1…65, pixels 1…17, any stride, dilations with which
    some taps see only padding; ``wide`` tensors are int8 or int16.
    """
    dilations = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 3), (1, 9), (7, 8)]))
    kernel = draw(st.tuples(*(st.integers(1, 5 if d < 7 else 3) for d in dilations)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = draw(st.tuples(*(st.integers(0, max(2, d)) for d in (*dilations, *dilations))))
    sizes = [max(1, r - p) for r, p in zip(reach, pads[:2], strict=True)]
    h, w = (draw(st.integers(size, max(size, 17))) for size in sizes)
    group = draw(st.integers(2, 70)) if depthwise else draw(st.sampled_from([1, 1, 1, 2, 3]))
    return Case(
        n=draw(st.integers(1, 2)),
        h=h,
        w=w,
        group=group,
        c_group=1 if depthwise else draw(st.integers(1, 37)),
        o_group=1 if depthwise else draw(st.integers(1, 65)),
        kernel=kernel,
        strides=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        dilations=dilations,
        pads=pads,
        residual=draw(st.booleans()),
        float_result=draw(st.booleans()),
        zero_points=draw(st.tuples(st.integers(-128, 127), st.integers(-128, 127))),
        dtypes=draw(st.tuples(*[dtypes(wide)] * 3)),
        bounds=draw(st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0)])),
        seed=draw(st.integers(0, 2**20)),
        activation=draw(st.one_of(st.none(), activations())),
        in_place=draw(st.booleans()),
    )


def dtypes(wide: bool) -> st.SearchStrategy[DType]:
    return st.sampled_from([DType.I16, DType.I16, DType.I8]) if wide else st.just(DType.I8)


def element(dtype: DType, scale: float, zero_point: int) -> ElementType:
    """An element type of either width with about the same range."""
    if dtype is DType.I16:
        scale, zero_point = scale / 200, 0
    return ElementType(dtype, QuantParams.per_tensor(scale, zero_point))


def integers(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    """The case on integers with extreme values among the weights and activations, and biases that
    no float32 holds in a third of the cases.
    """
    rng = np.random.default_rng(case.seed)
    bias_limit = 5000 if case.seed % 3 else 2**30
    c, o = case.group * case.c_group, case.group * case.o_group
    x_zero, y_zero = case.zero_points
    x_dtype, r_dtype, y_dtype = case.dtypes
    codes = rng.choice([-127, -1, 0, 1, 64, 127], (*case.kernel, case.c_group, o)).astype(np.int8)
    scales = rng.uniform(1e-4, 1e-2, o).astype(np.float32)
    symmetric = ElementType(DType.I8, QuantParams.symmetric(scales, 3))
    out = None if case.float_result else element(y_dtype, 0.11, y_zero)
    return graph_of(
        case,
        tensor("x", (case.n, case.h, case.w, c), element(x_dtype, 0.05, x_zero)),
        Constant(name="w", value=codes, element=symmetric),
        Constant(name="b", value=rng.integers(-bias_limit, bias_limit, o).astype(np.int32)),
        residual=ElementType(DType.F32) if case.float_result else element(r_dtype, 0.03, 7),
        out=out,
    )


def floats(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    """The case on floats."""
    rng = np.random.default_rng(case.seed)
    c, o = case.group * case.c_group, case.group * case.o_group
    w = rng.normal(size=(*case.kernel, case.c_group, o)).astype(np.float32)
    return graph_of(
        case,
        tensor("x", (case.n, case.h, case.w, c), ElementType(DType.F32)),
        Constant(name="w", value=w),
        Constant(name="b", value=rng.normal(size=o).astype(np.float32)),
        residual=ElementType(DType.F32),
    )


def graph_of(
    case: Case,
    x: Input,
    w: Constant,
    b: Constant,
    residual: ElementType,
    out: ElementType | None = None,
) -> tuple[Graph, dict[str, np.ndarray]]:
    """The convolution of x with its feeds; ``residual`` is the type of the other summand."""
    low, high = case.bounds
    bare = Conv(name="y", x=x, w=w, b=b, out=out, low=low, high=high, **fields_of(case))
    if not case.residual:
        graph = Graph((x,), (("y", replace(bare, activation=case.activation)),))
        return graph, feeds_of(graph, case.seed)
    r = tensor("r", bare.type.shape, residual)
    added = r
    if case.in_place:
        r = tensor("r", bare.type.shape, ElementType(DType.F32))
        added = (
            Neg(name="added", x=r)
            if residual.quant is None
            else Quantize(name="added", x=r, out=residual)
        )
    y: Node = replace(bare, residual=added, activation=case.activation)
    if case.in_place:
        y = Neg(name="z", x=y) if out is None else Dequantize(name="z", x=y)
    graph = Graph((x, r), (("y", y),))
    return graph, feeds_of(graph, case.seed)


def tensor(name: str, shape: tuple[int, ...], kind: ElementType) -> Input:
    return Input(name=name, tensor=TensorType(kind.dtype, shape, kind.quant))


def fields_of(case: Case) -> dict[str, Any]:
    return {
        "strides": case.strides,
        "pads": case.pads,
        "dilations": case.dilations,
        "group": case.group,
    }
