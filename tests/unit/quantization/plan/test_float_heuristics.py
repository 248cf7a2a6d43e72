"""Operators that stay float by default, because quantization hurts them most."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx.operators.rnn import MOST_STEPS
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import (
    Add,
    Ceil,
    Clip,
    Concat,
    Conv,
    Exp,
    Floor,
    Gemm,
    Log,
    MatMul,
    Mul,
    Reciprocal,
    ReduceSum,
    Relu,
    Reshape,
    Sigmoid,
    Slice,
    Softmax,
    Sqrt,
    Tanh,
)
from quantglow.ir.types import DType, f32
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan import float_rules as why
from quantglow.quantization.plan import fourier_transforms as spectra
from quantglow.quantization.plan.float_heuristics import box_decoders
from quantglow.quantization.plan.fourier_transforms import are_kernels, is_transform, transforms
from quantglow.quantization.quantizer import quantize_for_all_shapes
from quantglow.transforms.float import optimize
from tests.unit.quantization.quantization_networks import constant, conv, graph_of, image

HIDDEN, WIDTH, STEPS = 24, 16, 20
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent_model(op_type: str, steps: int = STEPS) -> onnx.ModelProto:
    """A layer and a product behind its last state."""
    rng = np.random.default_rng(0)
    rows = GATES[op_type] * HIDDEN
    arrays = {
        "w": rng.normal(size=(1, rows, WIDTH)) * 0.4,
        "r": rng.normal(size=(1, rows, HIDDEN)) * 0.3,
        "b": rng.normal(size=(1, 2 * rows)) * 0.2,
        "m": rng.normal(size=(HIDDEN, 8)) * 0.3,
    }
    attributes = {"linear_before_reset": 1} if op_type == "GRU" else {}
    layer = helper.make_node(
        op_type, ["x", "w", "r", "b"], ["", "h"], hidden_size=HIDDEN, **attributes
    )
    product = helper.make_node("MatMul", ["h", "m"], ["y"])
    built = helper.make_graph(
        [layer, product],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, 1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 8])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()],
    )
    return helper.make_model(built, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(graph: Graph, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {i.name: rng.normal(size=i.type.shape).astype(np.float32) for i in graph.inputs}
        for _ in range(4)
    ]


def quantized(graph: Graph, **options: Any) -> tuple[Graph, dict[str, str]]:
    """The int8 graph, and why nodes are float."""
    profiled = profile(graph, samples(graph, 1), progress=False)
    quantized = quantize_for_all_shapes(graph, profiled, QuantizationConfig(**options))
    return quantized.graph, {layer.name: layer.reason for layer in quantized.report.kept_float}


def noise_db(graph: Graph, other: Graph) -> float:
    """Signal over noise of the outputs on other samples."""
    signal = noise = 1e-30
    for feeds in samples(graph, 2):
        for a, b in zip(interpret(graph, feeds), interpret(other, feeds), strict=True):
            signal += float(np.square(a, dtype=np.float64).sum())
            noise += float(np.square(a - b, dtype=np.float64).sum())
    return 10 * float(np.log10(signal / noise))


@pytest.mark.parametrize("op_type", GATES)
def test_gates_are_float_between_integer_products(op_type: str) -> None:
    graph = optimize(qg.import_model(recurrent_model(op_type, MOST_STEPS)))
    built, reasons = quantized(graph)
    kinds = (Sigmoid, Tanh, Mul, Add)
    between = [n for n in graph.compute_nodes() if isinstance(n, kinds)]
    assert {reasons.get(n.name) for n in between} == {why.RECURRENT}
    products = [n for n in built.nodes if n.op in ("Gemm", "Conv", "MatMul")]
    assert products and all(n.operands[0].type.dtype is DType.I8 for n in products)


@pytest.mark.parametrize(("op_type", "least"), [("LSTM", 28), ("GRU", 30), ("RNN", 36)])
def test_a_recurrent_layer_keeps_its_accuracy(op_type: str, least: float) -> None:
    """Gates in int8 would give 26.5, 26.2 and 30.8 dB."""
    graph = optimize(qg.import_model(recurrent_model(op_type)))
    built, _ = quantized(graph)
    assert noise_db(graph, built) > least


def test_a_gate_alone_is_no_recurrent_cell() -> None:
    x = image()
    gate = Sigmoid(name="gate", x=conv("before", x, 8))
    gated = Mul(name="gated", x=conv("values", x, 8), y=gate)
    _, reasons = quantized(graph_of(conv("after", gated, 4), inputs=(x,)))
    assert not reasons


def magnitudes() -> Graph:
    """sqrt(a² + b²) of two products, then a product."""
    x = image()
    squares = [Mul(name=f"{n}2", x=v, y=v) for n in "ab" for v in [conv(n, x, 8)]]
    power = Add(name="power", x=squares[0], y=squares[1])
    root = Sqrt(name="root", x=power)
    return graph_of(conv("after", root, 4), inputs=(x,))


def test_a_root_is_taken_in_float_of_float() -> None:
    graph = magnitudes()
    built, reasons = quantized(graph)
    assert reasons == dict.fromkeys(("a2", "b2", "power", "root"), why.ROOT)
    assert noise_db(graph, built) > 30


def test_the_reciprocal_of_a_root_is_float_too() -> None:
    """x / sqrt(x²), as exporters write it."""
    x = image()
    values = conv("values", x, 8)
    power = Mul(name="power", x=values, y=values)
    root = Sqrt(name="root", x=Add(name="shifted", x=power, y=constant("offset", 0.01)))
    scaled = Mul(name="scaled", x=values, y=Reciprocal(name="reciprocal", x=root))
    graph = graph_of(conv("after", scaled, 4), inputs=(x,))
    built, reasons = quantized(graph)
    assert {reasons[name] for name in ("power", "shifted", "root", "reciprocal")} == {why.ROOT}
    assert noise_db(graph, built) > 20


def test_a_logarithm_is_taken_in_float_of_float() -> None:
    """Energies in bands of a spectrum, as speech recognizers want them: seven decades."""
    x = Input(name="x", tensor=f32(64, 32))
    rng = np.random.default_rng(6)
    spectrum = Gemm(
        name="spectrum",
        x=x,
        w=constant("basis", rng.normal(size=(32, 24)) * np.logspace(-2, 1, 24)),
    )
    power = Mul(name="power", x=spectrum, y=spectrum)
    bands = Gemm(name="bands", x=power, w=constant("filters", np.eye(24) + 0.1 * np.eye(24, k=1)))
    logarithm = Log(name="logarithm", x=Clip(name="least", x=bands, low=1e-6))
    graph = graph_of(
        Gemm(name="after", x=logarithm, w=constant("w", rng.normal(size=(24, 8)))), inputs=(x,)
    )
    built, reasons = quantized(graph)
    names = ("spectrum", "power", "bands", "least", "logarithm")
    assert reasons == dict.fromkeys(names, why.LOGARITHM)
    assert noise_db(graph, built) > 30


def spectrogram(halves: bool) -> Graph:
    """Magnitudes squared of a tapered transform, as a Conv; bands, and a product behind them."""
    n, bins = 64, 33
    x = Input(name="x", tensor=f32(1, 1, 512, 1))
    angles = 2 * np.pi * np.outer(np.arange(n), np.arange(bins)) / n
    pairs = np.hanning(n)[:, None] * np.stack([np.cos(angles), -np.sin(angles)])
    kernels = pairs.transpose(1, 0, 2) if halves else pairs.transpose(1, 2, 0)
    w = constant("kernels", kernels.reshape(1, n, 1, 2 * bins))
    spectrum = Conv(name="spectrum", x=x, w=w, strides=(1, 16))
    squares = Mul(name="squares", x=spectrum, y=spectrum)
    bands = conv("bands", squares, 12, kernel=1, activation=None)
    return graph_of(conv("after", Relu(name="kept", x=bands), 4, kernel=1), inputs=(x,))


@pytest.mark.parametrize("halves", [False, True])
def test_a_spectrum_is_made_and_read_in_float(halves: bool) -> None:
    """Cosines beside sines, or before all of them, as exporters write transforms."""
    graph = spectrogram(halves)
    built, reasons = quantized(graph)
    assert reasons == dict.fromkeys(("spectrum", "squares", "bands"), why.SPECTRUM)
    assert built.by_name("after").operands[0].type.dtype is DType.I8
    assert noise_db(graph, built) > 30


def test_a_transform_keeps_its_pairs_where_channels_are_rescaled() -> None:
    graph = spectrogram(halves=True)
    linear = conv("linear", graph.by_name("spectrum"), 12, kernel=1)
    graph = graph_of(conv("after", Relu(name="kept", x=linear), 4, kernel=1), inputs=graph.inputs)
    data = samples(graph, 1)
    quantized = quantize_for_all_shapes(graph, profile(graph, data, progress=False), data=data)
    reasons = {layer.name: layer.reason for layer in quantized.report.kept_float}
    assert reasons == dict.fromkeys(("spectrum", "linear"), why.SPECTRUM)


def constant_q_kernels(samples: int, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [samples, bins], five octaves with as many cycles in each window."""
    frequencies = 0.4 / 2 ** (np.arange(bins) / 5)
    windows, phases = np.zeros((samples, bins)), np.zeros((samples, bins))
    for k, frequency in enumerate(frequencies):
        length = min(samples, int(4 / frequency))
        start = (samples - length) // 2
        windows[start : start + length, k] = np.hanning(length + 2)[1:-1] / length
        phases[:, k] = 2 * np.pi * frequency * (np.arange(samples) - samples / 2)
    return windows * np.cos(phases), windows * -np.sin(phases)


