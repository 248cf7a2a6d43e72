"""Attention, rotary positions and fused operators against onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx.operators.nn import attention
from quantglow.runtime.compiled import CompiledModel
from tests.support.combinations import mark_slow
from tests.support.effort import moderate

Array = np.ndarray
MICROSOFT, PREVIEW = "com.microsoft", "ai.onnx.preview"
TOLERANCE = 2e-5
HIDDEN_TOLERANCE = 4e-3
"""Tolerance of rows that see no key: their scores are near -10000, in steps of 2**-10, and
onnxruntime adds mask and bias to them in another order."""


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Attention in blocks of so many rows, however few there are; 0: all at once."""
    most = patch.object(attention, "MOST_SCORES", 0 if rows else 2**40)
    with most, patch.object(attention, "BLOCK_ROWS", max(rows, 1)):
        yield


each_block = pytest.mark.parametrize("rows", mark_slow([0, 2], {2}))


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def node_model(
    op: str,
    operands: dict[str, Array | None],
    results: int,
    domain: str = MICROSOFT,
    constants: tuple[str, ...] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; operands are inputs unless they are ``constants``."""
    arguments = {name: array for name, array in operands.items() if array is not None}
    kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in arguments.items()}
    inputs = [
        helper.make_tensor_value_info(name, kinds[name], array.shape)
        for name, array in arguments.items()
        if name not in constants
    ]
    names = [name if operands[name] is not None else "" for name in operands]
    outputs = [f"y{i}" for i in range(results)]
    node = helper.make_node(op, names, outputs, "node", domain=domain, **attributes)
    ends = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    held = [
        numpy_helper.from_array(arguments[name], name) for name in constants if name in arguments
    ]
    graph = helper.make_graph([node], "g", inputs, ends, held)
    opset = {"Attention": 23, "RotaryEmbedding": 23, "RMSNormalization": 23}.get(op, 17)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def assert_agrees(
    op: str,
    operands: dict[str, Array | None],
    results: int = 1,
    hidden: Array | None = None,
    **more: Any,
) -> None:
    """Compiled by quantglow alone, a node gives what onnxruntime gives.

    ``hidden``: for each sample and row of the first result, whether it sees no key.
    """
    model = node_model(op, operands, results, **more)
    fed = {i.name: operands[i.name] for i in model.graph.input}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, fed)
    compiled = qg.compile(model, num_threads=1)
    assert isinstance(compiled, CompiledModel)
    assert not compiled.build.fallback
    for mine, its in zip(compiled.run(None, fed), expected, strict=True):
        wide = np.zeros(mine.shape[:2], bool) if hidden is None else hidden
        for rows, tolerance in ((wide, HIDDEN_TOLERANCE), (~wide, TOLERANCE)):
            np.testing.assert_allclose(mine[rows], its[rows], rtol=tolerance, atol=tolerance)
        hidden = None  # further results are keys and values


def rows_without_keys(mask: Array | None, batch: int, rows: int, is_causal: bool) -> Array:
    """For each sample and row, whether it sees no key."""
    if mask is None or mask.ndim == 1:
        return np.zeros((batch, rows), bool)
    columns = mask.shape[-1]
    shown = np.broadcast_to(mask.reshape(batch, -1, columns) > 0, (batch, rows, columns))
    if is_causal:
        shown = shown & np.tri(rows, columns, columns - rows, dtype=bool)
    return ~shown.any(axis=-1)


def table(rows: int, pairs: int) -> tuple[Array, Array]:
    """Cosines and sines of ``rows`` positions."""
    angles = np.arange(rows)[:, None] / 100 ** (np.arange(pairs) / pairs)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


# -- rotary positions


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("width", [0, 4])
def test_rotary_positions(interleaved: int, is_flat: bool, width: int) -> None:
    cosine, sine = table(20, width // 2 or 4)
    x = floats(2, 3, 24) if is_flat else floats(2, 3, 5, 8)
    positions = np.random.default_rng(0).integers(0, 20, (2, 3 if is_flat else 5))
    more = {"interleaved": interleaved, "num_heads": 3, "rotary_embedding_dim": width}
    operands: dict[str, Array | None] = {"x": x, "p": positions, "c": cosine, "s": sine}
    assert_agrees("RotaryEmbedding", operands, **more)
    operands = {"x": x, "c": cosine, "s": sine, "p": positions}
    assert_agrees("RotaryEmbedding", operands, domain="", **more)


def test_rotary_positions_from_one_on() -> None:
    cosine, sine = table(20, 4)
    operands: dict[str, Array | None] = {
        "x": floats(2, 3, 24),
        "p": np.array([7]),
        "c": cosine,
        "s": sine,
    }
    assert_agrees("RotaryEmbedding", operands)


# -- Attention of the standard


@st.composite
def standard_cases(draw: st.DrawFn) -> tuple[dict[str, Array | None], dict[str, Any], int]:
    batch, shared, size = draw(st.integers(1, 3)), draw(st.integers(1, 2)), 4
    heads = shared * draw(st.integers(1, 3))
    rows, past = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    is_flat = draw(st.booleans())

    def split(count: int, steps: int) -> Array:
        shape = (batch, steps, count * size) if is_flat else (batch, count, steps, size)
        return floats(*shape, seed=count)

    caches = floats(2, batch, shared, past, size)
    mask = draw(st.sampled_from(["none", "float", "bool"]))
    masks: dict[str, Array | None] = {
        "none": None,
        "float": floats(rows, past + rows),
        "bool": np.random.default_rng(1).random((batch, 1, rows, past + rows)) < 0.8,
    }
    operands = {"q": split(heads, rows), "k": split(shared, rows), "v": split(shared, rows)}
    operands |= {"mask": masks[mask]} if past or mask != "none" else {}
    operands |= {"pk": caches[0], "pv": caches[1]} if past else {}
    more: dict[str, Any] = {"is_causal": draw(st.integers(0, 1))}
    more |= {"q_num_heads": heads, "kv_num_heads": shared} if is_flat else {}
    more |= draw(st.sampled_from([{}, {"scale": 0.3}, {"softcap": 2.0}]))
    return operands, more, 3 if past else 1


@pytest.mark.slow
@each_block
@moderate
@given(standard_cases())
def test_attention_of_the_standard(rows: int, case: Any) -> None:
    operands, more, results = case
    with blocks_of(rows):
        assert_agrees("Attention", operands, results, domain="", **more)


# -- as onnxruntime's tools write them


@st.composite
def multi_head_cases(draw: st.DrawFn) -> tuple[dict[str, Array | None], dict[str, Any], int]:
    batch, heads, size = draw(st.integers(1, 3)), draw(st.integers(1, 3)), 4
    rows, past = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    form = draw(st.sampled_from(["apart", "heads"]))
    past = past if form == "apart" else 0
    keys = rows if past else draw(st.integers(1, 5))
    columns, hidden = past + keys, heads * size
    forms: dict[str, list[Array | None]] = {
        "apart": [floats(batch, rows, hidden), *floats(2, batch, keys, hidden)],
        "heads": [floats(batch, rows, hidden), *floats(2, batch, heads, keys, size)],
    }
    has_bias = draw(st.booleans())
    mask = draw(st.sampled_from([None, "columns", "lengths"]))
    random = np.random.default_rng(2)
    masks = {
        None: None,
        "columns": (random.random((batch, columns)) < 0.7).astype(np.int32),
        "lengths": random.integers(1, columns + 1, batch).astype(np.int32),
    }
    is_causal = int(form == "apart" and keys == rows and draw(st.booleans()))
    extra = floats(1, heads, rows, columns) if draw(st.booleans()) else None
    names = ("query", "key", "value")
    operands = dict(zip(names, forms[form], strict=True))
    operands |= {"bias": floats(3 * hidden) if has_bias else None, "padding": masks[mask]}
    operands |= {"extra": extra}
    if past:
        operands |= dict(zip(("pk", "pv"), floats(2, batch, heads, past, size), strict=True))
    more: dict[str, Any] = {"num_heads": heads, "unidirectional": is_causal}
    more |= draw(st.sampled_from([{}, {"scale": 0.2}, {"mask_filter_value": -50.0}]))
    return operands, more, 3 if past else 1


@pytest.mark.slow
@each_block
@moderate
@given(multi_head_cases())
def test_multi_head_attention(rows: int, case: Any) -> None:
    operands, more, results = case
    with blocks_of(rows):
        query, mask = operands["query"], operands["padding"]
        assert query is not None
        hidden = rows_without_keys(mask, *query.shape[:2], bool(more["unidirectional"]))
        assert_agrees("MultiHeadAttention", operands, results, hidden, **more)


@pytest.mark.parametrize("count", [2, 3])
def test_packed_operands_are_the_operands(count: int) -> None:
    heads, size = 3, 4
    parts = floats(3, 2, 5, heads, size)
    apart = dict(zip(("query", "key", "value"), parts.reshape(3, 2, 5, heads * size), strict=True))
    model = node_model("MultiHeadAttention", {**apart}, 1, num_heads=heads)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, apart)
    joined = np.stack(list(parts[3 - count :]), axis=3)
    packed = {"query": joined} if count == 3 else {"query": apart["query"], "key": joined}
    model = node_model("MultiHeadAttention", {**packed}, 1, num_heads=heads)
    (actual,) = qg.compile(model, num_threads=1).run(None, packed)
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


@st.composite
def packed_cases(draw: st.DrawFn) -> tuple[dict[str, Array | None], dict[str, Any], int]:
    batch, heads, size = draw(st.integers(1, 3)), draw(st.integers(1, 3)), 4
    rows, past, width = draw(st.integers(1, 5)), draw(st.integers(0, 4)), 6
    columns = past + rows
    random = np.random.default_rng(3)
    mask = draw(st.sampled_from([None, "columns", "lengths", "rows"]))
    masks = {
        None: None,
        "columns": (random.random((batch, columns)) < 0.7).astype(np.int32),
        "lengths": random.integers(1, columns + 1, batch).astype(np.int32),
        "rows": (random.random((batch, rows, columns)) < 0.7).astype(np.int32),
    }
    operands: dict[str, Array | None] = {
        "x": floats(batch, rows, width),
        "w": floats(width, 3 * heads * size),
        "b": floats(3 * heads * size),
        "mask": masks[mask],
        "past": floats(2, batch, heads, past, size) if past else None,
        "extra": floats(batch, heads, rows, columns) if not past and draw(st.booleans()) else None,
    }
    more: dict[str, Any] = {"num_heads": heads, "unidirectional": draw(st.integers(0, 1))}
    more |= {"constants": ("w", "b") if draw(st.booleans()) else ()}
    return operands, more, 2 if past else 1


@pytest.mark.slow
@each_block
@moderate
@given(packed_cases())
def test_attention_with_weights(rows: int, case: Any) -> None:
    operands, more, results = case
    with blocks_of(rows):
        x, mask = operands["x"], operands["mask"]
        assert x is not None
        hidden = rows_without_keys(mask, *x.shape[:2], bool(more["unidirectional"]))
        assert_agrees("Attention", operands, results, hidden, **more)


@each_block
def test_rows_that_see_no_key(rows: int) -> None:
    mask = np.ones((3, 4, 4), np.int32)
    mask[1, 2] = mask[2] = 0
    operands: dict[str, Array | None] = {
        "x": floats(3, 4, 6),
        "w": floats(6, 24),
        "b": floats(24),
        "mask": mask,
        "past": None,
        "extra": floats(3, 2, 4, 4),
    }
    with blocks_of(rows):
        hidden = rows_without_keys(mask, 3, 4, False)
        assert hidden.sum() == 5
        assert_agrees("Attention", operands, hidden=hidden, num_heads=2)


@st.composite
def grouped_cases(draw: st.DrawFn) -> tuple[dict[str, Array | None], dict[str, Any]]:
    batch, shared, size = draw(st.integers(1, 3)), draw(st.integers(1, 2)), 16
    heads = shared * draw(st.integers(1, 3))
    rows, past = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    rows = rows if past == 0 or batch == 1 else 1  # as onnxruntime wants it
    total, room = past + rows, rows + 4 if draw(st.booleans()) else 0
    random = np.random.default_rng(draw(st.integers(0, 9)))
    lasts = np.full(batch, total - 1)
    if past > 1:  # one sample at least is as long as all
        lasts[1:] = random.integers(rows, total, batch - 1)
    is_packed, rotates = draw(st.booleans()), draw(st.booleans())
    width = (heads + 2 * shared) * size if is_packed else heads * size
    cosine, sine = table(16, size // 2)
    operands: dict[str, Array | None] = {
        "query": floats(batch, rows, width),
        "key": None if is_packed else floats(batch, rows, shared * size, seed=1),
        "value": None if is_packed else floats(batch, rows, shared * size, seed=2),
        "pk": floats(batch, shared, past + room, size, seed=3),
        "pv": floats(batch, shared, past + room, size, seed=4),
        "lasts": lasts.astype(np.int32),
        "total": np.array(total, np.int32),
        "cosine": cosine if rotates else None,
        "sine": sine if rotates else None,
    }
    more: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared, "do_rotary": int(rotates)}
    more |= {"rotary_interleaved": draw(st.integers(0, 1))} if rotates else {}
    for name, value in (("softcap", 3.0), ("local_window_size", 2), ("smooth_softmax", 1)):
        more |= {name: value} if draw(st.booleans()) else {}
    more |= {"scale": 0.2} if draw(st.booleans()) else {}
    return operands, more


@pytest.mark.slow
@each_block
@moderate
@given(grouped_cases())
def test_grouped_queries(rows: int, case: Any) -> None:
    operands, more = case
    model = node_model("GroupQueryAttention", operands, 3, constants=("total",), **more)
    fed = {i.name: operands[i.name] for i in model.graph.input}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, fed)
    with blocks_of(rows):
        compiled = qg.compile(model, num_threads=1)
        results = compiled.run(None, fed)
    assert not compiled.build.fallback
    np.testing.assert_allclose(results[0], expected[0], rtol=TOLERANCE, atol=TOLERANCE)
    for mine, its in zip(results[1:], expected[1:], strict=True):
        for sample, last in enumerate(operands["lasts"]):
            used = np.s_[sample, :, : last + 1]
            np.testing.assert_allclose(mine[used], its[used], rtol=TOLERANCE, atol=TOLERANCE)


# -- fused operators


@pytest.mark.parametrize("axis", [-1, 1])
def test_root_mean_square_normalization(axis: int) -> None:
    x = floats(2, 3, 8)
    operands: dict[str, Array | None] = {"x": x, "scale": floats(*x.shape[axis:])}
    assert_agrees("RMSNormalization", operands, domain="", axis=axis, epsilon=1e-3)
    if axis == -1:
        assert_agrees("SimplifiedLayerNormalization", operands, 1, domain="", axis=axis)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("results", [1, 4])
def test_normalization_of_a_sum(has_bias: bool, results: int) -> None:
    operands: dict[str, Array | None] = {"x": floats(2, 3, 8), "skip": floats(2, 3, 8, seed=1)}
    gamma, beta = floats(8), floats(8, seed=2)
    bias = {"bias": floats(8, seed=3)} if has_bias else {}
    plain, full = {"gamma": gamma, **bias}, {"gamma": gamma, "beta": beta, **bias}
    for op, more in (("SkipSimplifiedLayerNormalization", plain), ("SkipLayerNormalization", full)):
        assert_sums(op, {**operands, **more}, results)


def assert_sums(op: str, operands: dict[str, Array | None], results: int) -> None:
    """The first output, and the last one of four."""
    model = node_model(op, operands, results, constants=("gamma", "beta", "bias"))
    if results == 4:
        model.graph.node[0].output[1:3] = ["", ""]
        del model.graph.output[1:3]
    fed = {i.name: operands[i.name] for i in model.graph.input}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, fed)
    compiled = qg.compile(model, num_threads=1)
    assert not compiled.build.fallback
    for mine, its in zip(compiled.run(None, fed), expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_gelus(op: str) -> None:
    operands: dict[str, Array | None] = {"x": 3 * floats(2, 3, 8)}
    operands |= {"bias": floats(8)} if op in ("BiasGelu", "FastGelu") else {}
    assert_agrees(op, operands)


def flex_attention(heads: int = 4, **modifiers: str) -> onnx.ModelProto:
    """FlexAttention of 4 heads of queries; modifiers are bodies over ``s``."""
    graphs = {
        name: onnx.parser.parse_graph(
            f"{name} (float[A,B,C,D] s) => (float[A,B,C,D] t) {{ {body} }}"
        )
        for name, body in modifiers.items()
    }
    shapes = {"q": [2, 4, 5, 8], "k": [2, heads, 6, 8], "v": [2, heads, 6, 3]}
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 5, 3])
    node = helper.make_node("FlexAttention", shapes, ["y"], domain=PREVIEW, **graphs)
    graph = helper.make_graph([node], "g", kinds, [y])
    stamps = [helper.make_opsetid("", 24), helper.make_opsetid(PREVIEW, 1)]
    return helper.make_model(graph, opset_imports=stamps, ir_version=11)


MODIFIERS: list[dict[str, str]] = [
    {},
    {"score_mod": "t = Tanh (s)"},
    {"prob_mod": "two = Constant <value_float = 2.0> () t = Mul (s, two)"},
    {"score_mod": "t = Neg (s)", "prob_mod": "u = Sqrt (s) t = Mul (u, s)"},
]


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("modifiers", MODIFIERS, ids=str)
def test_flexible_attention_is_that_of_the_reference(heads: int, modifiers: dict[str, str]) -> None:
    """onnxruntime does not have it."""
    model = flex_attention(heads, **modifiers)
    arrays = {"q": floats(2, 4, 5, 8), "k": floats(2, heads, 6, 8), "v": floats(2, heads, 6, 3)}
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, arrays)
    compiled = qg.compile(model, num_threads=1)
    assert isinstance(compiled, CompiledModel) and not compiled.report.fallback
    np.testing.assert_allclose(compiled.run(None, arrays)[0], expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    "model",
    [
        flex_attention(3),
        flex_attention(score_mod="t = ReduceSum <keepdims = 0> (s)"),
        flex_attention(score_mod="t, u = Split <axis = 3, num_outputs = 2> (s)"),
    ],
)
def test_flexible_attention_that_makes_no_sense_is_an_error(model: onnx.ModelProto) -> None:
    with pytest.raises(qg.UnsupportedOpError, match=r"FlexAttention"):
        qg.import_model(model, fallback=False)
    with pytest.raises(qg.QuantglowError, match=r"FlexAttention") as caught:
        qg.compile(model, num_threads=1)
    assert "Remedy: " in str(caught.value)
