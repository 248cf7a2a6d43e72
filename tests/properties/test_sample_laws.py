"""int8 models with a free batch: a sample has the same result alone and among others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import quantglow as qg
from tests.support.combinations import covering
from tests.unit.frontend.onnx_models import floats

SIZE, CHANNELS = 7, 8
"""Height, width and channels of the images."""
BEFORE = ("AveragePool", "Relu", "none")
PRODUCTS = {"grouped": 4, "plain": 1, "depthwise": CHANNELS}
BEHIND = ("InstanceNormalization", "LayerNormalization", "Sigmoid", "Softmax", "MatMul", "none")
ENDS = ("Relu", "Add", "Transpose", "GlobalAveragePool")


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
    }
    attributes: dict[str, dict[str, Any]] = {
        "AveragePool": {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
        "Softmax": {"axis": 1},
        "Transpose": {"perm": [0, 2, 3, 1]},
    }
    more = {
        "InstanceNormalization": ["scale", "shift"],
        "LayerNormalization": ["scale", "shift"],
        "MatMul": ["matrix"],
        "Add": ["first"],
    }
    names = {"none": "Identity"}
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
    given = helper.make_tensor_value_info("x", 1, ["N", CHANNELS, SIZE, SIZE])
    result = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [given], [result], constants)
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