def constant_q_network() -> Graph:
    """Two rates: a Conv of cosines, one of sines, the second pair behind a filter that halves."""
    x = Input(name="x", tensor=f32(1, 1, 1024, 1))
    c, s = constant_q_kernels(128, 20)
    low = np.hanning(31).reshape(1, 31, 1, 1) / 15
    halved = Conv(name="halved", x=x, w=constant("low", low), strides=(1, 2), pads=(0, 15, 0, 15))
    powers: list[Node] = []
    for rate, (signal, step, pad) in enumerate(((x, 32, 0), (halved, 16, 32))):
        parts = []
        for name, kernels in (("cosines", c), ("sines", s)):
            w = constant(f"{name}{rate}:w", kernels.reshape(1, 128, 1, 20))
            strides, pads = (1, step), (0, pad, 0, pad)
            part = Conv(name=f"{name}{rate}", x=signal, w=w, strides=strides, pads=pads)
            parts.append(Mul(name=f"{name}{rate}:squares", x=part, y=part))
        powers.append(Add(name=f"power{rate}", x=parts[0], y=parts[1]))
    joined = Concat(name="bins", parts=tuple(powers), axis=3)
    bands = conv("bands", joined, 12, kernel=1, activation=None)
    return graph_of(conv("after", Relu(name="kept", x=bands), 4, kernel=1), inputs=(x,))


