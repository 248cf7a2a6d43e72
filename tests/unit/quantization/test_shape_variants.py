"""Samples of other shapes say as much of a model as those of the shapes it is decided at."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from quantglow.api.pipeline import samples as driver_samples
from quantglow.api.pipeline.samples import Samples
from quantglow.importer.onnx import open_model
from quantglow.interpreter import interpret
from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.family import Case, Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv, Gemm, LayerNormalization, Mul, Reshape
from quantglow.ir.types import DType, TensorType
from quantglow.profiling import Profile, profile
from quantglow.quantization import quantizer
from quantglow.quantization.equalize.channel_groups import channel_groups
from quantglow.quantization.options import PRESETS, QuantizationConfig
from quantglow.quantization.plan.plan import make_plan
from quantglow.quantization.quantizer import QuantizedGraph, quantize_for_all_shapes
from quantglow.quantization.rounding import sample_nbytes
from quantglow.quantization.rounding.sampling import SampleEvaluator
from quantglow.quantization.search.fake_quantization import noise_to_signal, relative_noise
from quantglow.quantization.search.levers import prepare
from quantglow.quantization.search.rounding_sensitivity import rounding_sensitivities
from quantglow.quantization.search.time_budget import int16_candidates
from quantglow.quantization.shape_variants import (
    ShapeVariant,
    are_alike,
    at_own_shapes,
    counterpart,
    graph_for,
)
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from tests.support.free_network import SHAPES, free_model, image
from tests.unit.quantization.quantization_networks import compared_values, small_cnn

MAIN = (1, 3, 8, 12)
OTHERS = [(1, 3, 9, 7), (1, 3, 12, 8), (2, 3, 5, 9), (1, 3, 1, 17)]
PLAIN = QuantizationConfig()


@cache
def family() -> Family:
    source = open_model(free_model())
    return Family(
        source.signature, source.source_hash, lambda case: optimize(source.graph(case.shape_map))
    )


@cache
def main_graph() -> Graph:
    return family().at({"x": MAIN})


@cache
def shared_profile() -> Profile:
    shapes = [MAIN, *OTHERS]
    return profile(family(), [{"x": image(s, k)} for s in shapes for k in (1, 2)], progress=False)


def sample(shape: tuple[int, ...], seed: int = 0) -> dict[str, Array]:
    feeds = {"x": image(shape, seed)}
    return feeds if shape == MAIN else ShapeVariant(feeds, family().at({"x": shape}))


@pytest.mark.parametrize("shape", SHAPES)
def test_graphs_of_a_model_are_alike(shape: tuple[int, ...]) -> None:
    assert are_alike(main_graph(), family().at({"x": shape}))


def test_graphs_with_another_operator_name_or_kernel_are_not_alike() -> None:
    graph = small_cnn()
    conv = next(n for n in graph.nodes if isinstance(n, Conv))

    def with_conv(**changes: Any) -> Graph:
        built = {conv: replace(conv, **changes)}
        for node in graph.nodes:
            moved = node.with_operands(tuple(built.get(o, o) for o in node.operands))  # type: ignore[arg-type]
            built.setdefault(node, moved)  # type: ignore[call-overload]
        return graph.with_outputs(built[node] for _, node in graph.outputs)  # type: ignore[index]

    assert are_alike(graph, with_conv(low=-1.0))
    assert not are_alike(graph, with_conv(name="other"))
    w: Any = conv.w
    assert not are_alike(graph, with_conv(w=replace(w, name="other weights")))
    nearly = np.nextafter(w.value, np.float32(9))
    assert are_alike(graph, with_conv(w=replace(w, value=nearly)))
    assert not are_alike(graph, with_conv(w=replace(w, value=w.value / 12)))
    assert not are_alike(main_graph(), small_cnn())


def test_a_layer_elsewhere_has_the_weights_that_are_decided() -> None:
    conv: Any = next(n for n in main_graph().nodes if isinstance(n, Conv))
    improved = replace(conv, w=replace(conv.w, value=conv.w.value + 1), low=-3.0)
    actual: Any = counterpart(improved, sample(OTHERS[0]))
    assert actual.w is improved.w
    assert actual.low == -3.0
    assert actual.type.shape[1:3] == OTHERS[0][2:]


def test_a_change_is_made_once_for_each_graph() -> None:
    recorded: list[Graph] = []

    def change(graph: Graph) -> Graph:
        recorded.append(graph)
        return graph.with_outputs(node for _, node in graph.outputs)

    inputs = [sample(MAIN), sample(OTHERS[0], 1), sample(OTHERS[0], 2), sample(OTHERS[1])]
    actual = at_own_shapes(inputs, change)
    assert actual[0] is inputs[0]
    assert sorted(map(id, recorded)) == sorted({id(graph_for(s, main_graph())) for s in inputs[1:]})
    assert [f["x"] is g["x"] for f, g in zip(actual, inputs, strict=True)] == [True] * 4


def own_values(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    actual: dict[str, Array] = {}
    interpret(graph, feeds, [lambda node, value: actual.update({node.name: value})])
    return actual


def values_of_all(graph: Graph, samples: list[Any]) -> list[dict[str, Array]]:
    """The values of every node that is computed, in one run over all samples."""
    actual = [dict[str, Array]() for _ in samples]
    for node, values in Execution(graph, (), SampleEvaluator(graph, samples).values):
        if node.operands:
            for sample, its in enumerate(actual):
                its[node.name] = values.of(sample)
    return actual


def test_a_run_over_all_samples_gives_each_the_values_of_its_own_graph() -> None:
    samples = [sample(shape, k) for shape in (MAIN, *OTHERS) for k in (1, 2)]
    int8 = quantized(None)
    integers = at_own_shapes(samples, int8.decisions.apply)
    for graph, item in ((main_graph(), samples), (int8.graph, integers)):
        for feeds, actual in zip(item, values_of_all(graph, item), strict=True):
            expected = own_values(graph_for(feeds, graph), feeds)
            for name, value in actual.items():
                # BLAS may sum a stack of samples in another order than one of them.
                tolerance = 1e-6 if value.dtype.kind == "f" else 0.0
                np.testing.assert_allclose(
                    value, expected[name], rtol=tolerance, atol=tolerance, err_msg=name
                )


@pytest.mark.parametrize("shape", OTHERS)
def test_noise_elsewhere_is_that_of_the_same_plan_there(shape: tuple[int, ...]) -> None:
    there = family().at({"x": shape})
    feeds = {"x": image(shape, 3)}
    plans = [make_plan(graph, shared_profile(), PLAIN) for graph in (main_graph(), there)]
    expected = [compared_values(there, feeds)]
    actual = [
        relative_noise(plan, [value], expected, exact_weights=False)
        for plan, value in zip(plans, (sample(shape, 3), feeds), strict=True)
    ]
    assert actual[0] == actual[1] > 0


@pytest.mark.parametrize("shape", OTHERS)
def test_sensitivities_at_another_shape_are_those_of_the_same_plan_there(
    shape: tuple[int, ...],
) -> None:
    def sensitivities(graph: Graph, feeds: dict[str, Array]) -> dict[str, float]:
        plan = make_plan(graph, shared_profile(), PLAIN)
        actual = rounding_sensitivities(plan, int16_candidates(plan), [feeds])
        return {root.name: harm for root, harm in actual.items()}

    there = family().at({"x": shape})
    assert sensitivities(main_graph(), sample(shape)) == sensitivities(there, {"x": image(shape)})


def quantized(data: list[Any] | None) -> QuantizedGraph:
    return quantize_for_all_shapes(main_graph(), shared_profile(), PLAIN, data, progress=False)


def noise_of(built: QuantizedGraph) -> float:
    """On samples of several shapes that were not seen before."""
    total = np.zeros(2)
    for shape in (MAIN, *OTHERS):
        graph = family().at({"x": shape})
        for seed in range(20, 26):
            feeds = {"x": image(shape, seed)}
            int8 = built.decisions.apply(graph)
            for right, value in zip(interpret(graph, feeds), interpret(int8, feeds), strict=True):
                total += np.square(value - right).sum(), np.square(right).sum()
    return float(total[0] / total[1])


def test_samples_of_other_shapes_make_int8_better() -> None:
    others = [sample(shape, k) for shape in OTHERS for k in range(30, 34)]
    black = {"x": np.zeros(MAIN, np.float32)}
    assert noise_of(quantized([black, *others])) < noise_of(quantized([black]))


def deciding(data: list[Array]) -> tuple[list[Any], list[Any]]:
    samples = Samples([{"x": x} for x in data], family())
    list(samples)
    return samples.deciding(Case.of({"x": MAIN}), main_graph())


def test_samples_of_all_shapes_decide_and_the_check_is_at_one() -> None:
    kept, data = deciding([image(shape, k) for shape in (*OTHERS, MAIN) for k in (1, 2)])
    assert [feeds["x"].shape for feeds in kept] == [MAIN] * 2
    assert [feeds["x"].shape for feeds in data[:2]] == [MAIN] * 2
    # A batch is two samples: the model is for one.
    assert {feeds["x"].shape for feeds in data[2:]} == {(1, *shape[1:]) for shape in OTHERS}
    assert len(data) == 12


def test_enough_samples_of_the_main_shapes_decide_alone() -> None:
    _, data = deciding([image(shape, k) for shape in (OTHERS[0], MAIN) for k in range(4)])
    assert [feeds["x"].shape for feeds in data] == [MAIN] * 4
    _, data = deciding([image(shape, k) for shape in (OTHERS[0], MAIN) for k in range(3)])
    assert len(data) == 6


def test_other_shapes_take_no_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 3 * sample_nbytes(main_graph())
    monkeypatch.setattr(driver_samples, "MAX_NBYTES", room)
    larger = (1, 3, 16, 24)
    _, data = deciding([image(MAIN, 1), image(larger, 1), image(MAIN, 2)])
    assert [feeds["x"].shape for feeds in data] == [MAIN] * 2


def test_a_sample_that_is_too_large_leaves_room_for_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smaller, larger = (1, 3, 5, 9), (1, 3, 32, 48)
    room = 3 * sample_nbytes(main_graph())
    monkeypatch.setattr(driver_samples, "MAX_NBYTES", room)
    _, data = deciding([image(MAIN, 1), image(larger, 1), image(smaller, 1)])
    assert [feeds["x"].shape for feeds in data] == [MAIN, smaller]


def test_weights_are_in_memory_once() -> None:
    data: list[Any] = deciding([image(shape, 1) for shape in (MAIN, *OTHERS)])[1]
    known = {id(n) for n in main_graph().nodes if isinstance(n, Constant)}
    actual = [n for feeds in data[1:] for n in feeds.graph.nodes if isinstance(n, Constant)]
    layers = [n for n in actual if n.type.dtype.is_float]
    assert layers
    assert {id(n) for n in layers} <= known
    candidate = quantized(data).candidate
    known = {id(n) for n in candidate.graph.nodes if isinstance(n, Constant)}
    actual = [
        n
        for feeds in candidate.on(data)[1:]
        for n in graph_for(feeds, main_graph()).nodes
        if isinstance(n, Constant)
    ]
    assert {id(n) for n in actual if n.type.dtype.is_float} <= known


def strided(size: int) -> Graph:
    """A convolution padded as SAME_UPPER pads images of this size."""
    rng = np.random.default_rng(4)
    x = Input(name="x", tensor=TensorType(DType.F32, (1, size, size, 3)))
    w = Constant(name="w", value=rng.standard_normal((3, 3, 3, 64)).astype(np.float32))
    pads = (0, 0, 1, 1) if size % 2 == 0 else (1, 1, 1, 1)
    return Graph((x,), (("y", Conv(name="y", x=x, w=w, strides=(2, 2), pads=pads)),))


def test_samples_whose_levels_are_framed_otherwise_take_no_part() -> None:
    def pixels(size: int, seed: int) -> dict[str, Array]:
        levels = np.random.default_rng(seed).integers(0, 256, (1, size, size, 3))
        return {"x": ((levels / 255 - [0.4, 0.45, 0.5]) / [0.2, 0.25, 0.3]).astype(np.float32)}

    main, same, even = strided(17), strided(21), strided(16)
    samples: list[Any] = [pixels(17, k) for k in range(4)]
    samples += [ShapeVariant(pixels(21, k), same) for k in (5, 6)]
    samples += [ShapeVariant(pixels(16, k), even) for k in range(7, 15)]
    assert are_alike(main, same)
    assert are_alike(main, even)
    known = profile(main, samples[:4], progress=False)
    quantized = quantize_for_all_shapes(main, known, PLAIN, samples, progress=False)
    assert quantized.candidate.grids
    assert quantized.candidate.fitting(samples)[0] == samples[:6]


def gated(length: int) -> Graph:
    """Normalized values [1, L, 8] times a gate for each channel, read by a product."""
    x = Input(name="x", tensor=TensorType(DType.F32, (1, length, 8)))
    gate = Input(name="gate", tensor=TensorType(DType.F32, (1, 1, 8)))
    ones = Constant(name="gamma", value=np.ones(8, np.float32))
    norm = LayerNormalization(name="norm", x=x, gamma=ones, beta=None, epsilon=1e-5)
    mul = Mul(name="mul", x=norm, y=gate)
    rows = Reshape(name="rows", x=mul, shape=(length, 8))
    w = Constant(name="w", value=np.eye(8, 4, dtype=np.float32))
    return Graph((x, gate), (("y", Gemm(name="y", x=rows, w=w)),))


def test_a_gate_is_one_where_its_operand_has_one_value_for_each_channel() -> None:
    names = [[[n.name for n in g] for g in channel_groups(gated(size))] for size in (6, 1)]
    assert names == [[["norm", "mul", "rows"]]] * 2


def test_two_plans_are_compared_on_the_samples_that_fit_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = [
        make_plan(main_graph(), shared_profile(), replace(PLAIN, preset=preset))
        for preset in PRESETS
    ]
    missing = iter(OTHERS)
    judged_on: list[list[list[tuple[int, ...]]]] = []

    def fits(samples: list[Any], graph: Graph) -> list[bool]:
        shape = next(missing)
        return [feeds["x"].shape != shape for feeds in samples]

    def noise(graph: Graph, actual: list[list[Array]], expected: list[list[Array]]) -> float:
        judged_on.append([[value.shape for value in values] for values in actual])
        return noise_to_signal(graph, actual, expected)

    monkeypatch.setattr(quantizer, "fit", fits)
    monkeypatch.setattr(quantizer, "noise_to_signal", noise)
    data = [sample(shape, k) for shape in (MAIN, *OTHERS) for k in (1, 2)]
    ready, config = (
        prepare(main_graph(), shared_profile(), PLAIN, ()),
        replace(PLAIN, int16_activations="auto"),
    )
    both = quantizer.Quantizer(ready, config, data, progress=False)
    quantizer.better(main_graph(), *(both.convert(plan, data, data) for plan in plans))
    assert judged_on[0] == judged_on[1]
    assert len(judged_on[0]) == 2 * (len(OTHERS) - 1)


def test_a_graph_that_is_not_alike_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_samples, "are_alike", lambda one, other: False)
    _, data = deciding([image(shape, 1) for shape in (MAIN, *OTHERS)])
    assert [feeds["x"].shape for feeds in data] == [MAIN]
