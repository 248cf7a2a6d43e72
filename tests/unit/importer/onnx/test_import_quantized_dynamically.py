"""Models that onnxruntime's ``quantize_dynamic`` wrote: QAttention, QEmbedLayerNormalization,
DynamicQuantizeLSTM, and EmbedLayerNormalization, on one thread of onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.runtime.compiled import CompiledModel
from quantglow.support.errors import InputError, OutOfRangeError
from tests.support.effort import moderate
from tests.unit.quantization.qdq.qdq_models import by_onnxruntime

Array = np.ndarray
MICROSOFT = "com.microsoft"


def floats(*shape: int, seed: int = 0, spread: float = 1.0) -> Array:
    random = np.random.default_rng([seed, *shape])
    return (spread * random.standard_normal(shape)).astype(np.float32)


def one_node(
    op: str,
    operands: dict[str, Array | None],
    fed: tuple[str, ...],
    results: dict[str, int],
    domain: str = MICROSOFT,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; operands are constants unless they are ``fed``."""
    inputs = {name: array for name, array in operands.items() if array is not None}
    names = [name if name in inputs else "" for name in operands]
    node = helper.make_node(op, names, list(results), "node", domain=domain, **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kinds[name], inputs[name].shape) for name in fed],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in results.items() if n],
        [numpy_helper.from_array(a, name) for name, a in inputs.items() if name not in fed],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def quantized(model: onnx.ModelProto, folder: Path, **options: Any) -> onnx.ModelProto:
    """The model as onnxruntime's dynamic quantizer writes it."""
    path = folder / "quantized.onnx"
    quantize_dynamic(model, path, **options)
    return onnx.load(path)


def results(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[tuple[Array, Array]]:
    """Outputs of quantglow alone, compiled, and those of onnxruntime."""
    compiled = qg.compile(model, num_threads=1)
    assert isinstance(compiled, CompiledModel)
    assert not compiled.build.fallback
    results = compiled.run(None, feeds)
    interpreted = qg.interpret(qg.import_model(model), feeds)
    for mine, same in zip(results, interpreted, strict=True):
        np.testing.assert_allclose(mine, same, rtol=1e-5, atol=1e-5)
    return list(zip(results, by_onnxruntime(model, feeds, optimized=True), strict=True))


def assert_agrees(model: onnx.ModelProto, feeds: dict[str, Array], op: str) -> None:
    assert op in {node.op_type for node in model.graph.node}
    for mine, its in results(model, feeds):
        assert mine.dtype == its.dtype
        np.testing.assert_allclose(mine, its, rtol=2e-5, atol=2e-5)


def of_any(model: onnx.ModelProto, **axes: tuple[int, ...]) -> onnx.ModelProto:
    """The model with free dimensions at these axes of its inputs."""
    for info in model.graph.input:
        for axis in axes.get(info.name, ()):
            info.type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
    return model


# -- EmbedLayerNormalization


IDS = np.random.default_rng(0).integers(0, 9, (2, 5)).astype(np.int32)
SEGMENTS = (IDS % 2).astype(np.int32)
MASK = (IDS > 3).astype(np.int32)


def embedding(segments: bool, mask: bool, outputs: int, **more: Any) -> onnx.ModelProto:
    operands = {
        "ids": IDS,
        "segments": SEGMENTS if segments else None,
        "words": floats(9, 16),
        "places": floats(7, 16),
        "kinds": floats(2, 16) if segments else None,
        "gamma": floats(16, seed=1),
        "beta": floats(16, seed=2),
        "mask": MASK if mask else None,
        **more.pop("operands", {}),
    }
    names = ("ids", "segments", "mask", "numbers")
    fed = tuple(name for name in names if operands.get(name) is not None)
    kinds = {"y": TensorProto.FLOAT, "lengths": TensorProto.INT32, "sum": TensorProto.FLOAT}
    pairs = dict(list(kinds.items())[:outputs])
    return one_node("EmbedLayerNormalization", operands, fed, pairs, **more)


def embedding_feeds(model: onnx.ModelProto) -> dict[str, Array]:
    numbers = np.array([[6, 0, 1, 1, 2]], np.int32)
    every = {"ids": IDS, "segments": SEGMENTS, "mask": MASK, "numbers": numbers}
    return {i.name: every[i.name] for i in model.graph.input}


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_embeddings(segments: bool, mask: bool, outputs: int) -> None:
    kind = {"mask_index_type": 0} if outputs == 1 else {}
    model = embedding(segments, mask, outputs, epsilon=1e-3, **kind)
    assert_agrees(model, embedding_feeds(model), "EmbedLayerNormalization")


def test_embeddings_of_positions_that_are_given() -> None:
    numbers = {"numbers": np.zeros((1, 5), np.int32)}
    model = embedding(True, False, 2, operands=numbers)
    assert_agrees(model, embedding_feeds(model), "EmbedLayerNormalization")


@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("mask", [False, True])
def test_embeddings_of_8_bits(mask: bool, kind: QuantType, tmp_path: Path) -> None:
    model = quantized(embedding(True, mask, 2), tmp_path, weight_type=kind)
    assert_agrees(model, embedding_feeds(model), "QEmbedLayerNormalization")


def test_tables_of_8_bits_stay_so(tmp_path: Path) -> None:
    graph = qg.import_model(quantized(embedding(True, True, 2), tmp_path))
    tables = [n.type for n in graph.nodes if n.op == "Constant" and n.type.rank == 2]
    assert {str(t.dtype) for t in tables if t.shape[0] in (9, 7)} == {"u8"}


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (np.full((2, 5), 9, np.int32), OutOfRangeError),
        (np.ones((2, 8), np.int32), InputError),
    ],
    ids=["word", "position"],
)
def test_words_and_positions_outside_of_their_tables(
    ids: Array, error: type[Exception], tmp_path: Path
) -> None:
    model = of_any(quantized(embedding(True, True, 2), tmp_path), ids=(0, 1))
    model = of_any(model, segments=(0, 1), mask=(0, 1))
    fed = {"ids": ids, "segments": np.ones_like(ids), "mask": np.ones_like(ids)}
    with pytest.raises(error):
        qg.compile(model, num_threads=1).run(None, fed)


