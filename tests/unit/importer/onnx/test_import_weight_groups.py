"""MatMulNBits against onnxruntime: interpreted, compiled and exported again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.export.onnx.model import export_onnx
from quantglow.ir.ops import Gather, Gemm, GroupedMatMul, QuantizeRows
from quantglow.ir.ops.groupwise import pack_codes
from tests.support.effort import moderate
from tests.unit.quantization.qdq.qdq_models import QdqModel, by_onnxruntime

seeds = st.integers(0, 9999)
FLOAT, INT8 = 0, 4


def packed_points(points: np.ndarray, bits: int) -> np.ndarray:
    return pack_codes(np.pad(points, ((0, 0), (0, -points.shape[1] % (8 // bits)))), bits)


def n_bits(
    m: QdqModel,
    x: str,
    depth: int,
    columns: int,
    *,
    block: int = 32,
    bits: int = 4,
    level: int = FLOAT,
    points: str = "none",
    bias: bool = False,
    order: np.ndarray | None = None,
    flat: bool = False,
) -> str:
    """A MatMulNBits with drawn weights.  ``points``: none, packed, floats or fractions."""
    groups = -(-depth // block)
    w = m.random.integers(0, 256, (columns, groups, block * bits // 8)).astype(np.uint8)
    scales = m.random.uniform(0.001, 0.1, (columns, groups)).astype(np.float32)
    codes = m.random.integers(0, 2**bits, (columns, groups)).astype(np.uint8)
    inputs = {
        "none": None,
        "packed": packed_points(codes, bits),
        "floats": codes.astype(np.float32),
        "fractions": codes + np.float32(0.25),
    }[points]
    if flat:
        scales, inputs = scales.reshape(-1), None if inputs is None else inputs.reshape(-1)
    vector = m.random.normal(0, 1, columns).astype(np.float32) if bias else None
    operands = [None if a is None else m.tensor(a) for a in (inputs, order, vector)]
    return m.microsoft(
        "MatMulNBits",
        *(x, m.tensor(w), m.tensor(scales)),
        *(name or "" for name in operands),
        dtype=np.float32,
        K=depth,
        N=columns,
        bits=bits,
        block_size=block,
        accuracy_level=level,
    )


def assert_close(m: QdqModel, y: str, tolerance: float, *kinds: type) -> None:
    """Interpreted as compiled and as onnxruntime has it, in nodes of these kinds, exported too."""
    model, feeds = m.model(y), m.feeds()
    graph = qg.import_model(model)
    assert [type(n) for n in graph.nodes if isinstance(n, (*GROUPED, Gemm))] == [*kinds]
    (mine,) = qg.interpret(graph, feeds)
    (theirs,) = by_onnxruntime(model, feeds)
    assert mine.shape == theirs.shape
    far = tolerance * max(1.0, float(np.abs(theirs).max(initial=0)))
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=far)
    (compiled,) = qg.compile(model, num_threads=1).run(None, feeds)
    if QuantizeRows in kinds:
        np.testing.assert_array_equal(compiled, mine)
    np.testing.assert_allclose(compiled, mine, rtol=1e-5, atol=1e-5 * max(1.0, far / tolerance))
    again = qg.import_model(export_onnx(graph))
    np.testing.assert_array_equal(qg.interpret(again, feeds)[0], mine)


GROUPED = (QuantizeRows, GroupedMatMul)
FORMS = [(4, "none"), (4, "packed"), (4, "floats"), (8, "none"), (8, "packed")]
"""onnxruntime has no zero points in float for 8 bits."""


@pytest.mark.slow_variants
@pytest.mark.parametrize(("bits", "points"), FORMS)
@moderate
@given(
    st.sampled_from([(1, 64), (3, 40), (2, 3, 70)]),
    st.integers(1, 20),
    st.sampled_from([16, 32, 64]),
    *[st.booleans()] * 2,
    seeds,
)
def test_products_in_float(
    bits: int,
    points: str,
    shape: tuple[int, ...],
    columns: int,
    block: int,
    bias: bool,
    flat: bool,
    seed: int,
) -> None:
    m = QdqModel(seed=seed)
    y = n_bits(
        *(m, m.input(*shape), shape[-1], columns),
        block=block,
        bits=bits,
        points=points,
        bias=bias,
        flat=flat,
    )
    assert_close(m, y, 1e-5, GroupedMatMul)


@pytest.mark.parametrize(("bits", "points"), FORMS)
def test_products_of_int8(bits: int, points: str) -> None:
    m = QdqModel()
    y = n_bits(m, m.input(3, 128), 128, 24, bits=bits, points=points, level=INT8, bias=True)
    assert_close(m, y, 0.01, QuantizeRows, GroupedMatMul)


def test_two_bits() -> None:
    m = QdqModel()
    y = n_bits(m, m.input(3, 128), 128, 24, bits=2, points="packed")
    assert_close(m, y, 1e-5, GroupedMatMul)


def test_products_of_one_operand_share_its_rows() -> None:
    m = QdqModel()
    x = m.input(2, 3, 64)
    parts = [n_bits(m, x, 64, columns, level=INT8) for columns in (8, 16)]
    graph = qg.import_model(m.model(*parts))
    assert sum(isinstance(node, QuantizeRows) for node in graph.nodes) == 1


def test_zero_points_that_are_no_codes_become_float_weights() -> None:
    m = QdqModel()
    assert_close(m, n_bits(m, m.input(2, 64), 64, 8, points="fractions"), 1e-5, Gemm)


def test_weights_in_another_order_become_float_weights() -> None:
    m = QdqModel()
    order = (np.arange(64) % 2).astype(np.int32)
    assert_close(m, n_bits(m, m.input(2, 64), 64, 8, order=order), 1e-5, Gemm)


def test_the_order_that_weights_have_anyway() -> None:
    m = QdqModel()
    order = (np.arange(64) // 32).astype(np.int32)
    assert_close(m, n_bits(m, m.input(2, 64), 64, 8, order=order), 1e-5, GroupedMatMul)


@pytest.mark.parametrize("bias", [False, True])
def test_weights_that_are_left_out(bias: bool) -> None:
    m = QdqModel()
    none = m.tensor(np.zeros((0, 2, 16), np.uint8))
    vector = m.tensor(np.arange(8, dtype=np.float32)) if bias else ""
    x, scales = m.input(2, 64), m.tensor(np.zeros(0, np.float32))
    attributes = {"K": 64, "N": 8, "bits": 4, "block_size": 32}
    y = m.microsoft("MatMulNBits", x, none, scales, "", "", vector, dtype=np.float32, **attributes)
    model, feeds = m.model(y), m.feeds()
    (actual,) = qg.interpret(qg.import_model(model), feeds)
    np.testing.assert_array_equal(actual, by_onnxruntime(model, feeds)[0])


TABLES = [("uint8", 4), ("uint8", 8), ("int4", 4), ("uint4", 4)]


def table_rows(m: QdqModel, indices: str, kind: str, bits: int, depth: int, points: bool) -> str:
    """GatherBlockQuantized of a drawn table of 20 rows."""
    groups = -(-depth // 16)
    scales = m.tensor(m.random.uniform(0.01, 0.1, (20, groups)).astype(np.float32))
    if kind == "uint8":
        data = m.tensor(m.random.integers(0, 256, (20, depth * bits // 8)).astype(np.uint8))
        codes = m.random.integers(0, 2**bits, (20, groups)).astype(np.uint8)
        inputs = m.tensor(packed_points(codes, bits)) if points else ""
    else:
        low = -8 if kind == "int4" else 0
        onnx_type = TensorProto.INT4 if low else TensorProto.UINT4
        data = m.tensor(m.random.integers(low, low + 16, (20, depth)), onnx_type)
        codes = m.random.integers(low, low + 16, (20, groups))
        inputs = m.tensor(codes, onnx_type) if points else ""
    return m.microsoft(
        "GatherBlockQuantized",
        *(data, indices, scales, inputs),
        dtype=np.float32,
        bits=bits,
        block_size=16,
        gather_axis=0,
        quantize_axis=1,
    )


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("depth", [16, 40, 64])
@pytest.mark.parametrize(("kind", "bits"), TABLES)
def test_rows_of_tables(kind: str, bits: int, depth: int, points: bool) -> None:
    m = QdqModel()
    m.inputs["indices"] = (2, 3)
    y = table_rows(m, "indices", kind, bits, depth, points)
    model = m.model(y)
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("indices", TensorProto.INT64, (2, 3))
    )
    feeds = {"indices": np.array([[0, 19, -1], [7, 7, 3]])}
    graph = qg.import_model(model)
    (mine,) = qg.interpret(graph, feeds)
    (theirs,) = by_onnxruntime(model, feeds)
    np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(qg.compile(model, num_threads=1).run(None, feeds)[0], mine)
    tables = [node.x for node in graph.nodes if isinstance(node, Gather)]
    assert sum(t.type.nbytes for t in tables) <= 20 * (depth * bits // 8 + 64) + 100
    again = qg.import_model(export_onnx(graph))
    np.testing.assert_array_equal(qg.interpret(again, feeds)[0], mine)


KINDS = [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8]
FORMS_OF_PRODUCTS = ["MatMul", "Gemm", "transB", "Transpose", "Gemm with a row"]


def blocks_of(m: QdqModel, shape: tuple[int, int], axis: int, kind: int, points: bool) -> str:
    """DequantizeLinear of drawn codes in blocks of 32."""
    bits = 4 if kind in (TensorProto.INT4, TensorProto.UINT4) else 8
    low = -(2 ** (bits - 1)) if kind in (TensorProto.INT4, TensorProto.INT8) else 0
    sizes = [*shape]
    sizes[axis] = -(-sizes[axis] // 32)
    codes = m.tensor(m.random.integers(low, low + 2**bits, shape), kind)
    scales = m.tensor(m.random.uniform(0.01, 0.1, sizes).astype(np.float32))
    inputs = [m.tensor(m.random.integers(low, low + 2**bits, sizes), kind)] if points else []
    return m.op("DequantizeLinear", codes, scales, *inputs, axis=axis, block_size=32)


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS_OF_PRODUCTS)
def test_blocks_behind_dequantize_linear(form: str, kind: int, points: bool) -> None:
    m = QdqModel()
    turned = form in ("transB", "Transpose")
    shape, axis = ((12, 70), 1) if turned else ((70, 12), 0)
    w = blocks_of(m, shape, axis, kind, points)
    x = m.input(2, 3, 70) if form in ("MatMul", "Transpose") else m.input(5, 70)
    if form == "MatMul":
        y = m.op("MatMul", x, w)
    elif form == "Transpose":
        y = m.op("MatMul", x, m.op("Transpose", w, perm=[1, 0]))
    elif form == "Gemm with a row":
        row = m.tensor(np.arange(12, dtype=np.float32))
        y = m.op("Gemm", x, w, row, alpha=0.5, beta=2.0)
    else:
        y = m.op("Gemm", x, w, transB=int(turned))
    assert_close(m, y, 1e-5, GroupedMatMul)


def test_blocks_along_the_other_axis_become_float_weights() -> None:
    m = QdqModel()
    w = blocks_of(m, (70, 64), 1, TensorProto.INT4, False)
    assert_close(m, m.op("MatMul", m.input(3, 70), w), 1e-5, Gemm)
