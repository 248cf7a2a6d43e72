"""Convolution kernels on every x86 level: integers bit for bit, floats to tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantglow.backends.llvm.compiler import machine
from quantglow.backends.llvm.executable import compile_program
from quantglow.backends.llvm.kernels import emit
from quantglow.backends.llvm.levels import resolve
from quantglow.graph.graph import Graph
from quantglow.instr.program import Compute
from quantglow.interpreter import interpret
from quantglow.ops import Constant, Conv, Gemm, Input
from quantglow.ops.activation import Activation
from quantglow.types import DType, ElementType, QuantParams, TensorType
from tests.matrix.drawing import run_backwards
from tests.matrix.harness import TARGETS, assert_agree, planned
from tests.strategies import activations


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
    residual: bool
    float_result: bool
    zero_points: tuple[int, int]
    dtypes: tuple[DType, DType, DType]
    """Of x, the residual and the result."""
    bounds: tuple[float, float]
    seed: int
    activation: Activation | None = None


@st.composite
def cases(draw: st.DrawFn, depthwise: bool = False, wide: bool = False) -> Case:
    """Shapes at the edges of tiles: channels 1…65, pixels 1…17, any stride; ``wide``: tensors are
    int8 or int16."""
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    dilations = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 3)]))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    h, w = (draw(st.integers(max(1, r - p), 17)) for r, p in zip(reach, pads[:2], strict=True))
    group = draw(st.integers(2, 70)) if depthwise else draw(st.sampled_from([1, 1, 1, 2, 3]))
    residual = not depthwise and draw(st.booleans())
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
        residual=residual,
        float_result=not residual and not depthwise and draw(st.booleans()),
        zero_points=draw(st.tuples(st.integers(-128, 127), st.integers(-128, 127))),
        dtypes=draw(st.tuples(*[dtypes(wide)] * 3)),
        bounds=draw(st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0)])),
        seed=draw(st.integers(0, 2**20)),
        activation=draw(st.one_of(st.none(), activations())),
    )


def dtypes(wide: bool) -> st.SearchStrategy[DType]:
    return st.sampled_from([DType.I16, DType.I16, DType.I8]) if wide else st.just(DType.I8)


def element(dtype: DType, scale: float, zero_point: int) -> ElementType:
    """An element type of either width that reaches as far."""
    if dtype is DType.I16:
        scale, zero_point = scale / 200, 0
    return ElementType(dtype, QuantParams.per_tensor(scale, zero_point))


def integers(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    """The case on integers with extreme values among the weights and activations."""
    rng = np.random.default_rng(case.seed)
    c, o = case.group * case.c_group, case.group * case.o_group
    x_zero, y_zero = case.zero_points
    x_dtype, r_dtype, y_dtype = case.dtypes
    x = tensor("x", (case.n, case.h, case.w, c), element(x_dtype, 0.05, x_zero))
    w_value = rng.choice([-127, -1, 0, 1, 64, 127], (*case.kernel, case.c_group, o)).astype(np.int8)
    scales = rng.uniform(1e-4, 1e-2, o).astype(np.float32)
    w = Constant(
        name="w", value=w_value, element=ElementType(DType.I8, QuantParams.symmetric(scales, 3))
    )
    b = Constant(name="b", value=rng.integers(-5000, 5000, o).astype(np.int32))
    out = element(y_dtype, 0.11, y_zero)
    conv = Conv(name="probe", x=x, w=w, b=b, out=out, **shape_of(case))
    inputs = [x]
    if case.residual:
        inputs.append(tensor("r", conv.type.shape, element(r_dtype, 0.03, 7)))
    low, high = case.bounds
    conv = Conv(
        name="y",
        x=x,
        w=w,
        b=b,
        residual=inputs[1] if case.residual else None,
        activation=case.activation,
        out=None if case.float_result else out,
        low=low,
        high=high,
        **shape_of(case),
    )
    feeds = {i.name: codes(rng, i.type) for i in inputs}
    return Graph(tuple(inputs), (("y", conv),)), feeds


def tensor(name: str, shape: tuple[int, ...], kind: ElementType) -> Input:
    return Input(name=name, tensor=TensorType(kind.dtype, shape, kind.quant))


def codes(rng: np.random.Generator, kind: TensorType) -> np.ndarray:
    """Any integers of the type, one in five an extreme."""
    low, high = kind.dtype.limits
    drawn = rng.integers(low, high, kind.shape, endpoint=True)
    extremes = rng.choice([low, high], kind.shape)
    return np.where(rng.random(kind.shape) < 0.2, extremes, drawn).astype(kind.dtype.numpy)


def floats(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    rng = np.random.default_rng(case.seed)
    c, o = case.group * case.c_group, case.group * case.o_group
    x = Input(name="x", tensor=TensorType(DType.F32, (case.n, case.h, case.w, c)))
    w = Constant(
        name="w", value=rng.normal(size=(*case.kernel, case.c_group, o)).astype(np.float32)
    )
    b = Constant(name="b", value=rng.normal(size=o).astype(np.float32))
    probe = Conv(name="probe", x=x, w=w, b=b, **shape_of(case))
    inputs = [x]
    if case.residual:
        inputs.append(Input(name="r", tensor=probe.type))
    low, high = case.bounds
    residual = inputs[1] if case.residual else None
    conv = Conv(
        name="y",
        x=x,
        w=w,
        b=b,
        residual=residual,
        activation=case.activation,
        low=low,
        high=high,
        **shape_of(case),
    )
    feeds = {i.name: rng.normal(size=i.type.shape).astype(np.float32) for i in inputs}
    return Graph(tuple(inputs), (("y", conv),)), feeds


def shape_of(case: Case) -> dict[str, object]:
    return {
        "strides": case.strides,
        "pads": case.pads,
        "dilations": case.dilations,
        "group": case.group,
    }


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_integer_conv_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.parametrize("target", ["native", *TARGETS])
@settings(max_examples=40, deadline=None)
@given(case=cases(depthwise=True))
def test_integer_depthwise_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.parametrize("target", ["native", *TARGETS])
@settings(max_examples=12, deadline=None)
@given(case=st.one_of(cases(), cases(depthwise=True)))
def test_items_of_a_convolution_need_each_other_not(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    executable = compile_program(*planned(graph), resolve(target))
    (want,), (got,) = interpret(graph, feeds), run_backwards(executable, feeds)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", ["native", *TARGETS])
@pytest.mark.parametrize("channels", [15, 16, 17, 32, 33, 48, 49, 65])
@pytest.mark.parametrize("stride", [1, 2])
def test_large_depthwise_windows_equal_the_interpreter(
    target: str, channels: int, stride: int
) -> None:
    """Two stacks of rows, of which half vectors of channels stay in registers."""
    for size, width in ((5, 1), (5, 8), (5, 17), (7, 16)):
        case = Case(
            n=2,
            h=5,
            w=width,
            group=channels,
            c_group=1,
            o_group=1,
            kernel=(size, size),
            strides=(stride, stride),
            dilations=(1, 1),
            pads=(size // 2,) * 4,
            residual=False,
            float_result=False,
            zero_points=(-3, 9),
            dtypes=(DType.I8, DType.I8, DType.I16 if channels == 33 else DType.I8),
            bounds=(0.0, 6.0) if width == 8 else (-math.inf, math.inf),
            seed=channels + width,
            activation=Activation("HardSwish") if channels in (17, 48) else None,
        )
        assert_agree(*integers(case), target, threads=1 + channels % 2)


@pytest.mark.parametrize("target", ["avx512vnni", "avxvnni"])
@pytest.mark.parametrize("channels", [17, 20, 24, 40, 52, 56])
@pytest.mark.parametrize("width", [1, 5, 16, 37])
def test_pixels_that_share_a_vector_equal_the_interpreter(
    target: str, channels: int, width: int
) -> None:
    if target not in TARGETS:
        pytest.skip(f"this processor has no {target}")
    for quantized in (True, False):
        case = Case(
            n=2,
            h=3,
            w=width,
            group=1,
            c_group=13,
            o_group=channels,
            kernel=(3, 3),
            strides=(1, 1),
            dilations=(1, 1),
            pads=(1, 1, 1, 1),
            residual=channels in (17, 24, 40),
            float_result=channels == 20,
            zero_points=(-128, 9),
            dtypes=(DType.I8, DType.I8, DType.I16 if channels == 52 else DType.I8),
            bounds=(0.0, 6.0),
            seed=channels + width,
            activation=Activation("HardSigmoid", (0.2, 0.5)) if channels in (24, 52) else None,
        )
        graph, feeds = (integers if quantized else floats)(case)
        assert_agree(graph, feeds, target, threads=1 + channels % 2)


@pytest.mark.parametrize("target", ["native", *TARGETS])
@pytest.mark.parametrize(
    ("channels", "kernel"), [(3, (3, 3)), (3, (7, 7)), (1, (2, 5)), (5, (4, 1))]
)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_of_few_channels_equal_the_interpreter(
    target: str, channels: int, kernel: tuple[int, int], stride: int
) -> None:
    """Rows of 9, 21 and 5 bytes, of which the last are gathered."""
    for width, outputs in ((7, 17), (16, 32), (17, 64), (40, 65)):
        case = Case(
            n=2,
            h=8,
            w=width,
            group=1,
            c_group=channels,
            o_group=outputs,
            kernel=kernel,
            strides=(1, stride),
            dilations=(1, 1),
            pads=(kernel[0] // 2, kernel[1] // 2, 0, 1),
            residual=outputs == 17,
            float_result=outputs == 64,
            zero_points=(-128, 9),
            dtypes=(DType.I8, DType.I8, DType.I8),
            bounds=(0.0, 6.0),
            seed=channels + width,
        )
        assert_agree(*integers(case), target, threads=1 + width % 2)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=40, deadline=None)
@given(case=cases(wide=True))
def test_int16_conv_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=40, deadline=None)
@given(case=cases(depthwise=True, wide=True))
def test_int16_depthwise_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_float_conv_is_close_to_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = floats(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=15, deadline=None)
@given(case=cases(depthwise=True))
def test_float_depthwise_is_close_to_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = floats(case)
    assert_agree(graph, feeds, target)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 20),
    k=st.integers(1, 300),
    columns=st.integers(1, 150),
    kinds=st.tuples(dtypes(True), dtypes(True)),
    activation=st.one_of(st.none(), activations()),
)
def test_integer_gemm_equals_the_interpreter(
    target: str,
    rows: int,
    k: int,
    columns: int,
    kinds: tuple[DType, DType],
    activation: Activation | None,
) -> None:
    rng = np.random.default_rng(rows * 1000 + k)
    x = tensor("x", (rows, k), element(kinds[0], 0.02, -3))
    scales = rng.uniform(1e-3, 1e-2, columns).astype(np.float32)
    w = Constant(
        name="w",
        value=rng.integers(-127, 128, (k, columns)).astype(np.int8),
        element=ElementType(DType.I8, QuantParams.symmetric(scales, 1)),
    )
    y = Gemm(name="y", x=x, w=w, activation=activation, out=element(kinds[1], 0.3, 5))
    assert_agree(Graph((x,), (("y", y),)), {"x": codes(rng, x.type)}, target)


@pytest.mark.parametrize(
    ("level", "instruction"),
    [
        ("avx512vnni", "vpdpwssd"),
        ("avxvnni", "vpdpwssd"),
        ("avx2", "vpmaddwd"),
        ("x86-64", "pmaddwd"),
    ],
)
@pytest.mark.parametrize("group", [1, 32])
def test_int16_products_take_two_at_once(level: str, instruction: str, group: int) -> None:
    wide = ElementType(DType.I16, QuantParams.per_tensor(0.001, 0))
    x = tensor("x", (1, 4, 6, 32), wide)
    weights = ElementType(DType.I8, QuantParams.symmetric(np.full(32, 0.01), 3))
    w = Constant(name="w", value=np.ones((3, 3, 32 // group, 32), np.int8), element=weights)
    y = Conv(name="y", x=x, w=w, group=group, out=wide)
    program, _ = planned(Graph((x,), (("y", y),)))
    target = resolve(level)
    texts = [emit(s, target).ir for s in program.instructions if isinstance(s, Compute)]
    modules = [llvm.parse_assembly(text) for text in texts]
    assert any(instruction in machine(target).emit_assembly(m) for m in modules)


@pytest.mark.parametrize("target", TARGETS)
def test_bounds_of_a_float_conv_keep_nan(target: str) -> None:
    x = Input(name="x", tensor=TensorType(DType.F32, (1, 1, 3, 1)))
    w = Constant(name="w", value=np.ones((1, 1, 1, 1), np.float32))
    graph = Graph((x,), (("y", Conv(name="y", x=x, w=w, low=0.0, high=6.0)),))
    feeds = {"x": np.array([np.nan, -1.0, 9.0], np.float32).reshape(1, 1, 3, 1)}
    assert_agree(graph, feeds, target)
