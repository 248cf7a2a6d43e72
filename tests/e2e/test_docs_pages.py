"""The code of the documentation's pages runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from tests.e2e.test_deploy import BLOCK, ROOT, printed
from tests.support.decoder import Decoder, decoder_model, random_weights
from tests.support.small_network import small_model, small_samples

DOCS = ROOT / "docs"
OTHERS = {"data.md", "deploy.md", "pytorch.md", "steps.md"}
"""Pages whose code runs in ``test_deploy``, ``test_documented_data`` and ``tests/frameworks``."""
PYTHON = {
    path.relative_to(DOCS).as_posix(): blocks
    for path in sorted(DOCS.rglob("*.md"))
    if path.name not in OTHERS
    if (blocks := [t for language, _, t in BLOCK.findall(path.read_text()) if language == "python"])
}
"""Blocks of Python in each page."""

SMALL = Decoder(layers=1, hidden=64, heads=2, kv_heads=1, inner=64, vocabulary=64)


def free_model(length: int | str = "length") -> onnx.ModelProto:
    """x [batch, length] -> Relu -> y."""
    shape = ["batch", length]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "free", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(model: onnx.ModelProto, path: str) -> None:
    onnx.save(model, path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model and samples."""
    monkeypatch.chdir(tmp_path)
    onnx.save(small_model(), "model.onnx")
    np.savez("samples.npz", x=np.concatenate(small_samples(12)))
    return tmp_path


def names_for(page: str) -> dict[str, Any]:
    """Names that the text of a page takes as given."""
    samples = np.concatenate(small_samples(12))
    if page == "how_to/shapes.md":
        saved(free_model(), "model.onnx")
    if page == "how_to/decoders.md":
        saved(decoder_model(SMALL, random_weights(0)), "decoder.onnx")
        one = SMALL.feeds(np.zeros((1, 3), np.int64), SMALL.empty_cache(1))
        return {"qg": qg, "samples": [one, one]}
    given = {"np": np, "qg": qg, "samples": samples, "model": "model.onnx"}
    if page == "how_to/speed.md":
        given["compiled"] = qg.quantize_and_compile("model.onnx", samples, verify=False)
    if page == "how_to/serving.md":
        given["samples"] = samples.reshape(12, -1)
        given["compiled"] = qg.compile(free_model(72))
        given["compiled"].run(None, {"x": given["samples"]})
    return given


@pytest.mark.parametrize("page", PYTHON)
def test_python_runs(page: str, here: Path) -> None:
    names = names_for(page)
    for text in PYTHON[page]:
        exec(compile(text, page, "exec"), names)


def test_commands_of_the_quick_start_run(here: Path) -> None:
    text = (DOCS / "quickstart.md").read_text()
    commands = re.findall(r"^quantglow .*$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert printed(here, "sh", command.replace("onnxruntime openvino", "onnxruntime"))
