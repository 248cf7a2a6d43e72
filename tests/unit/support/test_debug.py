"""Environment switches for looking inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantglow.support import debug

LEVELS = {"": 0, "0": 0, "2": 2, "12": 12, "yes": 0, "-1": 0, "²": 0, "1.5": 0}


@pytest.mark.parametrize("value", LEVELS)
def test_a_level_that_is_no_number_is_none(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("QUANTGLOW_DEBUG", value)
    assert debug.level() == LEVELS[value]


def test_a_dump_has_names_of_any_language_in_any_locale(tmp_path: Path) -> None:
    code = r"from quantglow.support.debug import dump_ir; dump_ir('stage', '\u5c64 = Relu')"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment |= {"QUANTGLOW_DUMP_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    (dump,) = tmp_path.iterdir()
    assert dump.read_text(encoding="utf-8") == "\u5c64 = Relu"
