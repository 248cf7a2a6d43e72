"""Passes print what their golden texts say, and keep what the IR computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.program import Program
from quantglow.memory.planner import plan_memory
from quantglow.support.arrays import Array
from tests.golden.texts import FILES, PASSES, run
from tests.support.equality import assert_equal_values

each_text = pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")


@each_text
def test_a_pass_gives_its_golden_text(path: Path, request: pytest.FixtureRequest) -> None:
    actual = run(path).text()
    if request.config.getoption("--update-golden"):
        path.write_text(actual, encoding="utf-8")
    assert actual == path.read_text(encoding="utf-8")


@each_text
def test_a_pass_keeps_what_its_golden_text_computes(path: Path) -> None:
    results = run(path)
    feeds = feeds_of(results.before)
    assert_equal_values(outputs(results.after, feeds), outputs(results.before, feeds))


def feeds_of(ir: Graph | Program) -> dict[str, Array]:
    """Values for every input, from the whole range of integers."""
    rng = np.random.default_rng(7)
    if isinstance(ir, Graph):
        types = {node.name: node.type for node in ir.inputs}
    else:
        types = {name: view.type for name, view in ir.inputs}
    return {
        name: rng.standard_normal(kind.shape).astype(np.float32)
        if kind.dtype.is_float
        else rng.integers(*kind.dtype.limits, kind.shape, endpoint=True).astype(kind.dtype.numpy)
        for name, kind in types.items()
    }


def outputs(ir: Graph | Program, feeds: dict[str, Array]) -> list[Array]:
    if isinstance(ir, Graph):
        return interpret(ir, feeds)
    return ReferenceExecutable(ir, plan_memory(ir)).run(feeds)


WITHOUT_TEXT = {
    "fold-parts-of-constants": "texts have no free sizes",
    "fold-symmetric-filters": "filters that pay are too large for a text",
    "fold-symmetric-products": "matrices that pay are too large for a text",
    "minimal-filtering": "filters that pay are too large for a text",
}
"""Passes with tests of their own in ``tests/unit/transforms/float``, and why."""


@pytest.mark.parametrize("name", sorted(PASSES.keys() - WITHOUT_TEXT.keys()))
def test_every_pass_has_a_golden_text_in_which_it_changes_something(name: str) -> None:
    assert any(run(path).changed for path in FILES if path.parent.name == name)


def test_every_golden_text_belongs_to_a_pass() -> None:
    assert {path.parent.name for path in FILES} <= PASSES.keys()