# -- QAttention


def attention(heads: int, past: int, mask: Array | None, **attributes: Any) -> onnx.ModelProto:
    operands = {
        "x": floats(2, 5, 24),
        "w": floats(24, 72, spread=0.2),
        "b": floats(72),
        "mask": mask,
        "past": floats(2, 2, heads, past, 24 // heads) if past else None,
    }
    fed = tuple(n for n in ("x", "mask", "past") if operands[n] is not None)
    built = {"y": TensorProto.FLOAT, "present": TensorProto.FLOAT}
    return one_node("Attention", operands, fed, built, num_heads=heads, **attributes)


def attention_feeds(model: onnx.ModelProto, heads: int, past: int) -> dict[str, Array]:
    every = {"x": floats(2, 5, 24, seed=5), "past": floats(2, 2, heads, past, 24 // heads)}
    every["mask"] = (floats(2, 5 + past) > -0.5).astype(np.int32)
    return {i.name: every[i.name] for i in model.graph.input}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(
    per_channel: bool, past: int, unidirectional: int, masked: bool, tmp_path: Path
) -> None:
    mask = np.ones((2, 5 + past), np.int32) if masked else None
    model = attention(3, past, mask, unidirectional=unidirectional)
    kinds = {"weight_type": QuantType.QInt8, "per_channel": per_channel}
    assert_agrees(
        quantized(model, tmp_path, **kinds), attention_feeds(model, 3, past), "QAttention"
    )


@pytest.mark.parametrize("per_channel", [False, True])
def test_keys_and_values_are_equal_bit_for_bit(per_channel: bool, tmp_path: Path) -> None:
    kinds = {"weight_type": QuantType.QInt8, "per_channel": per_channel}
    model = quantized(attention(3, 3, None), tmp_path, **kinds)
    _, (mine, its) = results(model, attention_feeds(model, 3, 3))
    assert np.array_equal(mine, its)


@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
def test_attention_with_weights_of_either_type(kind: QuantType, tmp_path: Path) -> None:
    model = quantized(attention(2, 0, None), tmp_path, weight_type=kind)
    assert_agrees(model, attention_feeds(model, 2, 0), "QAttention")


def test_the_product_of_attention_runs_in_int8(tmp_path: Path) -> None:
    graph = qg.import_model(quantized(attention(2, 0, None), tmp_path))
    kinds = [[str(o.type.dtype) for o in n.operands] for n in graph.nodes if n.op == "Gemm"]
    assert ["i8", "i8"] in kinds


def test_attention_that_rotates_is_left_to_the_fallback(tmp_path: Path) -> None:
    model = quantized(attention(2, 0, None, do_rotary=1), tmp_path)
    with pytest.raises(qg.UnsupportedOpError, match="rotates"):
        import_model(model)


def test_attention_of_any_length(tmp_path: Path) -> None:
    model = of_any(quantized(attention(3, 0, None), tmp_path), x=(0, 1))
    compiled = qg.compile(model, num_threads=1)
    for batch, steps in ((1, 1), (2, 3), (2, 17), (3, 40)):
        fed = {"x": floats(batch, steps, 24)}
        for mine, its in zip(
            compiled.run(None, fed), by_onnxruntime(model, fed, optimized=True), strict=True
        ):
            np.testing.assert_allclose(mine, its, rtol=2e-5, atol=2e-5)


# -- DynamicQuantizeLSTM


def lstm(
    steps: int, batch: int, direction: str, has_optional: bool = True, **attributes: Any
) -> onnx.ModelProto:
    """3 inputs, 5 hidden values; ``has_optional``: with bias, states and peepholes."""
    count = 2 if direction == "bidirectional" else 1
    operands: dict[str, Array | None] = {
        "x": floats(steps, batch, 3),
        "w": floats(count, 20, 3, seed=1, spread=0.3),
        "r": floats(count, 20, 5, seed=2, spread=0.3),
        "b": floats(count, 40) if has_optional else None,
        "lengths": attributes.pop("lengths", None),
        "h": floats(count, batch, 5, seed=3) if has_optional else None,
        "c": floats(count, batch, 5, seed=4) if has_optional else None,
        "p": floats(count, 15) if has_optional else None,
    }
    built = dict.fromkeys(("y", "last", "cell"), TensorProto.FLOAT)
    fed = tuple(name for name in ("x", "lengths", "h", "c") if operands[name] is not None)
    more = {"hidden_size": 5, "direction": direction, **attributes}
    return one_node("LSTM", operands, fed, built, domain="", **more)


def lstm_feeds(model: onnx.ModelProto, seed: int = 7) -> dict[str, Array]:
    sizes = {
        i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in model.graph.input
    }
    return {name: floats(*shape, seed=seed) for name, shape in sizes.items()}


def assert_close(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """Both have other functions for sigmoid and tanh, so that a code of a state may be the next
    one; a step of it is a 255th of the range, and weights are about 0.3."""
    assert "DynamicQuantizeLSTM" in {node.op_type for node in model.graph.node}
    for mine, its in results(model, feeds):
        assert (mine.dtype, mine.shape) == (its.dtype, its.shape)
        far = np.abs(mine - its)
        assert far.max() < 2e-3
        assert np.median(far) < 1e-6


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_lstm(direction: str, per_channel: bool, steps: int, tmp_path: Path) -> None:
    model = quantized(lstm(steps, 2, direction), tmp_path, per_channel=per_channel)
    assert_close(model, lstm_feeds(model))


def test_lstm_without_bias_and_states(tmp_path: Path) -> None:
    model = quantized(lstm(6, 1, "forward", has_optional=False), tmp_path)
    assert_close(model, lstm_feeds(model))


def test_products_of_an_lstm_run_in_int8(tmp_path: Path) -> None:
    graph = qg.import_model(quantized(lstm(6, 1, "forward"), tmp_path))
    products = [n for n in graph.every_node() if n.op == "Gemm"]
    assert {str(o.type.dtype) for n in products for o in n.operands} == {"i8"}


def test_states_of_sequences_of_different_lengths_are_left_to_the_fallback(
    tmp_path: Path,
) -> None:
    model = quantized(lstm(6, 2, "forward", lengths=np.array([6, 3], np.int32)), tmp_path)
    with pytest.raises(qg.UnsupportedOpError, match="different lengths"):
        import_model(model)


def test_lstm_of_any_length(tmp_path: Path) -> None:
    model = of_any(quantized(lstm(6, 1, "bidirectional"), tmp_path), x=(0,))
    compiled = qg.compile(model, num_threads=1)
    for steps in (1, 2, 3, 9, 40):
        fed = lstm_feeds(model) | {"x": floats(steps, 1, 3)}
        for mine, its in zip(
            compiled.run(None, fed), by_onnxruntime(model, fed, optimized=True), strict=True
        ):
            assert np.abs(mine - its).max() < 2e-3


@pytest.mark.slow
@moderate
@given(
    steps=st.integers(1, 12),
    batch=st.integers(1, 4),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    per_channel=st.booleans(),
    given_=st.booleans(),
    seed=st.integers(0, 99),
)
def test_drawn_lstms(
    steps: int,
    batch: int,
    direction: str,
    per_channel: bool,
    given_: bool,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plain = lstm(steps, batch, direction, given_)
    model = quantized(plain, tmp_path_factory.mktemp("lstm"), per_channel=per_channel)
    assert_close(model, lstm_feeds(model, seed))
