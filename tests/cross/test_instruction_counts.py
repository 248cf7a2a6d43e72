"""An inference takes fewer instructions than onnxruntime's, under the same emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cross.emulated import needs_emulator
from tools.instruction_counts import executed
from tools.integer_hashes import write

MAX_RATIO = 0.8
"""Share of onnxruntime's instructions; docs/processors.md has 0.13 to 0.59."""
LEAST = 1_000_000
"""Instructions below which the counter missed kernels: the classifier has 16.3 million
multiply-accumulates."""

pytestmark = [needs_emulator, pytest.mark.emulated, pytest.mark.slow]


@pytest.mark.parametrize("level", ["dotprod", "i8mm"])
def test_an_inference_takes_fewer_instructions_than_onnxruntime_s(
    level: str, tmp_path: Path
) -> None:
    write(tmp_path, ("ppocr_cls",))
    ours, other = executed(tmp_path / "ppocr_cls.qgm", level)
    assert LEAST < ours <= MAX_RATIO * other
