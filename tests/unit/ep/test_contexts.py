"""EPContext models: code ahead of time in a model or beside it, whose it is, and its shapes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantglow import ep
from quantglow.support.errors import OptionError
from tests.support import plug_in

MODEL = str(Path(__file__).parents[3] / "datasets" / "mnist_cnn_nncf.onnx")
SHAPES = "x:1x3x12x12;x:2x3x12x20"
Failure = onnxruntime.capi.onnxruntime_pybind11_state.EPFail


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    plug_in.register()
    folder = tmp_path / "cache"
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", str(folder))
    return folder


def options(**entries: str) -> Any:
    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 4
    for name, value in entries.items():
        chosen.add_session_config_entry(f"ep.context_{name}", value)
    return chosen


def opened(model: Any, chosen: Any = None, **provider: str) -> Any:
    named = (plug_in.PROVIDER, {"num_threads": "1", **provider})
    session = onnxruntime.InferenceSession(model, chosen or options(), [named, plug_in.CPU])
    session.disable_fallback()
    return session


def written(model: Any, path: Path, *, is_embedded: bool = True, **provider: str) -> Any:
    """A session whose EPContext model is written to a path."""
    embed_mode = str(int(is_embedded))
    chosen = options(enable="1", file_path=str(path), embed_mode=embed_mode)
    return opened(model, chosen, **provider)


def digit(seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).random((1, 1, 28, 28), np.float32)}


def network(middle: str = "Relu") -> bytes:
    """Two convolutions of images of any number and size, and an operator in between."""
    rng, node = np.random.default_rng(0), helper.make_node
    weights = [rng.normal(size=(4, count, 3, 3)).astype(np.float32) for count in (3, 4)]
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node(middle, ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["y"], pads=[1, 1, 1, 1]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 12, "w"])
    tensors = [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return bytes(model.SerializeToString())


def images(count: int, width: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(width).normal(size=(count, 3, 12, width)).astype("f4")}


@pytest.mark.parametrize("is_embedded", [True, False])
def test_a_stored_model_computes_the_same_without_compiling(
    is_embedded: bool, tmp_path: Path
) -> None:
    path = tmp_path / "stored.onnx"
    session = written(MODEL, path, is_embedded=is_embedded)
    (node,) = onnx.load(path).graph.node
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    assert attributes["embed_mode"] == is_embedded
    assert attributes["source"] == plug_in.PROVIDER.encode()
    assert is_embedded or (tmp_path / attributes["ep_cache_context"].decode()).is_file()
    before = ep.counts()
    stored = opened(str(path))
    for seed in range(3):
        (actual,), (expected,) = stored.run(None, digit(seed)), session.run(None, digit(seed))
        np.testing.assert_array_equal(actual, expected)
    after = ep.counts()
    assert after["compiles"] == before["compiles"]
    assert after["python"] == before["python"]


def test_a_report_on_a_stored_model_says_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "stored.onnx"
    assert "1 part" in str(ep.report(written(MODEL, path)))
    with pytest.raises(OptionError, match=r"stored with its code.*Remedy: report on the session"):
        ep.report(opened(str(path)))


@pytest.mark.parametrize("is_embedded", [True, False])
def test_onnxruntimes_compiler_writes_such_models(is_embedded: bool, tmp_path: Path) -> None:
    path = tmp_path / "compiled.onnx"
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == plug_in.PROVIDER]
    chosen = options()
    chosen.add_provider_for_devices(devices, {"num_threads": "1"})
    compiler = onnxruntime.ModelCompiler(chosen, MODEL, is_embedded)
    compiler.compile_to_file(str(path))
    (actual,), (expected,) = (opened(each).run(None, digit()) for each in (str(path), MODEL))
    np.testing.assert_array_equal(actual, expected)


def test_a_stored_model_has_code_for_the_shapes_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "stored.onnx"
    session = written(network(), path, shapes=SHAPES)
    stored = opened(str(path))
    for feeds in (images(1, 12), images(2, 20), images(1, 12)):
        (actual,), (expected,) = stored.run(None, feeds), session.run(None, feeds)
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(Exception, match=r"no code for inputs of the shapes 2x3x12x12") as caught:
        stored.run(None, images(2, 12))
    assert "Remedy: compile it with ep.quantglowexecutionprovider.shapes" in str(caught.value)
    stored.run(None, images(2, 20))


def test_parts_around_other_operators_are_stored_each(tmp_path: Path) -> None:
    """Each has a library of its own, also where one is loaded behind the other."""
    path = tmp_path / "stored.onnx"
    model = onnx.load_from_string(network("Det"))
    del model.graph.node[2:]
    node = helper.make_node
    model.graph.node[1].CopyFrom(node("Det", ["square"], ["b"]))
    model.graph.node.insert(1, node("Slice", ["a", "zero", "twelve", "three"], ["square"]))
    model.graph.node.append(node("Reshape", ["b", "shape"], ["factors"]))
    model.graph.node.append(node("Mul", ["a", "factors"], ["c"]))
    model.graph.node.append(node("Conv", ["c", "w1"], ["y"], pads=[1, 1, 1, 1]))
    integers = {"zero": [0], "twelve": [12], "three": [3], "shape": [1, 4, 1, 1]}
    for name, numbers in integers.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(numbers), name))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 12
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for value in (1, 4, 12, 12):
        model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = value
    model.graph.output.append(onnx.ValueInfoProto(name="b"))
    session = written(model.SerializeToString(), path)
    kinds = [each.op_type for each in onnx.load(path).graph.node]
    assert kinds.count("EPContext") == 2
    assert "Det" in kinds
    stored = opened(str(path))
    for feeds in (images(1, 12), images(1, 12)):
        for actual, expected in zip(stored.run(None, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_weights_that_are_inputs_are_stored_as_such(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "stored.onnx"
    arrays = {name: rng.normal(size=shape) for name, shape in (("w", (4, 4)), ("b", (4,)))}
    shapes = {"x": ["n", 4], "w": [4, 4], "b": [4], "z": ["n", 4]}
    ends = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Add", ["y", "b"], ["z"]),
    ]
    tensors = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    inputs = [ends[name] for name in ("x", "w", "b")]
    graph = helper.make_graph(nodes, "g", inputs, [ends["z"]], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = written(model.SerializeToString(), path, shapes="x:2x4")
    feeds = {"x": rng.normal(size=(2, 4)).astype(np.float32)}
    (actual,), (expected,) = (each.run(None, feeds) for each in (opened(str(path)), session))
    np.testing.assert_array_equal(actual, expected)


def test_free_dimensions_need_shapes(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"x has free dimensions. Remedy: .*shapes=x:1x3x224x224"):
        written(network(), tmp_path / "stored.onnx")
    with pytest.raises(Failure, match=r"'x=1' is not the shape of an input. Remedy: "):
        written(network(), tmp_path / "stored.onnx", shapes="x=1")


def test_code_of_others_is_refused_unless_it_is_trusted(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "stored.onnx"
    expected = written(MODEL, path).run(None, digit())[0]
    (copy,) = (own_cache / "contexts").glob("*.o")
    copy.chmod(0o666)
    with pytest.raises(Failure, match=r"cache has no copy of its code.*Remedy: .*trust_code=1"):
        opened(str(path))
    trusted = opened(str(path), trust_code="1")
    np.testing.assert_array_equal(trusted.run(None, digit())[0], expected)
    copy.chmod(0o600)
    opened(str(path))
    copy.unlink()
    with pytest.raises(Failure, match="cache has no copy of its code"):
        opened(str(path))


def test_the_copy_may_be_in_the_folder_of_an_option(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "stored.onnx"
    written(MODEL, path)
    chosen = own_cache.rename(tmp_path / "chosen")
    with pytest.raises(Failure, match="cache has no copy of its code"):
        opened(str(path))
    opened(str(path), cache_folder=str(chosen))


def test_code_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stored.onnx"
    written(MODEL, path)
    model = onnx.load(path)
    (attribute,) = [a for a in model.graph.node[0].attribute if a.name == "ep_cache_context"]
    code = attribute.s
    rng = np.random.default_rng(0)
    for position in (0, 8, 40, 104, 112, *map(int, rng.integers(len(code), size=40))):
        attribute.s = code[:position] + bytes([code[position] ^ 1]) + code[position + 1 :]
        with pytest.raises(Failure, match=r"Remedy: "):
            opened(model.SerializeToString())
    for length in (0, 7, 103, len(code) - 1):
        attribute.s = code[:length]
        with pytest.raises(Failure, match=r"Remedy: "):
            opened(model.SerializeToString())


@pytest.mark.parametrize("answer", ["yes", "", "2"])
def test_trust_is_yes_or_no(answer: str, tmp_path: Path) -> None:
    path = tmp_path / "stored.onnx"
    written(MODEL, path)
    with pytest.raises(Failure, match=r"trust_code is no yes or no. Remedy: it is 1 .* or 0"):
        opened(str(path), trust_code=answer)
    opened(str(path), trust_code="0")


def test_code_for_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stored.onnx"
    written(MODEL, path)
    model = onnx.load(path)
    (attribute,) = [a for a in model.graph.node[0].attribute if a.name == "ep_cache_context"]
    attribute.s = attribute.s.replace(b"x86_64-linux", b"sparc9-linux")
    with pytest.raises(Failure, match=r'is for "quantglow 1 sparc9-linux".*compile the model here'):
        opened(model.SerializeToString(), trust_code="1")


@pytest.mark.parametrize("name", ["../stored", "/etc/passwd", "", ".."])
def test_a_model_reads_no_files_elsewhere(name: str, tmp_path: Path) -> None:
    path = tmp_path / "stored.onnx"
    written(MODEL, path, is_embedded=False)
    model = onnx.load(path)
    (attribute,) = [a for a in model.graph.node[0].attribute if a.name == "ep_cache_context"]
    attribute.s = name.encode()
    with pytest.raises(Failure, match="no name of a file beside the model"):
        opened(model.SerializeToString(), options(file_path=str(path)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "stored.onnx"
    written(MODEL, path, is_embedded=False)
    (code,) = tmp_path.glob("*.qgctx")
    moved = path.rename(tmp_path / "elsewhere.onnx")
    opened(str(moved))
    opened(moved.read_bytes(), options(file_path=str(moved)))
    os.remove(code)
    with pytest.raises(Failure, match=rf"cannot read .*{code.name}: No such file.*Remedy: "):
        opened(str(moved))
