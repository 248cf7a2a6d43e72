"""Code of documentation pages, and the models that it runs on."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SEVERAL = re.compile(r"^#+ .*several inputs.*$", re.MULTILINE)
"""Title of the section of a page that is for models with several inputs, in place of the others."""

PACKAGES = "py"
"""The language of blocks that need packages of their own: `tests.support.packages` runs these."""

ONE, OUTPUTS, BOTH = "one", "outputs", "both"
"""Models: one input and output; several outputs; several inputs and outputs."""

QUICKER = {
    "bench": ["--seconds", "0.02"],
    "compare": ["--seconds", "0.02", "--quantizers", "onnxruntime-minmax"],
    "quantize": ["--no-measure-latency", "--num-threads", "1"],
}
"""Words behind those of a command, which take the place of earlier ones."""

ELSEWHERE = {
    "quantglow demo": "tests/unit/cli/test_main.py",
    "quantglow tune --machine": "tests/unit/tuning/test_core_fit.py",
    "quantglow tune model.qgm --max-minutes 5": "tests/unit/cli/test_steps.py",
    "quantglow calibrate calibration/mnist.toml": "tests/e2e/test_recipes.py",
}
"""Commands that the runner of pages leaves out, and what runs them."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is, if it is one, and its text."""

    language: str
    file: str
    text: str

    def run(self, page: str, names: dict[str, Any]) -> None:
        """Write a file, execute Python with ``names``, or run the commands of quantglow."""
        if self.file:
            Path(self.file).write_text(self.text, encoding="utf-8")
        elif self.language == "python":
            exec(compile(self.text, page, "exec"), names)
        elif self.language in ("", "sh"):
            for command in commands(self.text):
                run_command(command)

    @property
    def does_something(self) -> bool:
        """Whether ``run`` does."""
        return bool(self.file) or self.language == "python" or any(commands(self.text))


def blocks(page: str, model: str) -> list[Block]:
    """The blocks of a page for a kind of model: those of its section for several inputs, or all
    others."""
    text = (ROOT / page).read_text(encoding="utf-8")
    general, special = parted(text)
    return [Block(*value) for value in BLOCK.findall(special or text if model == BOTH else general)]


def models_of(page: str) -> tuple[str, ...]:
    """The kinds of models that the blocks of a page run on."""
    _, special = parted((ROOT / page).read_text(encoding="utf-8"))
    return (ONE, OUTPUTS, BOTH) if special else (ONE, BOTH)


def quick_models(page: str) -> tuple[str, ...]:
    """The fewest of them that run every block."""
    return (ONE, BOTH) if len(models_of(page)) > 2 else (ONE,)


def parted(text: str) -> tuple[str, str]:
    """A page without its section for several inputs, and that section; empty if it has none."""
    title = SEVERAL.search(text)
    if title is None:
        return text, ""
    level = len(title[0]) - len(title[0].lstrip("#"))
    end = re.search(rf"^#{{1,{level}}} ", text[title.end() :], re.MULTILINE)
    stop = title.end() + end.start() if end else len(text)
    return text[: title.start()] + text[stop:], text[title.start() : stop]


def pages() -> Iterator[str]:
    """README.md and every page of docs with a block that runs."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        page = path.relative_to(ROOT).as_posix()
        if any(block.does_something for model in models_of(page) for block in blocks(page, model)):
            yield page


def commands(text: str) -> Iterator[list[str]]:
    """The commands of quantglow in a block, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("quantglow ") and " ".join(line.split()) not in ELSEWHERE:
            yield shlex.split(line)[1:]


def run_command(words: Sequence[str]) -> None:
    """Run a command of a page, quicker; its output goes to the file behind ``>``."""
    words, _, files = (words, "", ()) if ">" not in words else split(words)
    words = [*words, *QUICKER.get(words[0], ())]
    if not files:
        assert main(words) == 0, words
        return
    with Path(files[0]).open("w", encoding="utf-8") as file, redirect_stdout(file):
        assert main(words) == 0, words


def split(words: Sequence[str]) -> tuple[Sequence[str], str, Sequence[str]]:
    """The words before ``>``, it, and the file behind it."""
    at = words.index(">")
    return words[:at], ">", words[at + 1 :]


