"""Models out of files: external data stays in the folder, the hash sees what they compute."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.reading import loading as external_data
from quantglow.interpreter import interpret
from quantglow.support.errors import ModelError
from tests.unit.importer.onnx.onnx_models import floats, small_model


def saved_with_external_data(folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(small_model(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def relocated(path: Path, **entries: str) -> Path:
    """The model with other external data entries."""
    loaded = onnx.load(path, load_external_data=False)
    for tensor in loaded.graph.initializer:
        for entry in tensor.external_data:
            entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(loaded.SerializeToString())
    return path


def test_path_bytes_and_proto_give_the_same_graph(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    sources = (path, str(path), model, model.SerializeToString())
    hashes = {import_model(source).source_hash for source in sources}
    assert len(hashes) == 1


def test_external_data_is_read(tmp_path: Path) -> None:
    graph = import_model(saved_with_external_data(tmp_path))
    expected = interpret(import_model(small_model()), {"x0": floats(2, 3)})
    np.testing.assert_array_equal(interpret(graph, {"x0": floats(2, 3)}), expected)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x08\x07", b"\xff" * 100, b"\x00"])
def test_bytes_that_are_no_model_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="the model: "):
        import_model(data)


@pytest.mark.parametrize("content", [b"", b"garbage", small_model().SerializeToString()[:-40]])
def test_files_that_are_no_model_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        import_model(path)


@pytest.mark.parametrize("name", ["missing.onnx", "", "bad\0name.onnx"])
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        import_model(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "../w.bin", "a/../../w.bin", "C:\\w.bin", "..\\w.bin", ""]
)
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    path = relocated(saved_with_external_data(tmp_path), location=location)
    with pytest.raises(ModelError, match="leaves the model's folder"):
        import_model(path)


def test_external_data_without_an_end_is_refused_unread(tmp_path: Path) -> None:
    path = saved_with_external_data(tmp_path)
    loaded = onnx.load(path, load_external_data=False)
    for tensor in loaded.graph.initializer:
        del tensor.external_data[1:]  # no offset and no length: the whole file
    path.write_bytes(loaded.SerializeToString())
    os.truncate(tmp_path / "w.bin", 1 << 40)
    with pytest.raises(ModelError, match="larger than 2 GiB"):
        import_model(path)


def test_tensors_that_share_a_file_are_counted_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved_with_external_data(tmp_path)
    path = relocated(path, offset="0", length="600")
    os.truncate(tmp_path / "w.bin", 600)
    monkeypatch.setattr(external_data, "MAX_NBYTES", 1000)
    with pytest.raises(ModelError, match=r"tensor 'x2'.*larger than 2 GiB"):
        import_model(path)


def test_external_data_behind_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = saved_with_external_data(folder)
    (folder / "w.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "w.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match="links to a place outside"):
        import_model(path)


@pytest.mark.parametrize("inside", [False, True])
def test_hard_links_out_of_the_folder_are_refused(tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = saved_with_external_data(folder)
    os.link(folder / "w.bin", (folder if inside else tmp_path) / "other.bin")
    if inside:
        import_model(path)
        return
    with pytest.raises(ModelError, match=r"hard link outside.*Remedy"):
        import_model(path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "nowhere.bin"}, "missing beside the model"),
        ({"length": "99999999"}, "lies outside the file"),
        ({"offset": "99999999"}, "lies outside the file"),
        ({"offset": "-1"}, "lies outside the file"),
        ({"length": "-1"}, "lies outside the file"),
        ({"length": "many"}, "cannot be read"),
        ({"length": "8"}, "malformed|not valid ONNX"),
    ],
)
def test_wrong_external_data_is_refused(tmp_path: Path, entries: dict, message: str) -> None:
    path = relocated(saved_with_external_data(tmp_path), **entries)
    with pytest.raises(ModelError, match=message):
        import_model(path)


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    data = saved_with_external_data(tmp_path).read_bytes()
    with pytest.raises(ModelError, match="pass the model as a path"):
        import_model(data)


def test_the_hash_sees_weights() -> None:
    other = small_model()
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(floats(4, seed=9), "x2"))
    assert import_model(other).source_hash != import_model(small_model()).source_hash


def test_the_hash_sees_attributes() -> None:
    other = small_model()
    other.graph.node[0].attribute.append(helper.make_attribute("alpha", 0.5))
    assert import_model(other).source_hash != import_model(small_model()).source_hash


def test_the_hash_ignores_storage_and_descriptions(tmp_path: Path) -> None:
    path = saved_with_external_data(tmp_path)
    other = onnx.load(path)
    other.producer_name, other.doc_string = "someone", "something"
    other.graph.node[0].doc_string = "a comment"
    onnx.save(other, path, save_as_external_data=True, location="v.bin", size_threshold=0)
    assert import_model(path).source_hash == import_model(small_model()).source_hash


def test_the_hash_ignores_the_input_shape() -> None:
    other = small_model()
    other.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 7
    assert import_model(other).source_hash == import_model(small_model()).source_hash
