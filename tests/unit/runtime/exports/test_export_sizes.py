"""``export_onnx`` of free dimensions whose sizes are computed, of models that were run or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.support.arrays import Array
from tests.support.choosing_rows import choosing_rows
from tests.support.combinations import covering
from tests.support.free_network import free_model, image
from tests.unit.runtime.exports.test_export_free import assert_equal_runs, session_of

node, value = helper.make_node, helper.make_tensor_value_info
RNG = np.random.default_rng(3)


def weights(*shape: int) -> Array:
    return (RNG.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def network(nodes: list[onnx.NodeProto], dims: list[Any], **known: Any) -> onnx.ModelProto:
    """Nodes from ``x`` to ``y``, and the constants that they read."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()]
    graph = helper.make_graph(
        nodes,
        "sizes",
        [value("x", TensorProto.FLOAT, dims)],
        [value("y", TensorProto.FLOAT, None)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


IMAGE = ["N", 3, "H", "W"]
FILTERS = {"w": weights(8, 3, 3, 3)}
PADDED = {"pads": [1] * 4}
ROWS = ["N", "T", 8]
TABLE = {"table": weights(1, 64, 8), "zero": [0], "one": [1], "m": weights(8, 8)}
POSITIONS = [
    node("Shape", ["x"], ["length"], start=1, end=2),
    node("Slice", ["table", "zero", "length", "one"], ["positions"]),
    node("Add", ["x", "positions"], ["placed"]),
    node("MatMul", ["placed", "m"], ["y"]),
]
GRU = {"gw": weights(1, 24, 8), "gr": weights(1, 24, 8)}
MODELS = {
    "pools with ceil_mode": network(
        [
            node("Conv", ["x", "w"], ["c"], **PADDED),
            node("MaxPool", ["c"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
            node("AveragePool", ["p"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        ],
        IMAGE,
        **FILTERS,
    ),
    "half as large again": network(
        [
            node("Conv", ["x", "w"], ["c"], **PADDED),
            node("Resize", ["c", "", "scales"], ["y"], mode="linear"),
        ],
        IMAGE,
        scales=np.float32([1, 1, 1.5, 0.75]),
        **FILTERS,
    ),
    "a scale that no fraction of two is": network(
        [
            node("Conv", ["x", "w"], ["c"], **PADDED),
            node("Resize", ["c", "", "scales"], ["y"], mode="nearest"),
        ],
        IMAGE,
        scales=np.float32([1, 1, 0.6, 2.3]),
        **FILTERS,
    ),
    "Hardmax": network(
        [node("MatMul", ["x", "m"], ["c"]), node("Hardmax", ["c"], ["y"], axis=1)],
        ROWS,
        m=weights(8, 8),
    ),
    "GRU": network(
        [
            node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
            node("GRU", ["steps", "gw", "gr"], ["every"], hidden_size=8),
            node("Squeeze", ["every", "one"], ["y"]),
        ],
        ROWS,
        one=[1],
        **GRU,
    ),
    "positions": network(POSITIONS, ROWS, **TABLE),
    "a causal mask": network(
        [
            node("Transpose", ["x"], ["keys"], perm=[0, 2, 1]),
            node("MatMul", ["x", "keys"], ["scores"]),
            node("Trilu", ["scores"], ["low"], upper=0),
            node("MatMul", ["low", "x"], ["y"]),
        ],
        ROWS,
    ),
    "mirrored edges": network(
        [
            node("Pad", ["x", "widths"], ["wide"], mode="reflect"),
            node("Conv", ["wide", "w"], ["y"]),
        ],
        IMAGE,
        widths=[0, 0, 1, 1, 0, 0, 1, 1],
        **FILTERS,
    ),
}
SHAPES = {4: [(1, 3, 8, 8), (2, 3, 9, 12), (1, 3, 15, 7)], 3: [(1, 5, 8), (3, 9, 8), (2, 17, 8)]}


def shapes_of(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    return SHAPES[len(model.graph.input[0].type.tensor_type.shape.dim)]


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "precision"), covering([*MODELS], ["int8", "float"]))
def test_sizes_are_free_in_the_exported_model(name: str, precision: str, tmp_path: Path) -> None:
    model, shapes = MODELS[name], shapes_of(MODELS[name])
    if precision == "float":
        compiled: Any = qg.compile(model, num_threads=1)
    else:
        samples = [image(shapes[1], seed) for seed in range(4)]
        compiled = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
    compiled.export_onnx(tmp_path / "m.onnx")
    dims = onnx.load(tmp_path / "m.onnx").graph.input[0].type.tensor_type.shape.dim
    declared = IMAGE if len(dims) == 4 else ROWS
    assert [dim.dim_param or dim.dim_value for dim in dims] == declared
    for shape in shapes:
        feeds = {"x": image(shape, 7)}
        if precision == "float":
            assert_equal_runs(compiled, tmp_path / "m.onnx", feeds)
        else:
            assert_near_runs(compiled, tmp_path / "m.onnx", feeds)


def assert_near_runs(compiled: Any, path: Path, feeds: dict[str, Array]) -> None:
    """Results are a few steps apart at most."""

    for one, other in zip(
        session_of(path).run(None, feeds), compiled.run(None, feeds), strict=True
    ):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=0.03 * np.abs(other).max(), rtol=0)


def test_a_model_that_was_not_run_is_exported(tmp_path: Path) -> None:
    compiled = qg.compile(free_model(), num_threads=1)
    compiled.export_onnx(tmp_path / "m.onnx")
    for shape in ((1, 3, 8, 8), (2, 3, 7, 5)):
        assert_equal_runs(compiled, tmp_path / "m.onnx", {"x": image(shape)})


def test_values_that_decide_are_named(tmp_path: Path) -> None:
    model = network(
        [node("Cast", ["n"], ["count"], to=TensorProto.INT64), node("Tile", ["x", "count"], ["y"])],
        ["N", 4],
    )
    model.graph.input.append(value("n", TensorProto.INT32, [2]))
    compiled = qg.compile(model, num_threads=1)
    feeds = {"x": image((3, 4)), "n": np.array([2, 1], np.int32)}
    compiled.run(None, feeds)
    with pytest.raises(qg.ModelError, match=r"input\(s\) n decide.*Remedy: .*input_shapes"):
        compiled.export_onnx(tmp_path / "m.onnx")
    shapes = {name: array.shape for name, array in feeds.items()}
    compiled.export_onnx(tmp_path / "m.onnx", input_shapes=shapes)
    assert_equal_runs(compiled, tmp_path / "m.onnx", feeds)


def test_a_free_model_that_is_cut_when_it_runs_is_written_as_it_is(tmp_path: Path) -> None:
    model = choosing_rows("N")
    compiled = qg.compile(model, num_threads=1)
    compiled.export_onnx(tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx").graph.node
