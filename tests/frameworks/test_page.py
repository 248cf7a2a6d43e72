"""The Python of docs/pytorch.md runs, and its list of operators is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quantglow.importer.tflite.operators import RULES
from tests.support.documented import BOTH, ONE, blocks

for needed in ("torch", "onnxscript", "torchao", "sklearn", "skl2onnx"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

PAGE = (Path(__file__).parents[2] / "docs/pytorch.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("model", "count"), [(ONE, 5), (BOTH, 1)])
def test_the_blocks_run_in_their_order(
    model: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    programs = [block for block in blocks("docs/pytorch.md", model) if block.language == "python"]
    for block in programs:
        block.run("docs/pytorch.md", names)
    assert (tmp_path / "model.qgm").exists()
    assert len(programs) == count


def test_every_operator_of_tflite_is_listed() -> None:
    listed = PAGE.partition("Supported are ")[2].partition(", with the fused")[0]
    assert set(re.findall(r"[A-Z][A-Z0-9_]+", listed)) == RULES.keys()
