"""The code that walks tables of calls: its texts, comments left out, are those of golden files."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantglow.codegen.llvm.table_walk import FOLDER, LOOP, read_template
from quantglow.codegen.llvm.targets import level_target
from quantglow.runtime.native import sequences, tracing
from quantglow.runtime.native.table_runner import fill_waits, run_time_texts

GOLDEN = Path(__file__).with_name("scheduler")
LEVELS = ("avx2", "neon")
"""Levels of two instruction sets whose threads wait by Linux's futex."""


def texts() -> dict[str, str]:
    """Every text, by the name of its golden file."""
    waiting = level_target("avx2").waiting
    traced = {"ticks": tracing.TICKS, "walk_traced": tracing.WALK_TRACED, "traced": tracing.TRACED}
    return {
        **{
            f"{name}-{level}": text
            for level in LEVELS
            for name, text in run_time_texts(level_target(level)).items()
        },
        **{f"{name}-avx2": fill_waits(text, waiting) for name, text in traced.items()},
        "loop": LOOP,
        "run_pieces": sequences.RUN_PIECES,
    }


@pytest.mark.parametrize("name", texts())
def test_the_scheduler_is_its_golden_text(name: str, request: pytest.FixtureRequest) -> None:
    path, text = GOLDEN / f"{name}.ll", texts()[name]
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ll")), ids=lambda p: p.stem)
def test_comments_are_no_part_of_a_text(path: Path) -> None:
    assert ";" in path.read_text(encoding="utf-8")
    assert ";" not in read_template(path.stem)
