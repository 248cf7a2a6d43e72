"""A short run of both fuzzers; ``make fuzz`` is the long one.  Every finding becomes a test."""

from __future__ import annotations

import onnx
import pytest

from tests.fuzz import files, graphs
from tests.fuzz.compare import REFUSED, Setting, check
from tests.fuzz.isolated import findings
from tests.fuzz.shrink import shrunk


@pytest.mark.parametrize("what", ["graphs", "files"])
@pytest.mark.parametrize("seeds", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_finds_nothing(what: str, seeds: int) -> None:
    found = [finding for finding in findings(what, range(10_000, 10_000 + seeds)) if finding]
    assert [finding for finding in found if finding.kind != REFUSED] == []
    assert len(found) <= seeds / 10


def test_a_seed_always_gives_the_same_case() -> None:
    once, again = graphs.drawn(5), graphs.drawn(5)
    assert once.model == again.model
    assert files.damaged(5) == files.damaged(5)


def test_a_wrong_operator_is_found_and_shrunk_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantglow.ops.unary.Relu.reference", lambda self, x: x)
    seed = next(
        s
        for s in range(500)
        if sum(n.op_type == "Relu" for n in graphs.drawn(s).model.graph.node)
        and check(graphs.drawn(s), Setting())
    )
    found = check(graphs.drawn(seed), Setting())
    assert found is not None
    small = shrunk(
        graphs.drawn(seed),
        lambda case: (again := check(case, Setting())) is not None and again.kind == found.kind,
    )
    assert "Relu" in [node.op_type for node in small.model.graph.node]
    assert len(small.model.graph.node) <= 2


def test_drawn_models_are_valid_onnx() -> None:
    model = graphs.drawn(17).model
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.node
