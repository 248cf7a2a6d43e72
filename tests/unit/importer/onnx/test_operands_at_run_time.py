"""Operands that are fed, in the corners of what they may be: values as of onnxruntime, or both
refuse, with shapes that are fixed and free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import Const, by_onnxruntime, floats, single

Model = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def rows(mean: float) -> np.ndarray:
    return (np.arange(24).reshape(3, 8) + mean).astype(np.float32)


def weights(*shape: int) -> Const:
    return Const(floats(*shape))


def recurrent(op: str, gates: int, lengths: np.ndarray) -> Model:
    """A recurrent network of 5 units on 4 steps of 2 sequences of 3 elements."""
    parameters = weights(1, 5 * gates, 3), weights(1, 5 * gates, 5), None
    return single(op, floats(4, 2, 3), *parameters, lengths.astype(np.int32), hidden_size=5)


def rotated(positions: list[list[int]]) -> Model:
    tables = weights(6, 4), weights(6, 4)
    return single(
        "RotaryEmbedding", floats(2, 3, 16), *tables, np.array(positions), opset=23, num_heads=2
    )


def scattered(*shape: int) -> Model:
    return single("ScatterND", floats(3, 4), ints(0, 1)[:, None], floats(*shape), opset=18)


def gathered(batch: int) -> Model:
    indices = np.zeros((batch, 1), np.int64)
    return single("GatherND", floats(3, 3, 4), indices, opset=18, batch_dims=1)


COMPUTED: dict[str, Model] = {
    "rows of a large mean, gamma and beta fed": single(
        "LayerNormalization", rows(1e4), floats(8), floats(8)
    ),
    "rows of a large mean, gamma fed": single("LayerNormalization", rows(1e4), floats(8)),
    "gamma of each row": single("LayerNormalization", rows(3.0), weights(3, 8), weights(1, 8)),
    "two axes, gamma fed": single("LayerNormalization", floats(2, 3, 4), floats(3, 4), axis=1),
    "acosh far below 1": single(
        "Acosh", np.array([-1e4, -1e6, -4e18, -np.inf, 0.9, 1, 1.001, 2, 1e5], np.float32)
    ),
    "no index": single("Gather", floats(3, 4), ints()),
    "no index in rows": single("Gather", floats(3, 4), np.zeros((2, 0), np.int64), axis=1),
    "positions in their table": rotated([[0, 5, 2], [0, 0, 0]]),
    "updates that fit": scattered(2, 4),
    "indices of the batch": gathered(3),
}

REFUSED: dict[str, Model] = {
    "one length for two sequences": recurrent("LSTM", 4, ints(2)),
    "lengths in a column": recurrent("GRU", 3, ints(2, 3)[:, None]),
    "lengths of three sequences": recurrent("RNN", 1, ints(2, 3, 1)),
    "a negative position": rotated([[0, -1, 2], [0, 0, 0]]),
    "a position behind the table": rotated([[0, 6, 2], [0, 0, 0]]),
    "updates in one row more": scattered(4, 2),
    "updates of one axis": scattered(8),
    "indices of a smaller batch": gathered(2),
    "scales of no axis": single(
        "DequantizeLinear",
        np.ones((3, 4), np.uint8),
        weights(4),
        Const(np.ones(4, np.uint8)),
        axis=2,
    ),
}


def freed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every dimension of its inputs free."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    for port in proto.graph.input:
        for axis, size in enumerate(port.type.tensor_type.shape.dim):
            size.Clear()
            size.dim_param = f"{port.name}_{axis}"
    return proto


@pytest.mark.parametrize("are_free", [False, True], ids=["fixed", "free"])
@pytest.mark.parametrize("name", COMPUTED)
def test_values_are_those_of_onnxruntime(name: str, are_free: bool) -> None:
    model, feeds = COMPUTED[name]
    model = freed(model) if are_free else model
    compiled: Any = qg.compile(model, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel) or name.startswith("no index")
    for mine, its in zip(compiled.run(None, feeds), by_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize("are_free", [False, True], ids=["fixed", "free"])
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_operands_are_refused(name: str, are_free: bool) -> None:
    model, feeds = REFUSED[name]
    model = freed(model) if are_free else model
    with pytest.raises(qg.QuantglowError, match=r"is malformed|is out of range"):
        qg.compile(model, num_threads=1).run(None, feeds)


def test_a_model_that_no_batch_fits_is_refused_at_once() -> None:
    model, _ = single("MatMul", floats(1, 3), weights(4, 5))
    size = model.graph.input[0].type.tensor_type.shape.dim[0]
    size.Clear()
    size.dim_param = "N"
    with pytest.raises(qg.ModelError, match="the_node"):
        qg.compile(model, num_threads=1)


def test_codes_with_scales_by_blocks_are_left_to_onnxruntime() -> None:
    codes = np.arange(16, dtype=np.uint8).reshape(4, 4)
    model, feeds = single("DequantizeLinear", codes, weights(2, 4), opset=21, axis=0, block_size=2)
    (actual,) = qg.compile(model, num_threads=1).run(None, feeds)
    (expected,) = by_onnxruntime(model, feeds)
    np.testing.assert_array_equal(actual, expected)


def test_known_integers_keep_their_type() -> None:
    known = Const(np.array([[3, 4]], np.int32))
    model, _ = single("ReduceSumSquare", known, Const(ints(1)), opset=18)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    (actual,) = qg.compile(model, num_threads=1).run(None, {})
    np.testing.assert_array_equal(actual, np.array([[25]], np.int32), strict=True)


def test_a_batch_of_one_may_be_too_small() -> None:
    """Rows 1, 4 and 2 of N rows: no program can be compiled ahead for one row."""
    model, feeds = single("Gather", floats(6, 3), Const(ints(1, 4, 2)))
    size = model.graph.input[0].type.tensor_type.shape.dim[0]
    size.Clear()
    size.dim_param = "N"
    compiled = qg.compile(model, num_threads=1)
    for mine, its in zip(compiled.run(None, feeds), by_onnxruntime(model, feeds), strict=True):
        np.testing.assert_array_equal(mine, its)
    with pytest.raises(qg.InputError, match="index 4 is out of range for an axis of length 2"):
        compiled.run(None, {"x0": floats(2, 3)})
