"""int8 models with a free batch: a sample has the same result alone and among others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import quantglow as qg
from tests.support.combinations import covering
from tests.unit.importer.onnx.onnx_models import floats

SIZE, CHANNELS = 7, 8
"""Height, width and channels of the images."""
BEFORE = ("AveragePool", "Relu", "none")
PRODUCTS = {"grouped": 4, "plain": 1, "depthwise": CHANNELS}
NORMS = ("InstanceNormalization", "LayerNormalization")
UNIT = "unit InstanceNormalization"
"""With scales of 1 and shifts of 0."""
BEHIND = (*NORMS, UNIT, "Sigmoid", "Softmax", "MatMul", "places", "scale", "none")
ENDS = ("Relu", "Add", "Transpose", "GlobalAveragePool", "Conv", "padded Conv", "product of rows")


def model(before: str, product: str, behind: str, end: str) -> ModelProto:
    """x [N, 8, 7, 7] -> one operator before a convolution, one behind it, and the last one."""
    rng, node = np.random.default_rng(3), helper.make_node
    group = PRODUCTS[product]
    arrays = {
        "w": rng.normal(0, 0.5, (CHANNELS, CHANNELS // group, 1, 1)),
        "b": rng.normal(0, 0.1, CHANNELS),
        "scale": rng.uniform(0.5, 2, CHANNELS if behind == "InstanceNormalization" else SIZE),
        "shift": rng.normal(0, 0.5, CHANNELS if behind == "InstanceNormalization" else SIZE),
        "matrix": rng.normal(0, 0.5, (SIZE, SIZE)),
        "values": rng.normal(0, 0.5, (1, CHANNELS, SIZE, SIZE)),
        "factors": rng.uniform(0.5, 2, (CHANNELS, 1, 1)),
        "last": rng.normal(0, 0.2, (CHANNELS, CHANNELS, 3, 3)),
        "columns": rng.normal(0, 0.2, (SIZE, SIZE)),
        "ones": np.ones(CHANNELS),
        "zeros": np.zeros(CHANNELS),
    }
    attributes: dict[str, dict[str, Any]] = {
        "AveragePool": {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
        "Softmax": {"axis": 1},
        "Transpose": {"perm": [0, 2, 3, 1]},
        "padded Conv": {"pads": [1] * 4},
    }
    more = {
        "InstanceNormalization": ["scale", "shift"],
        "LayerNormalization": ["scale", "shift"],
        UNIT: ["ones", "zeros"],
        "MatMul": ["matrix"],
        "places": ["values"],
        "scale": ["factors"],
        "Add": ["first"],
        "Conv": ["last"],
        "padded Conv": ["last"],
        "product of rows": ["columns"],
    }
    names = {"none": "Identity", "places": "Add", "scale": "Mul"}
    names |= {UNIT: "InstanceNormalization", "padded Conv": "Conv", "product of rows": "MatMul"}
    steps = [(before, "x", "first"), (behind, "c", "m"), (end, "m", "y")]
    nodes = [
        node(names.get(op, op), [x, *more.get(op, [])], [y], **attributes.get(op, {}))
        for op, x, y in steps
    ]
    conv = node("Conv", ["first", "w", "b"], ["c"], group=group)
    nodes.insert(1, conv)
    used = {name for n in nodes for name in n.input}
    constants = [
        numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items() if n in used
    ]
    info = helper.make_tensor_value_info("x", 1, ["N", CHANNELS, SIZE, SIZE])
    result = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [info], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("before", "product", "behind", "end"), covering(BEFORE, [*PRODUCTS], BEHIND, ENDS)
)
def test_a_sample_has_one_result(before: str, product: str, behind: str, end: str) -> None:
    samples = [floats(1, CHANNELS, SIZE, SIZE, seed=seed) for seed in range(4)]
    compiled: Any = qg.quantize_and_compile(
        model(before, product, behind, end), samples, verify=False, progress=False
    )
    whole = compiled(np.concatenate(samples))
    for sample, among in zip(samples, whole, strict=True):
        np.testing.assert_allclose(compiled(sample)[0], among, rtol=1e-5, atol=1e-5)


TOKENS, WIDTH, HEADS = 5, 16, 2
PROJECTIONS = ("MatMul", "Gemm")
KEYS = ("at once", "by rows", "twice")
"""How the keys are turned: by one Transpose; by Reshape, Transpose and Reshape, as PyTorch's
exporter writes it; or by two Transposes."""
SCALES = ("none", "scores", "queries", "both", "turned keys", *("Relu", "Neg", "HardSwish"))
"""Values that are multiplied by the scale, or by its root where both are; or the function of the
queries and of the turned keys."""
BEFORE_ATTENTION = ("none", "LayerNormalization", "class token", "positions")
BEHIND_ATTENTION = ("none", "Add", "LayerNormalization", "row for each sample", "equal rows")
MASKS = ("none", "added")


def attention(
    projection: str, keys: str, scale: str, before: str, behind: str, mask: str
) -> ModelProto:
    """x [N, 5, 16] -> self-attention in one of the forms that exporters write."""
    rng, size = np.random.default_rng(4), WIDTH // HEADS
    count = TOKENS + (before == "class token")
    constants = {
        "heads": np.array([0, -1, HEADS, size]),
        "whole": np.array([0, -1, WIDTH]),
        "flat": np.array([-1, WIDTH]),
        "tokens": np.array([-1, count, WIDTH]),
        "rows": np.array([-1, count, size]),
        "turned": np.array([-1, HEADS, size, count]),
        "scale": np.float32(size**-0.5),
        "root": np.float32(size**-0.25),
        "gamma": rng.uniform(0.5, 2, WIDTH).astype(np.float32),
        "beta": rng.normal(0, 0.5, WIDTH).astype(np.float32),
        "class": rng.normal(size=(1, 1, WIDTH)).astype(np.float32),
        "one": np.array([1, 1]),
        "places": rng.normal(size=(1, TOKENS, WIDTH)).astype(np.float32),
        "equal": np.repeat(rng.normal(size=(1, 1, WIDTH)), count, axis=1).astype(np.float32),
        "mask": np.triu(np.full((count, count), -1e4, np.float32), 1),
    }
    nodes = []

    def add(op: str, *operands: str, **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, list(operands), [name], **attributes))
        return name

    def constant(name: str, *shape: int) -> str:
        constants[name] = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        return name

    def projected(value: str, name: str) -> str:
        w, b = constant(f"w{name}", WIDTH, WIDTH), constant(f"b{name}", WIDTH)
        if projection == "MatMul":
            return add("Add", add("MatMul", value, w), b)
        return add("Reshape", add("Gemm", add("Reshape", value, "flat"), w, b), "tokens")

    def scaled(value: str, where: str) -> str:
        if scale in ("Relu", "Neg", "HardSwish"):
            return add(scale, value) if where in ("queries", "turned keys") else value
        if scale == "both" and where in ("queries", "keys"):
            return add("Mul", value, "root")
        if scale == "turned keys" and where in ("queries", "turned keys"):
            return add("Mul", value, "root")
        return add("Mul", value, "scale") if where == scale else value

    def split(value: str) -> str:
        return add("Reshape", value, "heads")

    x = "x"
    if before == "class token":
        batch = add("Concat", add("Shape", "x", start=0, end=1), "one", axis=0)
        x = add("Concat", add("Expand", "class", batch), "x", axis=1)
    elif before == "positions":
        x = add("Add", "x", "places")
    elif before == "LayerNormalization":
        x = add("LayerNormalization", "x", "gamma", "beta")
    queries = scaled(add("Transpose", split(projected(x, "q")), perm=[0, 2, 1, 3]), "queries")
    values = add("Transpose", split(projected(x, "v")), perm=[0, 2, 1, 3])
    key = scaled(split(projected(x, "k")), "keys")
    if keys == "at once":
        key = add("Transpose", key, perm=[0, 2, 3, 1])
    else:
        key = add("Transpose", key, perm=[0, 2, 1, 3])
        if keys == "twice":
            key = add("Transpose", key, perm=[0, 1, 3, 2])
        else:
            rows = add("Transpose", add("Reshape", key, "rows"), perm=[0, 2, 1])
            key = add("Reshape", rows, "turned")
    scores = scaled(add("MatMul", queries, scaled(key, "turned keys")), "scores")
    if mask == "added":
        scores = add("Add", scores, "mask")
    read = add("MatMul", add("Softmax", scores, axis=-1), values)
    joined = add("Reshape", add("Transpose", read, perm=[0, 2, 1, 3]), "whole")
    result = projected(joined, "o")
    if behind == "row for each sample":
        batch = add("Concat", add("Shape", "x", start=0, end=1), "one", axis=0)
        result = add("Add", result, add("Expand", "class", batch))
    elif behind == "equal rows":
        result = add("Add", result, "equal")
    elif behind != "none":
        result = add("Add", result, x)
    if behind == "LayerNormalization":
        result = add("LayerNormalization", result, "gamma", "beta")
    used = {name for n in nodes for name in n.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", TOKENS, WIDTH])],
        [helper.make_tensor_value_info(result, 1, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("keys", "scale", "before", "behind"),
    covering(KEYS, SCALES, BEFORE_ATTENTION, BEHIND_ATTENTION),
)
def test_a_sequence_has_one_result(keys: str, scale: str, before: str, behind: str) -> None:
    number = KEYS.index(keys) + SCALES.index(scale) + BEFORE_ATTENTION.index(before)
    number += BEHIND_ATTENTION.index(behind)
    projection, mask = PROJECTIONS[number % 2], MASKS[number // 2 % 2]
    proto = attention(projection, keys, scale, before, behind, mask)
    samples = [floats(1, TOKENS, WIDTH, seed=seed) for seed in range(4)]
    compiled: Any = qg.quantize_and_compile(proto, samples, verify=False, progress=False)
    whole = compiled(np.concatenate(samples))
    for sample, among in zip(samples, whole, strict=True):
        np.testing.assert_allclose(compiled(sample)[0], among, rtol=1e-5, atol=1e-5)
