"""The programs of the pages about steps and data run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from quantglow.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("how_to/steps.md", "how_to/data.md")


def classifier() -> onnx.ModelProto:
    """x [1, 3, 224, 224] -> Conv by 32 pixels, mean, Gemm: ten scores."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((4, 3, 32, 32)) / 50, "v": rng.standard_normal((4, 10))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[32, 32]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The current folder has the files that the pages name."""
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "model.onnx")
    found = np.random.default_rng(1).integers(0, 256, (6, 224, 224, 3)).astype(np.uint8)
    np.savez("images.npz", x=found)
    for index, image in enumerate(found):
        for place in ("photos", f"validation/{'ab'[index % 2]}"):
            Path(place).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(f"{place}/{index}.png")
    return found


def blocks(page: str, language: str) -> Iterator[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    yield from (block for own, block in found if own == language)


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_runs(page: str, images: np.ndarray) -> None:
    names = {"images": images, "image": images[:1]}
    found = list(blocks(page, "python"))
    assert found
    for block in found:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(page: str, images: np.ndarray) -> None:
    found = list(blocks(page, ""))
    assert found
    for block in found:
        words = shlex.split(block.replace("\\\n", " "))
        assert main([*words[1:], "--no-measure-latency", "--num-threads", "1"]) == 0
