"""Real networks quantized by onnxruntime's tools, beside onnxruntime.

Every operator alone, on onnxruntime's integers, differs by at most a step, on ties.  The network is
as close to the float model as onnxruntime is.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

import quantglow as qg
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.arithmetic import is_integer
from quantglow.ir.types import DType
from tests.support.embedded import network
from tests.unit.quantization.qdq.qdq_models import by_onnxruntime

QDQ, QOPERATOR = QuantFormat.QDQ, QuantFormat.QOperator
U8, S8, S16 = QuantType.QUInt8, QuantType.QInt8, QuantType.QInt16
TENSORRT = {
    "ActivationSymmetric": True,
    "AddQDQPairToWeight": True,
    "DedicatedQDQPair": True,
    "QuantizeBias": False,
    "WeightSymmetric": True,
}
WIDE = {"ActivationSymmetric": True, "UseQDQContribOps": True}
FORMS: dict[str, dict[str, Any]] = {
    "u8-s8": {"activation_type": U8, "weight_type": S8, "per_channel": True},
    "s8-s8": {"activation_type": S8, "weight_type": S8, "per_channel": True},
    "u8-u8": {"activation_type": U8, "weight_type": U8},
    "s16-s8": {"activation_type": S16, "weight_type": S8, "extra_options": WIDE},
    "tensorrt": {"activation_type": S8, "per_channel": True, "extra_options": TENSORRT},
    "qoperator": {"quant_format": QOPERATOR, "activation_type": U8, "weight_type": S8},
}
DATASETS = Path(__file__).parents[2] / "datasets"
TIES = 1e-3
CALIBRATION = 4


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Silence of onnxruntime's quantizer, which logs advice."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


@cache
def prepared(name: str) -> onnx.ModelProto:
    """The model in the quantizer's form: opset 13, initializers only, fixed shape."""
    chosen = network(name)
    model = with_fixed_input(onnx.load(chosen.path), *chosen.shapes.values())
    if model.opset_import[0].version < 13:
        model = onnx.version_converter.convert_version(model, 13)
    with tempfile.TemporaryDirectory() as folder:
        plain, path = Path(folder) / "plain.onnx", Path(folder) / "float.onnx"
        onnx.save(model, plain)
        quant_pre_process(str(plain), str(path), skip_symbolic_shape=True)
        return onnx.load(path)


def with_fixed_input(model: onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The model with one input of this shape, and without weights among its inputs."""
    weights = {tensor.name for tensor in model.graph.initializer}
    (fed,) = [value for value in model.graph.input if value.name not in weights]
    info = onnx.helper.make_tensor_value_info(fed.name, onnx.TensorProto.FLOAT, shape)
    del model.graph.input[:], model.graph.value_info[:]
    model.graph.input.append(info)
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = shape[0]
    model.ir_version = max(model.ir_version, 4)
    return model


class Reader(CalibrationDataReader):
    """Feeds one after the other, then None."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.remaining = iter(feeds)

    def get_next(self) -> Any:  # the base class promises a dict, its callers await None
        return next(self.remaining, None)


@cache
def quantized(name: str, form: str) -> onnx.ModelProto:
    """The model quantized by onnxruntime in one of ``FORMS``."""
    options = {"quant_format": QDQ, **FORMS[form]}
    reader = Reader(network(name).feeds(CALIBRATION))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "int8.onnx"
        quantize_static(copied(prepared(name)), str(target), reader, **options)
        return onnx.load(target)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for a function that changes its argument."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    return proto


def sqnr_db(expected: np.ndarray, actual: np.ndarray) -> float:
    noise = float(np.square(expected - actual).sum())
    return float("inf") if noise == 0 else 10 * np.log10(np.square(expected).sum() / noise)


def stored_by_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Every int8 and uint8 value of a run as int8 [N, H, W, C]."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = [o for n in model.graph.node if n.op_type == "QuantizeLinear" for o in n.output]
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in names)
    actual = {}
    for name, array in zip(names, by_onnxruntime(watched, feeds), strict=True):
        shift = 128 if array.dtype == np.uint8 else 0
        last = array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
        actual[name] = (last.astype(np.int32) - shift).astype(
            np.int16 if array.dtype == np.int16 else np.int8
        )
    return actual