# -- models


def network(model: str) -> onnx.ModelProto:
    """x [1, 2, 6, 6] -> Conv, Relu, Gemm: scores [1, 3]; of several inputs also y [1, 3], a bias;
    of several outputs also features [1, 4, 6, 6]."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((4, 2, 3, 3)), "v": rng.standard_normal((144, 3)) / 12}
    scores = "scores" if model != BOTH else "products"
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["features"]),
        helper.make_node("Flatten", ["features"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v"], [scores], name=scores),
    ]
    if model == BOTH:
        nodes.append(helper.make_node("Add", ["products", "y"], ["scores"], name="scores"))
    shapes = ({"x": [1, 2, 6, 6], "y": [1, 3]}, {"scores": [1, 3], "features": [1, 4, 6, 6]})
    return documented_arguments(nodes, arrays, model, *shapes)


def classifier(model: str) -> onnx.ModelProto:
    """x [1, 3, 224, 224] -> Conv by 32 pixels, mean, Gemm: ten scores; of several inputs also size
    [1, 2], which counts as two features; of several outputs also features."""
    rng = np.random.default_rng(0)
    size = ["size"] if model == BOTH else []
    inner = 4 + 2 * len(size)
    arrays = {"w": rng.standard_normal((4, 3, 32, 32)) / 50, "v": rng.standard_normal((inner, 10))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[32, 32]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["features"]),
        helper.make_node("Concat", ["features", *size], ["joined"], axis=1),
        helper.make_node("Gemm", ["joined", "v"], ["scores"]),
    ]
    shapes = ({"x": [1, 3, 224, 224], "size": [1, 2]}, {"scores": [1, 10], "features": [1, 4]})
    return documented_arguments(nodes, arrays, model, *shapes)


def free_network(model: str) -> onnx.ModelProto:
    """x [batch, length] -> Relu -> scores; of several inputs and outputs also y -> others."""
    pairs = [("x", "scores"), ("y", "others")][: 1 + (model == BOTH)]
    nodes = [helper.make_node("Relu", [x], [y]) for x, y in pairs]
    shapes = [{pair[end]: ["batch", "length"] for pair in pairs} for end in (0, 1)]
    return documented_arguments(nodes, {}, model, *shapes)


def scores_of_tokens() -> onnx.ModelProto:
    """A decoder without caches: tokens [1, length] -> Gather, MatMul -> logits."""
    rng = np.random.default_rng(0)
    arrays = {"table": rng.standard_normal((64, 64)), "head": rng.standard_normal((64, 64))}
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["x"]),
        helper.make_node("MatMul", ["x", "head"], ["logits"]),
    ]
    tokens, logits = {"tokens": [1, "length"]}, {"logits": [1, "length", 64]}
    return documented_arguments(nodes, arrays, ONE, tokens, logits)


def documented_arguments(
    nodes: Sequence[onnx.NodeProto],
    arrays: dict[str, Any],
    model: str,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
) -> onnx.ModelProto:
    """A model with the first of the inputs and outputs, or with all."""
    sides = []
    for shapes, all_of in ((inputs, model == BOTH), (outputs, model != ONE)):
        items = list(shapes.items())[: None if all_of else 1]
        types = (TensorProto.INT64 if name == "tokens" else TensorProto.FLOAT for name, _ in items)
        sides.append(
            [helper.make_tensor_value_info(n, t, s) for (n, s), t in zip(items, types, strict=True)]
        )
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "network", *sides, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples_of(model: onnx.ModelProto, count: int = 12) -> dict[str, np.ndarray]:
    """Random arrays for each input, one row for each sample."""
    rng = np.random.default_rng(1)
    arrays = {}
    for port in model.graph.input:
        _, *sizes = (d.dim_value or 72 for d in port.type.tensor_type.shape.dim)
        arrays[port.name] = rng.standard_normal((count, *sizes)).astype(np.float32)
    return arrays


def forget_modules(folder: Path) -> None:
    """Forget modules of a page, which another run of the page writes anew."""
    for name, module in [*sys.modules.items()]:
        if (file := getattr(module, "__file__", None)) and Path(file).parent == folder:
            del sys.modules[name]
