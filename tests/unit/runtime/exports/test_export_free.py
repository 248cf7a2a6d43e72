"""``export_onnx`` of a model with free dimensions writes one ONNX model with the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.support.errors import InputError
from tests.support.free_network import SHAPES, free_model, image, scaled_model, sum_model
from tests.unit.importer.onnx.onnx_models import floats

OTHERS = [(2, 3, 7, 7), (4, 3, 16, 3), (1, 3, 1, 1)]
ROWS = [1, 2, 5, 8, 31]


def session_of(path: Path) -> onnxruntime.InferenceSession:
    """onnxruntime without the instructions that saturate sums at 16 bits."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(path, options)


def assert_equal_runs(compiled: Any, path: Path, feeds: dict[str, np.ndarray]) -> None:
    results = session_of(path).run(None, feeds)
    for ours, theirs in zip(compiled.run(None, feeds), results, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module", params=["float", "int8"])
def compiled(request: pytest.FixtureRequest) -> qg.CompiledModel:
    if request.param == "float":
        model = qg.compile(free_model(), num_threads=1)
        model(image(SHAPES[0]))
        return model
    samples = [image(SHAPES[1], seed) for seed in range(4)]
    return qg.quantize_and_compile(free_model(), samples, num_threads=1, progress=False)


@pytest.fixture(scope="module")
def exported(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "free.onnx"
    compiled.export_onnx(path)
    return path


@pytest.mark.slow_variants(4)
@pytest.mark.parametrize("shape", [*SHAPES, *OTHERS])
def test_the_exported_model_gives_the_same_at_every_shape(
    compiled: Any, exported: Path, shape: tuple[int, ...]
) -> None:
    assert_equal_runs(compiled, exported, {"x": image(shape, 9)})


def test_inputs_and_outputs_keep_the_names_of_free_dimensions(exported: Path) -> None:
    graph = onnx.load(exported).graph
    dims = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert dims == {
        "x": ["N", 3, "H", "W"],
        "scores": ["N", 4],
        "features": ["N", 8, "H", "W"],
    }


def test_the_exported_model_is_read_again_with_the_same_results(
    compiled: Any, exported: Path
) -> None:
    x = image((2, 3, 6, 10), 9)
    for ours, again in zip(compiled(x), qg.compile(str(exported), num_threads=1)(x), strict=True):
        np.testing.assert_allclose(again, ours, rtol=1e-4, atol=1e-4)


def test_given_input_shapes_are_fixed(compiled: Any, tmp_path: Path) -> None:
    compiled.export_onnx(tmp_path / "fixed.onnx", input_shapes={"x": (2, 3, 6, 10)})
    (inputs,) = session_of(tmp_path / "fixed.onnx").get_inputs()
    assert inputs.shape == [2, 3, 6, 10]
    assert_equal_runs(compiled, tmp_path / "fixed.onnx", {"x": image((2, 3, 6, 10), 9)})


@pytest.mark.parametrize(
    "shapes", [{"x": (2, 4, 6, 10)}, {"y": (2, 3, 6, 10)}, {}, {"x": (3, 6, 10)}]
)
def test_input_shapes_that_the_model_does_not_take_are_refused(
    compiled: Any, shapes: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError):
        compiled.export_onnx(tmp_path / "m.onnx", input_shapes=shapes)
    assert not (tmp_path / "m.onnx").exists()


def test_a_saved_model_is_exported_as_free(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.qgm")
    qg.load(tmp_path / "m.qgm", num_threads=1).export_onnx(tmp_path / "m.onnx")
    assert_equal_runs(compiled, tmp_path / "m.onnx", {"x": image((3, 3, 4, 9), 9)})


def test_weights_that_depend_on_a_size_are_scaled_when_the_model_runs(tmp_path: Path) -> None:
    """Here a pass divides weights by the width; in the exported model sums are divided."""
    samples = [image((1, 3, 16, 16), seed) for seed in range(4)]
    compiled = qg.quantize_and_compile(scaled_model(), samples, num_threads=1, progress=False)
    compiled.export_onnx(tmp_path / "m.onnx")
    session = session_of(tmp_path / "m.onnx")
    for shape in ((1, 3, 16, 16), (1, 3, 9, 24)):
        (result,), expected = session.run(None, {"x": image(shape, 9)}), compiled(image(shape, 9))
        np.testing.assert_allclose(result, expected, rtol=0, atol=0.03 * np.abs(expected).max())
    compiled.export_onnx(tmp_path / "m.onnx", input_shapes={"x": (1, 3, 16, 24)})
    assert_equal_runs(compiled, tmp_path / "m.onnx", {"x": image((1, 3, 16, 24), 9)})


def test_dimensions_without_a_name_are_told_apart(tmp_path: Path) -> None:
    model = qg.compile(sum_model([None, "?", 3], [None, "?", 3]), num_threads=1)
    feeds = {name: image((4, 5, 3), i) for i, name in enumerate(("x0", "x1"))}
    model.run(None, feeds)
    model.export_onnx(tmp_path / "m.onnx")
    assert_equal_runs(model, tmp_path / "m.onnx", {n: image((7, 2, 3), 1) for n in feeds})


def movement_model(*nodes: onnx.NodeProto, **constants: list[int]) -> onnx.ModelProto:
    """Nodes from ``x`` [T, 4] to ``y``, ``width`` [1] being T."""
    shape = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["width"]),
    ]
    tensors = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in {"zero": [0], "one": [1], **constants}.items()
    ]
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*shape, *nodes],
        "movement",
        [make("x", TensorProto.FLOAT, ["T", 4])],
        [make("y", TensorProto.FLOAT, None)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


node = helper.make_node
MOVEMENTS = {
    "all but the last row": movement_model(
        node("Sub", ["width", "one"], ["end"]), node("Slice", ["x", "zero", "end"], ["y"])
    ),
    "the first half of the rows": movement_model(
        node("Div", ["width", "two"], ["end"]),
        node("Slice", ["x", "zero", "end"], ["half"]),
        node("Relu", ["half"], ["y"]),
        two=[2],
    ),
    "rows in reverse": movement_model(
        node("Slice", ["x", "last", "first", "zero", "back"], ["y"]),
        last=[-1],
        first=[-(2**40)],
        back=[-1],
    ),
    "a row for each row": movement_model(
        node("Slice", ["x", "zero", "one"], ["row"]),
        node("Concat", ["width", "four"], ["target"], axis=0),
        node("Expand", ["row", "target"], ["y"]),
        four=[4],
    ),
    "as many zeros": movement_model(
        node("Concat", ["zero", "zero", "width", "zero"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["y"]),
    ),
    "pairs of rows and columns": movement_model(
        node("Mul", ["width", "four"], ["all"]),
        node("Reshape", ["x", "all"], ["flat"]),
        node("Concat", ["width", "two", "two"], ["target"], axis=0),
        node("Reshape", ["flat", "target"], ["y"]),
        two=[2],
        four=[4],
    ),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_sizes_that_follow_from_a_dimension_are_computed(name: str, tmp_path: Path) -> None:
    model = qg.compile(MOVEMENTS[name], num_threads=1)
    model(image((6, 4)))
    model.export_onnx(tmp_path / "m.onnx")
    for rows in ROWS[name == "the first half of the rows" :]:
        assert_equal_runs(model, tmp_path / "m.onnx", {"x": image((rows, 4), 1)})


def repeating_model(kind: str) -> tuple[onnx.ModelProto, list[tuple[int, ...]]]:
    """A model with a constant that is repeated to a free size, and shapes that it takes."""
    rng, make = np.random.default_rng(0), helper.make_tensor_value_info
    arrays = {"w": rng.normal(0, 0.3, (8, 8)), "class": rng.normal(size=(1, 1, 8))}
    integers = {"one": [1], "width": [8], "groups": [0, 2, -1]}
    if kind == "class token":
        nodes = [
            node("Shape", ["x"], ["batch"], end=1),
            node("Concat", ["batch", "one", "width"], ["target"], axis=0),
            node("Expand", ["class", "target"], ["token"]),
            node("Concat", ["token", "x"], ["tokens"], axis=1),
            node("MatMul", ["tokens", "w"], ["y"]),
        ]
        dims, shapes = ["N", "T", 8], [(1, 5, 8), (2, 5, 8), (3, 9, 8)]
    else:
        arrays |= {"k": rng.normal(0, 0.3, (8, 8, 1, 1)), "s": np.ones(2), "z": np.zeros(2)}
        nodes = [
            node("Conv", ["x", "k"], ["c"]),
            node("Reshape", ["c", "groups"], ["g"]),
            node("InstanceNormalization", ["g", "s", "z"], ["n"]),
            node("Shape", ["c"], ["shape"]),
            node("Reshape", ["n", "shape"], ["m"]),
            node("Conv", ["m", "k"], ["y"]),
        ]
        dims, shapes = ["N", 8, "H", "W"], [(1, 8, 5, 6), (2, 8, 5, 6), (3, 8, 9, 4)]
    used = {name for one in nodes for name in one.input}
    tensors = [
        *(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items() if n in used),
        *(numpy_helper.from_array(np.array(i), n) for n, i in integers.items() if n in used),
    ]
    graph = helper.make_graph(
        nodes,
        "repeating",
        [make("x", TensorProto.FLOAT, dims)],
        [make("y", TensorProto.FLOAT, None)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), shapes


@pytest.mark.slow_variants
@pytest.mark.parametrize("precision", ["float", "int8"])
@pytest.mark.parametrize("kind", ["class token", "normalized groups"])
def test_constants_that_are_repeated_to_a_free_size_are_expanded(
    kind: str, precision: str, tmp_path: Path
) -> None:
    proto, shapes = repeating_model(kind)
    if precision == "float":
        model: Any = qg.compile(proto, num_threads=1)
        model(image(shapes[0]))
    else:
        samples = [image(shapes[0], seed) for seed in range(4)]
        model = qg.quantize_and_compile(proto, samples, num_threads=1, progress=False)
    model.export_onnx(tmp_path / "m.onnx")
    for shape in shapes:
        assert_equal_runs(model, tmp_path / "m.onnx", {"x": image(shape, 9)})


def test_a_size_of_one_is_not_taken_for_a_size_where_others_are_taken(tmp_path: Path) -> None:
    """Two names of one size: a single row may stand beside several, but has other operators."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[A,4,3] x0, float[B,4,3] x1) => (float[C,D,E] y)
        <float[3,3] w={1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0}> {
            t0=Transpose<perm=[1,0,2]>(x0)
            t1=Transpose<perm=[1,0,2]>(x1)
            m=MatMul(t0,w)
            y=Add(m,t1)
        }"""
    model = qg.compile(onnx.parser.parse_model(text), num_threads=1)
    model.run(None, {name: image((2, 4, 3), i) for i, name in enumerate(("x0", "x1"))})
    model.export_onnx(tmp_path / "m.onnx")
    for rows in ROWS:
        feeds = {name: image((rows, 4, 3), i) for i, name in enumerate(("x0", "x1"))}
        assert_equal_runs(model, tmp_path / "m.onnx", feeds)


def test_rows_of_a_table_that_stay_float_are_float_in_the_exported_model(tmp_path: Path) -> None:
    """For free sizes they had another name, so no decision, and were rounded to int8."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]> g
    (int64[K, 3] i, float[K, 16] x) => (float[K, 4] z, float[K, 8] y)
    <int64 two = {2}, int64[4] crossed = {1, 0, 3, 2}> {
     numbers = Gather <axis = 1> (i, two)
     rows = Gather(table, numbers)
     turned = Gather <axis = 1> (rows, crossed)
     z = Erf(turned)
     y = MatMul(x, w)
    }""")
    tables = {"table": floats(64, 4), "w": floats(16, 8)}
    tensors = (numpy_helper.from_array(array, name) for name, array in tables.items())
    model.graph.initializer.extend(tensors)
    rng = np.random.default_rng(0)
    samples = [{"i": rng.integers(0, 64, (k, 3)), "x": floats(k, 16, seed=k)} for k in (7, 3, 5)]
    compiled = qg.quantize_and_compile(
        model, samples, num_threads=1, verify=False, progress=False, effort="fast"
    )
    compiled.export_onnx(tmp_path / "int8.onnx")
    nodes = onnx.load(tmp_path / "int8.onnx").graph.node
    assert any(node.op_type == "QuantizeLinear" for node in nodes)
    session = session_of(tmp_path / "int8.onnx")
    for feeds in samples:
        np.testing.assert_allclose(session.run(None, feeds)[0], compiled(feeds)[0], rtol=1e-5)
