"""A file of a model with free dimensions has its weights once, and loads to the same numbers."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import Source, may_show_rounding, restore, store
from quantglow.importer.onnx.nodes.values import tensor_array
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops.binary import Add
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.support.arrays import Array
from tests.support.effort import moderate
from tests.support.free_network import image
from tests.unit.runtime.shapes.test_free_shapes_int8 import edited

SIZES = [(1, 8, 6, 6), (2, 8, 5, 9), (1, 8, 1, 3)]
WEIGHTS_NBYTES = 4 * (64 * 8 * 9 + 64 * 64 + 64 * 40)


def large_model() -> onnx.ModelProto:
    """A convolution with a scale behind it, one without, attention of pixels, a classifier."""
    rng = np.random.default_rng(1)
    constants = {
        "w1": rng.standard_normal((64, 8, 3, 3)) / 8,
        "s1": rng.uniform(0.2, 3, (1, 64, 1, 1)),
        "w2": rng.standard_normal((64, 64, 1, 1)) / 8,
        "w3": rng.standard_normal((64, 40)) / 8,
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1], name="first"),
        node("Mul", ["c1", "s1"], ["m1"], name="scaled"),
        node("Relu", ["m1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], name="second"),
        node("GlobalAveragePool", ["c2"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "w3"], ["y"], name="third"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8, "H", "W"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 40])
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def compiled_model(kind: str) -> Any:
    if kind == "float":
        compiled = qg.compile(large_model(), num_threads=1)
        compiled(image(SIZES[0]))
        return compiled
    samples = [image(shape, seed) for seed in range(3) for shape in (*SIZES, SIZES[0])]
    scope = ["c2"] if kind == "mixed" else None
    return qg.quantize_and_compile(
        large_model(), samples, ignored_scope=scope, num_threads=1, progress=False
    )


@pytest.fixture(scope="module", params=["int8", "mixed", "float"])
def saved(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    compiled = compiled_model(request.param)
    path = tmp_path_factory.mktemp("stored") / f"{request.param}.qgm"
    compiled.save(path)
    return compiled, path


@pytest.mark.slow_variants
@pytest.mark.parametrize("shape", [*SIZES, (3, 8, 4, 4)])
def test_a_loaded_model_gives_the_same_numbers_at_every_shape(saved: Any, shape: Any) -> None:
    compiled, path = saved
    loaded = qg.load(path, num_threads=1)
    x = image(shape, 7)
    np.testing.assert_array_equal(loaded(x), compiled(x))


def test_weights_are_stored_once(saved: Any) -> None:
    _, path = saved
    sizes = {"int8": 0.35, "mixed": 0.35, "float": 0.45}
    with zipfile.ZipFile(path) as archive:
        source = archive.getinfo("source.onnx").file_size
    assert source < sizes[path.stem] * WEIGHTS_NBYTES


def test_a_loaded_model_is_saved_again(saved: Any, tmp_path: Path) -> None:
    compiled, path = saved
    qg.load(path, num_threads=1).save(tmp_path / "again.qgm")
    x = image(SIZES[1], 3)
    np.testing.assert_array_equal(qg.load(tmp_path / "again.qgm", num_threads=1)(x), compiled(x))


def places_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        data: dict[str, Any] = json.loads(archive.read("free.json"))["weights"]
    return data


DAMAGE: dict[str, Callable[[dict[str, Any], str], object]] = {
    "no such tensor": lambda places, name: places.update(z=places[name]),
    "no such constant": lambda places, name: places.update({name: {"graph": "z", "perm": [0, 1]}}),
    "no order": lambda places, name: places[name].update(graph="w2:w", perm=[0, 0, 1, 2]),
    "no codes": lambda places, name: places.update({name: {"axis": 1}}),
    "no axis": lambda places, name: places.update({name: {"axis": -1}}),
    "no place": lambda places, name: places.update({name: 3}),
    "empty": lambda places, name: places.update({name: {}}),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_places_end_in_a_typed_error(saved: Any, tmp_path: Path, case: str) -> None:
    _, path = saved
    name = next(n for n, place in places_of(path).items() if "graph" in place)
    changed = edited(path, tmp_path, lambda free: DAMAGE[case](free["weights"], name))
    loaded = qg.load(changed, num_threads=1)
    with pytest.raises(qg.QuantglowError, match=r"damaged.*Remedy|Remedy"):
        loaded.specialisations.graph_for({"x": (1, 8, 3, 3)})


@moderate
@given(st.permutations(range(4)), st.integers(0, 2**32 - 1))
def test_a_tensor_that_the_graph_has_comes_back_bit_for_bit(order: list[int], seed: int) -> None:
    model = large_model()
    w = np.random.default_rng(seed).standard_normal((64, 8, 3, 3)).astype(np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w1"))
    constant = Constant(name="moved", value=np.ascontiguousarray(w.transpose(order)))
    data, places = store(Source(model), [constant], None)
    assert places["w1"]["graph"] == "moved"
    actual = restore(data, json.loads(json.dumps(places)), [constant])
    (tensor,) = [t for t in actual.proto.graph.initializer if t.name == "w1"]
    np.testing.assert_array_equal(tensor_array(tensor), w)


@pytest.mark.parametrize("is_raw", [True, False])
def test_tensors_of_float16_are_stored_once(is_raw: bool) -> None:
    model = large_model()
    for tensor in model.graph.initializer:
        array = tensor_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        if not is_raw:
            tensor.ClearField("raw_data")
            tensor.int32_data.extend(array.view(np.uint16).reshape(-1).tolist())
    wide = {t.name: tensor_array(t).astype(np.float32) for t in model.graph.initializer}
    name = next(name for name, array in wide.items() if array.shape == (64, 64, 1, 1))
    constants = [
        Constant(name="known", value=np.ascontiguousarray(wide[name].transpose(1, 0, 2, 3)))
    ]
    data, places = store(Source(model), constants, None)
    assert {key: place["graph"] for key, place in places.items()} == {name: "known"}
    actual = {
        t.name: tensor_array(t) for t in restore(data, places, constants).proto.graph.initializer
    }
    assert actual[name].dtype == np.float16
    assert len(data) < model.ByteSize() - 2 * wide[name].size
    for key, array in actual.items():
        np.testing.assert_array_equal(array.astype(np.float32), wide[key])


def factors_for(w: Array, rng: np.random.Generator) -> Array:
    """Signed factors of output channels, factors of input channels."""
    first, second = (np.exp(rng.uniform(-1, 1, size)) for size in w.shape[:2])
    signs = rng.choice([-1, 1], len(first))
    return ((first * signs)[:, None] * second)[..., None, None].astype(np.float32)


def with_weights(w: Array) -> onnx.ModelProto:
    model = large_model()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w1"))
    return model


def first_weights(source: Any) -> Array:
    actual = {t.name: tensor_array(t) for t in source.proto.graph.initializer}
    return np.asarray(actual["w1"])


@moderate
@given(st.integers(0, 2**32 - 1))
def test_a_float_tensor_that_was_rescaled_comes_back_bit_for_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((64, 8, 3, 3)).astype(np.float32)
    rescaled = (w * factors_for(w, rng)).transpose(2, 3, 1, 0)
    constant = Constant(name="folded", value=np.ascontiguousarray(rescaled))
    data, places = store(Source(with_weights(w)), [constant], None)
    assert places == {"w1": {"graph": "folded", "perm": [2, 3, 1, 0], "exact": True}}
    actual = restore(data, json.loads(json.dumps(places)), [constant])
    assert first_weights(actual).tobytes() == w.tobytes()


@moderate
@given(st.integers(0, 2**32 - 1))
def test_a_tensor_is_stored_as_factors_of_the_codes_rounded_from_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((64, 8, 3, 3)).astype(np.float32)
    rescaled = (w * factors_for(w, rng)).transpose(2, 3, 1, 0)
    steps = np.abs(rescaled).max(axis=(0, 1, 2)) / 127
    codes = np.rint(rescaled / steps + rng.uniform(-0.5, 0.5, rescaled.shape))
    quant = QuantParams.symmetric(steps.astype(np.float32), 3)
    value, element = np.clip(codes, -127, 127).astype(np.int8), ElementType(DType.I8, quant)
    constant = Constant(name="codes", value=value, element=element)
    data, places = store(Source(with_weights(w)), [constant], lambda source: True)
    assert places["w1"] == {"graph": "codes", "perm": [2, 3, 1, 0], "scaled": True}
    actual = first_weights(restore(data, json.loads(json.dumps(places)), [constant]))
    own_steps = steps[:, None, None, None] * np.abs(w / rescaled.transpose(3, 2, 0, 1))
    assert (np.abs(actual - w) <= 3.1 * own_steps).all()


def test_a_constant_that_is_another_tensor_is_not_taken_for_factors() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(-127, 128, (3, 3, 8, 64), np.int8)
    element = ElementType(DType.I8, QuantParams.per_tensor(1.0, 0))
    others = [
        Constant(
            name="codes",
            value=values,
            element=element,
        ),
        Constant(name="floats", value=values.astype(np.float32)),
    ]
    _, places = store(Source(large_model()), others, lambda source: True)
    assert places["w1"] == {"axis": 0}


DAMAGED_PLACES: dict[str, Any] = {
    "no factors": {"scaled": True},
    "factors without units in the last place": {"exact": True},
}


@pytest.mark.parametrize("case", DAMAGED_PLACES)
def test_factors_that_are_not_whole_are_refused(case: str) -> None:
    constant = Constant(name="folded", value=np.ones((64, 64), np.float32))
    place = {"graph": "folded", "perm": [0, 1, 2, 3], **DAMAGED_PLACES[case]}
    with pytest.raises(ValueError, match="'w2': its factors are not whole"):
        restore(large_model().SerializeToString(), {"w2": place}, [constant])


def test_a_new_shape_stores_no_weights_where_its_graph_has_those_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = compiled_model("int8")
    monkeypatch.setattr("quantglow.importer.onnx.store", None)
    compiled(image(SIZES[1]))
    assert len(compiled.specialisations.generals) == 2


def float_graph(name: str, elements: float) -> Graph:
    """A graph whose only constant has this name."""
    x = Input(name="x", tensor=TensorType(DType.F32, (2,)))
    table = Constant(name=name, value=np.full(2, elements, np.float32))
    return Graph((x,), (("y", Add(name="y", x=x, y=table)),))


@pytest.mark.parametrize(
    ("name", "may_show"),
    [("s1:whole", False), ("w2:t", True), ("c2:bias", True), ("unknown", True)],
)
def test_constants_show_rounding_unless_they_are_named_by_exact_weights(
    name: str, may_show: bool
) -> None:
    source = Source(large_model())
    assert may_show_rounding(source, float_graph(name, 1), [float_graph(name, 2)]) == may_show
    assert not may_show_rounding(source, float_graph(name, 1), [float_graph("other", 1)])


def test_a_model_with_bodies_may_show_rounding_in_any_new_constant() -> None:
    """Two bodies may have values of one name."""
    model = large_model()
    body = helper.make_graph([], "body", [], [])
    branches = {"then_branch": body, "else_branch": body}
    model.graph.node.append(helper.make_node("If", ["condition"], [], **branches))
    graph = float_graph("s1:whole", 1)
    assert may_show_rounding(Source(model), graph, [graph])


def test_tensors_that_may_be_rounded_come_back_within_half_a_step() -> None:
    model = large_model()
    data, places = store(Source(model), [], lambda source: True)
    assert places.keys() == {"w1", "w2", "w3"}
    actual = {t.name: tensor_array(t) for t in restore(data, places, []).proto.graph.initializer}
    for tensor in model.graph.initializer:
        w, step = tensor_array(tensor), np.abs(tensor_array(tensor)).max() / 127
        assert np.abs(actual[tensor.name] - w).max() <= 0.51 * step


def test_weights_that_must_stay_exact_are_found_by_bisection() -> None:
    model = large_model()
    exact = {t.name: tensor_array(t) for t in model.graph.initializer}

    def is_same(source: Any) -> bool:
        actual = {t.name: tensor_array(t) for t in source.proto.graph.initializer}
        return bool((actual["w2"] == exact["w2"]).all())

    _, places = store(Source(model), [], is_same)
    assert places.keys() == {"w1", "w3"}


@pytest.mark.slow
def test_weights_in_the_field_of_their_type_come_back(tmp_path: Path) -> None:
    """Older exporters write them so: ``float_data`` instead of raw bytes."""
    model = large_model()
    for tensor in model.graph.initializer:
        values = tensor_array(tensor).reshape(-1)
        tensor.ClearField("raw_data")
        tensor.float_data.extend(values.tolist())
    samples = [image(shape, seed) for seed in range(2) for shape in SIZES]
    compiled = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
    compiled.save(tmp_path / "m.qgm")
    loaded, x = qg.load(tmp_path / "m.qgm", num_threads=1), image((3, 8, 4, 4))
    np.testing.assert_array_equal(loaded(x), compiled(x))


@pytest.mark.slow
def test_weights_beside_a_constant_with_nan_are_stored_once(tmp_path: Path) -> None:
    model = large_model()
    limits = {"most": np.float32(1e9), "none": np.full(40, np.nan, np.float32)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(a), n) for n, a in limits.items()
    )
    model.graph.node[-1].output[0] = "product"
    node = helper.make_node
    model.graph.node.extend(
        [
            node("Greater", ["product", "most"], ["odd"]),
            node("Where", ["odd", "none", "product"], ["y"]),
        ]
    )
    samples = [image(shape, seed) for seed in range(2) for shape in SIZES]
    compiled = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
    compiled.save(tmp_path / "m.qgm")
    assert places_of(tmp_path / "m.qgm").keys() == {"w1", "w2", "w3"}


@pytest.mark.slow
def test_notes_on_nodes_for_onnxruntime_do_not_keep_weights_in_float(tmp_path: Path) -> None:
    """Exporters write the call stack of each node beside it; Det has no importer."""
    model, node = large_model(), helper.make_node
    constants = {"zero": [0], "four": [4], "axis": [1], "square": [-1, 2, 2]}
    tensors = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()]
    model.graph.initializer.extend(tensors)
    model.graph.node[-1].output[0] = "scores"
    model.graph.node.extend(
        [
            node("Slice", ["f", "zero", "four", "axis"], ["few"]),
            node("Reshape", ["few", "square"], ["squares"]),
            node("Det", ["squares"], ["dets"]),
            node("Unsqueeze", ["dets", "axis"], ["size"]),
            node("Add", ["scores", "size"], ["y"]),
        ]
    )
    for number, each in enumerate(model.graph.node):
        each.doc_string = f"line {number}"
        each.metadata_props.add(key="call stack", value=f"forward at {number}")
    samples = [image(shape, seed) for seed in range(2) for shape in SIZES]
    compiled = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
    assert [each.op for each in compiled.report.fallback] == ["Det"]
    compiled.save(tmp_path / "m.qgm")
    assert places_of(tmp_path / "m.qgm").keys() == {"w1", "w2", "w3"}
