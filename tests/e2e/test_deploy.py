"""Every command of docs/deploy.md works, and its programs print values."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from quantglow.codegen.llvm.targets import runs_here
from quantglow.export.bundle.linking import programs
from tests.support.combinations import covering
from tests.support.small_network import small_model, small_samples

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOOLS = {
    "Server": ("gcc", "cmake"),
    "Shared library": ("ld",),
    "Raspberry Pi": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "Cortex-M board": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "Web page": ("node", "chromium-headless-shell"),
}
RUNS = {"Server": 2, "Raspberry Pi": 1, "Cortex-M board": 1}
"""Section -> how often the example of a bundle runs in it."""
PRELUDE = f'set -e\nquantglow() {{ "{sys.executable}" -m quantglow "$@"; }}\n'


def blocks(section: str) -> list[tuple[str, str, str]]:
    """Language, file if it is one, and text of each block of a section."""
    return BLOCK.findall(PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0])


def printed(folder: Path, language: str, text: str) -> str:
    """The output of a block."""
    command = {"sh": ["bash", "-c", PRELUDE + text], "python": [sys.executable, "-c", text]}
    ran = subprocess.run(
        command[language],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_all_sections_are_run() -> None:
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == list(TOOLS)


def model_with(count: int) -> onnx.ModelProto:
    """A Relu of x [1, 72]; with two inputs and outputs also one of y [1, 5]."""
    pairs = [("x", "scores", [1, 72]), ("y", "others", [1, 5])][:count]
    nodes = [onnx.helper.make_node("Relu", [x], [y]) for x, y, _ in pairs]
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(p[end], onnx.TensorProto.FLOAT, p[2]) for p in pairs]
        for end in (0, 1)
    )
    graph = onnx.helper.make_graph(nodes, "ends", inputs, outputs)
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )


def files(folder: Path, ends: str) -> None:
    """A model and samples with one input and output, with two outputs, or with two of each."""
    rng = np.random.default_rng(0)
    if ends == "outputs":
        onnx.save(small_model(), folder / "model.onnx")
        np.savez(folder / "samples.npz", x=np.concatenate(small_samples(12)))
        return
    count = 1 if ends == "one" else 2
    onnx.save(model_with(count), folder / "model.onnx")
    arrays = {"x": rng.standard_normal((12, 72)), "y": rng.standard_normal((12, 5))}
    named = list(arrays.items())[:count]
    np.savez(folder / "samples.npz", **{name: a.astype(np.float32) for name, a in named})


@pytest.mark.slow_variants
@pytest.mark.parametrize(("section", "ends"), covering([*TOOLS], ["one", "outputs", "both"]))
def test_commands_work(tmp_path: Path, section: str, ends: str) -> None:
    if missing := [tool for tool in TOOLS[section] if not shutil.which(tool)]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    if section == "Server" and not runs_here("x86-64"):
        pytest.skip("this is no x86-64")
    if section == "Web page" and not any(programs("wasm-ld")):
        pytest.skip("wasm-ld is not installed")
    files(tmp_path, ends)
    shown = []
    for language, file, text in blocks(section):
        if file:
            (tmp_path / file).write_text(text)
        else:
            shown.append(printed(tmp_path, language, text))
    examples = [text for text in shown if "net_run: 0" in text]
    assert len(examples) == RUNS.get(section, 0)
    assert np.isfinite(float(shown[-1].split()[-1]))
