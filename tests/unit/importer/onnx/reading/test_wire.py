"""Light models as bytes: protobuf reads the whole model in them, and they come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from quantglow.importer.onnx.reading import light_models as wire
from quantglow.importer.onnx.reading.light_models import (
    light,
    light_decoded,
    serialize,
    whole,
)
from quantglow.support import pages
from quantglow.support.arrays import Array
from quantglow.support.errors import ModelError
from quantglow.support.protobuf import as_varint, head, varint

KINDS = ["float32", "float16", "int64", "uint8"]


@pytest.fixture(autouse=True)
def small_pages() -> Iterator[None]:
    """Arrays of 200 bytes go to a file."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pages, wire):
            patch.setattr(module, "LEAST_NBYTES", 200)
        patch.setattr(pages, "LEAST_TOTAL_NBYTES", 1)
        yield


def model_of(arrays: Mapping[str, Array]) -> onnx.ModelProto:
    """A model with these initializers, and text of its own."""
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy"]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    node = helper.make_node("Identity", ["x"], ["y"], doc_string="d" * 300)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], tensors, doc_string="graph")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Models with a few initializers, large and small ones in any order."""
    sizes = draw(st.lists(st.integers(0, 300), max_size=6))
    arrays = {
        f"w{i}": (np.arange(size) % 120).astype(draw(st.sampled_from(KINDS)))
        for i, size in enumerate(sizes)
    }
    return model_of(arrays)


def joined(proto: onnx.ModelProto, weights: Mapping[str, Array]) -> bytes:
    return b"".join(pages.iterate_pieces(serialize(proto, weights)))


@given(models())
def test_protobuf_reads_the_whole_model(model: onnx.ModelProto) -> None:
    assert onnx.ModelProto.FromString(joined(*light(model))) == model


@given(models(), st.booleans())
def test_a_light_model_comes_back(model: onnx.ModelProto, is_apart: bool) -> None:
    data = joined(*light(model)) if is_apart else model.SerializeToString()
    proto, weights = light_decoded(data, "m")
    expected, large = light(model)
    assert proto == expected
    assert {n: a.tobytes() for n, a in weights.items()} == {n: large[n].tobytes() for n in large}
    assert whole(proto, weights) == model


@given(models(), st.data())
def test_damaged_bytes_give_what_protobuf_makes_of_them(
    model: onnx.ModelProto, data: st.DataObject
) -> None:
    damaged = bytearray(joined(*light(model)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(1, len(damaged)))]
    try:
        expected = onnx.ModelProto.FromString(bytes(damaged))
    except DecodeError:
        with pytest.raises(ModelError):
            light_decoded(bytes(damaged), "m")
        return
    assert whole(*light_decoded(bytes(damaged), "m")) == expected


def test_names_may_be_left_as_they_are() -> None:
    model = model_of({"a": np.ones(99, np.float32), "b": np.ones(99, np.float32)})
    proto, weights = light_decoded(model.SerializeToString(), "m", {"a"})
    assert list(weights) == ["b"]
    assert whole(proto, weights) == model


@pytest.mark.parametrize("twice", ["name", "data", "short"])
def test_odd_initializers_are_left_to_protobuf(twice: str) -> None:
    model = model_of({"a": np.ones(99, np.float32), "b": np.ones(99, np.float32)})
    if twice == "name":
        model.graph.initializer[1].name = "a"
    if twice == "short":
        model.graph.initializer[1].dims[:] = [98]
    data = model.SerializeToString()
    if twice == "data":
        tensor = onnx.TensorProto(raw_data=b"0" * 300).SerializeToString()
        inner = head(wire.INITIALIZER, 2 * len(tensor)) + 2 * tensor
        data += head(wire.GRAPH, len(inner)) + inner
    proto, weights = light_decoded(data, "m")
    assert whole(proto, weights) == onnx.ModelProto.FromString(data)


def test_bytes_in_pages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of({"a": np.arange(999, dtype=np.float32)})
    content = serialize(*light(model))
    together = pages.together(content)
    assert isinstance(together, memoryview)
    assert whole(*light_decoded(together, "m")) == model
    monkeypatch.setattr(pages, "page_pieces", lambda pieces: None)
    assert pages.together(content) == together


@given(st.integers(0, 2**63 - 1), st.binary(max_size=3))
def test_numbers_come_back(value: int, before: bytes) -> None:
    data = memoryview(before + as_varint(value) + b"\xff")
    assert varint(data, len(before)) == (value, len(data) - 1)