def on_their_operands(node: Node, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The node's result on onnxruntime's operands, None if one of them is not visible."""
    operands = []
    for o in node.operands:
        value = o.value if isinstance(o, Constant) else values.get(o.name)
        if value is None or value.shape != o.type.shape:
            return None
        operands.append(value)
    return node.evaluate(*operands)


def assert_operators_agree(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Counter:
    """Check every integer operator alone; the number of compared ones of each kind."""
    graph = qg.import_model(model)
    values = stored_by_onnxruntime(model, feeds)
    compared: Counter[str] = Counter()
    for node in graph.compute_nodes():
        actual = on_their_operands(node, values) if is_integer(node.type) else None
        if actual is None:
            continue
        if node.name in values:
            steps = np.abs(actual.astype(int) - values[node.name])
            assert steps.max() <= 1
            assert np.count_nonzero(steps) <= max(1, TIES * steps.size)
            compared[node.op] += 1
        else:  # elements moved between two of onnxruntime's values
            values[node.name] = actual
    return compared


def assert_as_good(
    model: onnx.ModelProto, reference: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> None:
    """Check that the network is as close to the float model as onnxruntime."""
    (expected,) = by_onnxruntime(reference, feeds)
    (theirs,) = by_onnxruntime(model, feeds)
    (ours,) = qg.compile(model, num_threads=1).run(None, feeds)
    assert sqnr_db(expected, ours) >= sqnr_db(expected, theirs) - 0.5


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("mnist", form) for form in FORMS),
        pytest.param("ppocr_cls", "u8-s8", marks=pytest.mark.slow),
    ],
)
def test_operators_and_networks_agree_with_onnxruntime(name: str, form: str) -> None:
    model = quantized(name, form)
    (feeds,) = network(name).feeds(1, seed=1)
    compared = assert_operators_agree(model, feeds)
    if form in ("u8-s8", "s8-s8", "tensorrt"):
        assert compared["Conv"] >= 2
    assert_as_good(model, prepared(name), feeds)


def test_a_network_quantized_by_nncf_runs_on_integers() -> None:
    """Its BatchNormalizations are folded into the scales of the weights."""
    model = onnx.load(DATASETS / "mnist_cnn_nncf.onnx")
    chosen = network("mnist")
    (feeds,) = chosen.feeds(1, seed=1)
    graph = qg.import_model(model)
    assert Counter(n.op for n in graph.nodes)["Conv"] == 3
    assert all(is_integer(n.type) for n in graph.nodes if n.op == "Conv")
    assert assert_operators_agree(model, feeds)["Conv"] >= 2
    assert_as_good(model, onnx.load(chosen.path), feeds)


@pytest.mark.parametrize("form", FORMS)
def test_all_products_run_on_integers(form: str) -> None:
    graph = qg.import_model(quantized("mnist", form))
    products = [n for n in graph.nodes if n.op in ("Conv", "Gemm", "MatMul")]
    assert len(products) >= 4
    assert all(is_integer(o.type) for n in products for o in n.operands[:2])


@pytest.mark.parametrize("weights", [S8, U8])
def test_a_dynamically_quantized_network_gives_onnxruntimes_outputs(
    weights: QuantType, tmp_path: Path
) -> None:
    chosen, target = network("mnist"), tmp_path / "dynamic.onnx"
    # Without VNNI onnxruntime saturates the sum of two products with signed weights at 16 bits.
    seven_bits = weights is S8
    quantize_dynamic(
        copied(prepared("mnist")), str(target), weight_type=weights, reduce_range=seven_bits
    )
    model, (feeds,) = onnx.load(target), chosen.feeds(1, seed=1)
    graph = qg.import_model(model)
    assert "External" not in {n.op for n in graph.nodes}
    products = [n for n in graph.nodes if n.op in ("Conv", "Gemm")]
    assert all(n.operands[0].type.dtype is DType.I8 for n in products)
    (expected,) = by_onnxruntime(model, feeds)
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["mnist", pytest.param("ppocr_cls", marks=pytest.mark.slow)])
def test_an_exported_network_is_imported_with_its_integers(name: str, tmp_path: Path) -> None:
    """Quantize, export and import give the same numbers, bit for bit."""
    chosen = network(name)
    graph = qg.import_model(chosen.path, chosen.shapes)
    profile = qg.profile(graph, chosen.feeds(CALIBRATION), progress=False)
    int8 = qg.quantize(graph, profile)
    qg.compile(int8, num_threads=1).export_onnx(tmp_path / "int8.onnx")
    again = qg.import_model(tmp_path / "int8.onnx")
    (feeds,) = chosen.feeds(1, seed=1)
    assert np.array_equal(qg.interpret(again, feeds)[0], qg.interpret(int8, feeds)[0])
    compiled = qg.compile(tmp_path / "int8.onnx", num_threads=1)
    assert np.array_equal(compiled.run(None, feeds)[0], qg.interpret(int8, feeds)[0])


def test_quantizing_a_quantized_model_names_the_remedy() -> None:
    model = quantized("mnist", "u8-s8")
    with pytest.raises(qg.OptionError, match="compile it as it is"):
        qg.quantize_and_compile(model, network("mnist").feeds(2))