def test_a_constant_q_transform_of_two_convolutions_is_float() -> None:
    """The float part ends at the first product, and includes the filter for the lower rate."""
    graph = constant_q_network()
    built, reasons = quantized(graph)
    pairs = [f"{name}{rate}" for name in ("cosines", "sines") for rate in (0, 1)]
    names = ["halved", *pairs, *(f"{name}:squares" for name in pairs), "power0", "power1"]
    assert reasons == dict.fromkeys([*names, "bins", "bands"], why.SPECTRUM)
    assert built.by_name("after").operands[0].type.dtype is DType.I8
    assert noise_db(graph, built) > 30


@given(st.integers(32, 160), st.integers(6, 24), st.integers(0, 99))
def test_pairs_of_a_constant_q_transform_turn_steadily(samples: int, bins: int, seed: int) -> None:
    """Kernels may have any gain; mixed or noisy columns are not a transform."""
    rng = np.random.default_rng(seed)
    c, s = constant_q_kernels(samples, bins)
    gains = rng.uniform(0.1, 9, bins)
    assert are_kernels(c * gains, s * gains)
    assert not are_kernels(c, c)
    assert not are_kernels(c, s + rng.normal(size=s.shape) * np.abs(s).max() / 4)


@given(st.integers(8, 40), st.integers(5, 20), st.integers(0, 99))
def test_products_of_one_value_are_no_transform(rows: int, columns: int, seed: int) -> None:
    """Queries, keys and values of one input."""
    x = Input(name="x", tensor=f32(4, rows))
    rng = np.random.default_rng(seed)
    products = [
        Gemm(name=name, x=x, w=constant(f"{name}:w", rng.normal(size=(rows, columns))))
        for name in ("queries", "keys", "values")
    ]
    outputs = tuple((node.name, node) for node in products)
    assert transforms(Graph(inputs=(x,), outputs=outputs)) == set()


def test_weights_of_many_plans_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, observed = spectrogram(halves=False), list[np.ndarray]()
    monkeypatch.setattr(spectra, "is_transform", lambda weights: bool(observed.append(weights)))
    transforms(graph)
    first = len(observed)
    transforms(graph)
    assert len(observed) == first > 0


