"""Arrays in files without names, and models whose weights lie there."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from quantglow.importer.onnx import Source, open_model
from quantglow.importer.onnx.reading.light_models import large_initializers, source_hash
from quantglow.support import pages

ARRAYS = [
    np.arange(10_000, dtype=np.float32).reshape(100, 100),
    np.arange(7, dtype=np.int8),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.zeros((0, 3), np.float16),
]


def model() -> onnx.ModelProto:
    """Large weights of some types, one of them as numbers, and small ones."""
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.normal(size=(128, 256)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.normal(size=(256, 200)).astype(np.float16), "half"),
        numpy_helper.from_array(rng.normal(size=256).astype(np.float32), "row"),
        helper.make_tensor("plain", onnx.TensorProto.FLOAT, [256, 64], np.ones(256 * 64)),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "row"], ["b"]),
        helper.make_node("MatMul", ["b", "plain"], ["y"]),
        helper.make_node("Cast", ["half"], ["z"], to=onnx.TensorProto.FLOAT),
    ]
    ends = {"x": ["N", 128], "y": ["N", 64], "z": [256, 200]}
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in ends.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every large array goes to a file."""
    monkeypatch.setattr(pages, "LEAST_TOTAL_NBYTES", 1)


def test_arrays_come_back_from_their_file() -> None:
    html = pages.page(iter(ARRAYS))
    assert html is not None
    pages.release_pages()
    for array, copy in zip(ARRAYS, html, strict=True):
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)


def test_arrays_in_a_file_are_read_only() -> None:
    (actual,) = pages.page(ARRAYS[:1]) or []
    assert not actual.flags.writeable


def test_a_file_is_gone_with_its_last_array() -> None:
    html = pages.page(ARRAYS) or []
    part, file = html[0][3:], weakref.ref(pages.mapped_file(html[0]))
    del html
    gc.collect()
    assert file() is pages.mapped_file(part)
    del part
    gc.collect()
    assert file() is None


def test_without_a_folder_there_are_no_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "folder", lambda: str(tmp_path / "missing"))
    assert pages.page(ARRAYS) is None


@pytest.mark.usefixtures("always")
def test_a_light_model_has_no_large_data() -> None:
    source = open_model(model())
    assert (set(source.weights), source.proto.ByteSize() < 2**17) == ({"w", "half"}, True)


@pytest.mark.usefixtures("always")
def test_a_light_model_is_whole_again() -> None:
    assert open_model(model()).whole == model()


@pytest.mark.usefixtures("always")
def test_the_callers_model_stays_whole() -> None:
    network = model()
    open_model(network)
    assert network == model()


@pytest.mark.usefixtures("always")
def test_the_hash_of_a_light_model_is_that_of_the_model() -> None:
    assert open_model(model()).source_hash == source_hash(model(), {})


@pytest.mark.usefixtures("always")
def test_a_light_model_gives_the_graph_of_the_model() -> None:
    shapes = {"x": (3, 128)}
    assert str(open_model(model()).graph(shapes)) == str(Source(model()).graph(shapes))


@pytest.mark.usefixtures("always")
def test_a_light_model_is_written_as_the_model() -> None:
    assert open_model(model()).to_bytes() == Source(model()).to_bytes()


@pytest.mark.parametrize("name", ["w", "other"])
def test_ambiguous_and_malformed_tensors_stay(name: str) -> None:
    network = model()
    extra: Any = network.graph.initializer.add()
    extra.CopyFrom(network.graph.initializer[0])
    extra.name = name
    extra.raw_data = extra.raw_data[:-4]
    assert name not in large_initializers(network)


def test_without_room_a_model_keeps_its_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, always: None
) -> None:
    monkeypatch.setattr(pages, "folder", lambda: str(tmp_path / "missing"))
    assert not open_model(model()).weights
