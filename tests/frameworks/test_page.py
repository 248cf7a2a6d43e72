"""The Python of docs/pytorch.md runs, block after block, and its list of operators is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quantglow.converters.tflite.operators import RULES

for needed in ("torch", "onnxscript", "torchao", "sklearn", "skl2onnx"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

PAGE = (Path(__file__).parents[2] / "docs/pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_blocks_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/pytorch.md", "exec"), names)
    assert (tmp_path / "model.qgm").exists()
    assert len(BLOCKS) == 5


def test_every_operator_of_tflite_is_listed() -> None:
    listed = PAGE.partition("Supported are ")[2].partition(", with the fused")[0]
    assert set(re.findall(r"[A-Z][A-Z0-9_]+", listed)) == RULES.keys()
