"""Convolution kernels on every level: integers bit for bit, floats to tolerance."""

from __future__ import annotations

import math
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.compiler import target_machine
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import level_target, resolve
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv, Gemm, Input
from quantglow.ir.ops.activation import Activation
from quantglow.ir.program.program import Compute
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.runtime.native.compilation import compile_program
from tests.generators.quantized_graphs.convolutions import (
    Case,
    cases,
    dtypes,
    element,
    floats,
    integers,
    tensor,
)
from tests.generators.values import activations
from tests.matrix.harness import TARGETS, assert_agree, planned, run_backwards
from tests.support.combinations import covering, mark_slow
from tests.support.effort import expensive, moderate
from tests.support.feeds import feeds_of


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", TARGETS)
@moderate
@given(case=cases())
def test_integer_conv_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.slow_variants(0)
@pytest.mark.parametrize("nbytes", mark_slow([32, 64], {64}))
@moderate
@given(case=st.one_of(cases(), cases(depthwise=True)))
def test_plain_code_takes_vectors_of_any_width(nbytes: int, case: Case) -> None:
    """Plain LLVM IR packs across whole vectors, others within 16 bytes of them."""
    graph, feeds = integers(case)
    plain = level_target("portable")
    wider = replace(plain.isa, vector_nbytes=nbytes)
    assert_agree(graph, feeds, replace(plain, name=f"portable{nbytes}", isa=wider))


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", ["native", *TARGETS])
@expensive
@given(case=cases(depthwise=True))
def test_integer_depthwise_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(["native", *TARGETS], TARGETS[::2]))
@expensive
@given(case=st.one_of(cases(), cases(depthwise=True)))
def test_items_of_a_convolution_need_each_other_not(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    resolved = resolve(target)
    program = planned(graph, resolved.isa.unsigned_activations)
    executable = compile_program(*program, resolved)
    (want,), (got,) = interpret(graph, feeds), run_backwards(executable, feeds)
    np.testing.assert_array_equal(got, want)


def depthwise_case(kernel: tuple[int, int], channels: int, stride: int) -> Case:
    """A depthwise convolution of two images of 9 by 14 pixels."""
    return Case(
        n=2,
        h=9,
        w=14,
        group=channels,
        c_group=1,
        o_group=1,
        kernel=kernel,
        strides=(stride, stride),
        dilations=(1, 1),
        pads=(kernel[0] // 2, kernel[1] // 2) * 2,
        seed=channels,
    )


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("stride", "channels", "target"),
    covering([1, 2], [15, 16, 17, 32, 33, 48, 49, 65], ["native", *TARGETS]),
)
def test_large_depthwise_windows_equal_the_interpreter(
    target: str, channels: int, stride: int
) -> None:
    """Two stacks of rows, for which half vectors of channels stay in registers."""
    for size, width in ((5, 1), (5, 8), (5, 17), (7, 16)):
        case = replace(
            depthwise_case((size, size), channels, stride),
            h=5,
            w=width,
            dtypes=(DType.I8, DType.I8, DType.I16 if channels == 33 else DType.I8),
            bounds=(0.0, 6.0) if width == 8 else (-math.inf, math.inf),
            seed=channels + width,
            activation=Activation("HardSwish") if channels in (17, 48) else None,
        )
        assert_agree(*integers(case), target, threads=1 + channels % 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("kernel", "channels", "stride", "target"),
    covering([(11, 10), (13, 7), (3, 31)], [3, 16, 37], [1, 2], ["native", *TARGETS]),
)
def test_depthwise_windows_of_many_taps_equal_the_interpreter(
    target: str, kernel: tuple[int, int], channels: int, stride: int
) -> None:
    """Beyond ``UNROLLED_TAPS`` floats loop over rows of taps; integers are unrolled."""
    case = replace(depthwise_case(kernel, channels, stride), float_result=channels == 16)
    assert_agree(*integers(case), target, threads=1 + stride % 2)
    assert_agree(*floats(case), target, threads=1 + stride % 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("window", "target"),
    covering([((17, 33), (12, 24)), ((40, 16), (6, 12))], ["native", *TARGETS]),
)
def test_wide_dilations_equal_the_interpreter(
    target: str, window: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """Pieces of the image have the taps that see it."""
    size, dilations = window
    for channels, residual in ((5, False), (32, True)):
        case = replace(
            depthwise_case((3, 3), channels, 1),
            group=1,
            c_group=channels,
            o_group=channels,
            h=size[0],
            w=size[1],
            dilations=dilations,
            pads=dilations * 2,
            residual=residual,
            in_place=residual,
        )
        assert_agree(*integers(case), target, threads=1 + channels % 2)
        assert_agree(*floats(case), target, threads=1 + channels % 2)


@pytest.mark.parametrize("target", ["avx512vnni", "avxvnni"])
@pytest.mark.parametrize(("width", "channels"), covering([1, 5, 16, 37], [17, 20, 24, 40, 52, 56]))
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


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("stride", "window", "target"),
    covering([1, 2, 3], [(3, (3, 3)), (3, (7, 7)), (1, (2, 5)), (5, (4, 1))], ["native", *TARGETS]),
)
def test_windows_of_few_channels_equal_the_interpreter(
    target: str, stride: int, window: tuple[int, tuple[int, int]]
) -> None:
    """Rows of 9, 21 and 5 bytes, whose last bytes are gathered."""
    channels, kernel = window
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


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(TARGETS, TARGETS[::2]))
@moderate
@given(case=cases(wide=True))
def test_int16_conv_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(TARGETS, TARGETS[1::2]))
@moderate
@given(case=cases(depthwise=True, wide=True))
def test_int16_depthwise_equals_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(TARGETS, TARGETS[::2]))
@moderate
@given(case=cases())
def test_float_conv_is_close_to_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = floats(case)
    assert_agree(graph, feeds, target, threads=1 + case.seed % 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(TARGETS, TARGETS[1::2]))
@moderate
@given(case=cases(depthwise=True))
def test_float_depthwise_is_close_to_the_interpreter(target: str, case: Case) -> None:
    graph, feeds = floats(case)
    assert_agree(graph, feeds, target)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(TARGETS, TARGETS[::2]))
@moderate
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
    graph = Graph((x,), (("y", y),))
    assert_agree(graph, feeds_of(graph, rows), target)


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
    target = level_target(level)
    texts = [emit(s, target).ir for s in program.instructions if isinstance(s, Compute)]
    modules = [llvm.parse_assembly(text) for text in texts]
    assert any(instruction in target_machine(target).emit_assembly(m) for m in modules)


@pytest.mark.parametrize("target", TARGETS)
def test_bounds_of_a_float_conv_keep_nan(target: str) -> None:
    x = Input(name="x", tensor=TensorType(DType.F32, (1, 1, 3, 1)))
    w = Constant(name="w", value=np.ones((1, 1, 1, 1), np.float32))
    graph = Graph((x,), (("y", Conv(name="y", x=x, w=w, low=0.0, high=6.0)),))
    feeds = {"x": np.array([np.nan, -1.0, 9.0], np.float32).reshape(1, 1, 3, 1)}
    assert_agree(graph, feeds, target)