def fourier_matrix(n: int) -> np.ndarray:
    """[n, 2 n] of a complex result."""
    turned = np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(n, 2 * n).astype(np.float32)


@pytest.mark.parametrize("n", [5, 16, 60])
def test_transforms_are_told_by_their_pairs(n: int) -> None:
    """Tapered, scaled by channel, or the other way round too."""
    rng = np.random.default_rng(n)
    matrix = fourier_matrix(n)
    tapered = matrix * rng.uniform(0.1, 1, n)[:, None].astype(np.float32)
    scaled = matrix * np.repeat(rng.uniform(0.1, 1, n), 2).astype(np.float32)
    assert all(map(is_transform, (matrix, tapered, scaled, matrix.T)))


@given(st.integers(5, 40), st.integers(5, 20), st.integers(0, 99), st.booleans())
def test_other_weights_are_no_transform(rows: int, pairs: int, seed: int, signs: bool) -> None:
    """Neither random weights nor weights of one magnitude are a transform."""
    w = np.random.default_rng(seed).normal(size=(rows, 2 * pairs)).astype(np.float32)
    assert not is_transform(np.sign(w) if signs else w)
    assert not is_transform(np.ones_like(w))
    assert not is_transform(np.zeros_like(w))


def two_states(small: float) -> Graph:
    """A Gemm of each half of an input, the second of which is larger; results joined."""
    x = Input(name="x", tensor=f32(4, 32))
    halves = [
        Slice(name=f"half{i}", x=x, starts=(2 * i, 0), sizes=(2, 32), steps=(1, 1))
        for i in range(2)
    ]
    rng = np.random.default_rng(3)
    products = []
    for i, half in enumerate(halves):
        w = constant(f"w{i}", rng.normal(size=(32, 32)) * (1 if i else small))
        product = Gemm(name=f"product{i}", x=half, w=w)
        products.append(Relu(name=f"result{i}", x=Reshape(name=f"r{i}", x=product, shape=(64,))))
    return graph_of(Concat(name="joined", parts=tuple(products), axis=0), inputs=(x,))


@pytest.mark.parametrize("small", [1.0, 0.05])
def test_narrow_parts_of_an_input_are_cut_out_in_float(small: float) -> None:
    graph = two_states(1.0)
    feeds = samples(graph, 1)
    for one in feeds:
        one["x"][:2] *= small
    quantized = quantize_for_all_shapes(graph, profile(graph, feeds, progress=False))
    reasons = {layer.name: layer.reason for layer in quantized.report.kept_float}
    assert (reasons.get("half0") == why.NARROW) == (small < 1)
    assert "half1" not in reasons
    steps = [quantized.graph.by_name(f"product{i}").operands[0].type.quant.scale for i in range(2)]  # type: ignore[attr-defined]
    assert (steps[0] < 0.1 * steps[1]) == (small < 1)


def boxes_and_scores() -> Graph:
    """Two results of very different ranges in one tensor, behind int8 operators."""
    x = image()
    boxes = Mul(name="boxes", x=Sigmoid(name="s", x=conv("a", x, 4)), y=conv("large", x, 4))
    scores = Sigmoid(name="scores", x=conv("small", x, 4))
    both = [
        Reshape(name=f"{n.name}:rows", x=Relu(name=f"{n.name}:kept", x=n), shape=(1, 36, 4))
        for n in (boxes, scores)
    ]
    return graph_of(Concat(name="joined", parts=tuple(both), axis=2), inputs=(x,))


def test_results_are_joined_in_float() -> None:
    built, reasons = quantized(boxes_and_scores())
    assert reasons["joined"] == why.RESULTS
    assert isinstance(built.by_name("joined"), Concat)
    assert built.by_name("joined").type.quant is None


def detector(kind: str) -> Graph:
    """A head of 12 cells: logits of 4 sides and 3 classes joined, the mean of each side's
    distribution over 8 distances, boxes and scores joined.
    """
    x = Input(name="x", tensor=f32(1, 4, 3, 16))
    sides, classes = (conv(name, x, n, kernel=1, activation=None) for name, n in HEADS.items())
    joined = Concat(name="logits", parts=(sides, classes), axis=3)
    rows = Reshape(name="rows", x=joined, shape=(1, 12, 35))
    part = Slice(name="box_logits", x=rows, starts=(0, 0, 0), sizes=(1, 12, 32), steps=(1, 1, 1))
    split = Reshape(name="split", x=part, shape=(12, 4, 8))
    weights = Softmax(name="weights", x=split)
    distances = np.arange(8, dtype=np.float32)
    if kind == "Gemm":
        flat = Reshape(name="flat", x=weights, shape=(48, 8))
        mean: Node = Gemm(name="mean", x=flat, w=constant("d", distances[:, None]))
    elif kind == "MatMul":
        mean = MatMul(name="mean", x=weights, y=constant("d", distances[:, None]))
    else:
        terms = Mul(name="terms", x=weights, y=constant("d", distances))
        mean = ReduceSum(name="mean", x=terms, axes=(2,), keepdims=True)
    boxes = Reshape(name="boxes", x=mean, shape=(1, 12, 4))
    strides = Mul(name="pixels", x=boxes, y=constant("stride", np.array([32.0])))
    other = Slice(name="class_logits", x=rows, starts=(0, 0, 32), sizes=(1, 12, 3), steps=(1, 1, 1))
    scores = Sigmoid(name="scores", x=other)
    result = Concat(name="result", parts=(strides, scores), axis=2)
    return Graph(inputs=(x,), outputs=(("result", result),))


HEADS = {"sides": 32, "classes": 3}


@pytest.mark.parametrize("kind", ["Gemm", "MatMul", "ReduceSum"])
def test_boxes_and_scores_of_a_detector_have_no_common_steps(kind: str) -> None:
    """All operators from the logits on are float; the products of the head are int8."""
    graph = detector(kind)
    built, reasons = quantized(graph)
    assert {name for name in reasons if name not in HEADS} == {
        node.name for node in graph.compute_nodes() if node.name not in HEADS
    }
    assert {reasons[name] for name in ("logits", "rows", "weights", "class_logits")} == {why.BOXES}
    for name in HEADS:
        assert built.by_name(name).operands[0].type.dtype is DType.I8
    assert noise_db(graph, built) > 35


def test_a_softmax_of_other_weights_is_no_box_decoder() -> None:
    x = Input(name="x", tensor=f32(6, 8))
    y = Gemm(
        name="y",
        x=Softmax(name="s", x=x),
        w=constant("w", np.array([[0, 1, 2, 3, 5, 8, 1, 1.0]]).T),
    )
    assert box_decoders(Graph(inputs=(x,), outputs=(("y", y),))) == []


def speech() -> Graph:
    """Durations of 10 symbols, rounded up and summed; a decoder beside them."""
    rng = np.random.default_rng(3)
    x = Input(name="x", tensor=f32(10, 24))
    hidden = Gemm(name="hidden", x=x, w=constant("w1", rng.normal(size=(24, 32)) / 5))
    kept = Relu(name="kept", x=hidden)
    logarithms = Gemm(name="logarithms", x=kept, w=constant("w2", rng.normal(size=(32, 1)) / 5))
    durations = Ceil(name="durations", x=Exp(name="exp", x=logarithms))
    total = ReduceSum(name="total", x=durations, axes=(0,), keepdims=False)
    decoded = Gemm(name="decoded", x=x, w=constant("w3", rng.normal(size=(24, 32)) / 5))
    after = Gemm(name="after", x=decoded, w=constant("w4", rng.normal(size=(32, 16)) / 5))
    return Graph(inputs=(x,), outputs=(("total", total), ("after", after)))


def test_a_value_that_decides_a_length_is_float() -> None:
    """Durations equal those of float; what does not lead to them is int8."""
    graph = speech()
    built, reasons = quantized(graph)
    names = ("hidden", "kept", "logarithms", "exp", "durations")
    assert {name: reasons[name] for name in names} == dict.fromkeys(names, why.LENGTH)
    assert built.by_name("decoded").operands[0].type.dtype is DType.I8
    for feeds in samples(graph, 4):
        np.testing.assert_array_equal(interpret(built, feeds)[0], interpret(graph, feeds)[0])


def test_rounding_that_decides_no_length_is_left_alone() -> None:
    """An image of whole steps, as super-resolution gives it."""
    x = Input(name="x", tensor=f32(1, 8, 8, 3))
    image_ = conv("image", conv("first", x, 8), 3, activation=None)
    graph = graph_of(Floor(name="steps", x=image_), inputs=(x,))
    _, reasons = quantized(graph)
    assert why.LENGTH not in reasons.values()
