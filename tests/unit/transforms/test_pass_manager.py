"""Passes run in order, and a record says what each did and why others declined."""

from __future__ import annotations

import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Abs, Neg, Relu
from quantglow.transforms.rewrite import Uses, decline, repeat, rewrite_pass, run_passes
from tests.support.builder import Builder


@rewrite_pass("drop-relu")
def drop_relu(node: Node, uses: Uses) -> Node | None:
    """Relu(x) -> x, if x has no other reader"""
    if not isinstance(node, Relu):
        return None
    if not uses.single(node.x):
        return decline(node, f"{node.x.name!r} has other readers")
    return node.x


@rewrite_pass("drop-abs")
def drop_abs(node: Node, uses: Uses) -> Node | None:
    """Abs(x) -> x"""
    return node.x if isinstance(node, Abs) else None


def reversed_outputs(graph: Graph) -> Graph:
    return graph.with_outputs([node for _, node in graph.outputs][::-1])


def small_graph() -> Graph:
    """Relu(Abs(x)), and Relu(Neg(y)) whose Neg is an output, too."""
    b = Builder()
    x, y = b.input(2), b.input(2)
    neg = b.make(Neg, x=y)
    return b.graph(b.make(Relu, x=b.make(Abs, x=x)), b.make(Relu, x=neg), neg)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of the log of passes over the graph at debug level 2."""
    monkeypatch.setenv("QUANTGLOW_DEBUG", "2")
    run_passes(small_graph(), [repeat("group", drop_relu, drop_abs), reversed_outputs])
    return capsys.readouterr().err.splitlines()


def test_the_rewrites_of_each_rule_are_counted(logged: list[str]) -> None:
    counts = {line.split()[0]: line.split()[1] for line in logged if " rewrites " in line}
    assert counts == {"group": "1", "drop-relu": "1", "drop-abs": "1", "reversed-outputs": "1"}


def test_reasons_name_the_pass_and_the_value(logged: list[str]) -> None:
    reasons = [line for line in logged if "declined" in line]
    assert reasons == ["drop-relu: 'v6' declined: 'v3' has other readers"]


def test_nothing_is_recorded_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QUANTGLOW_DEBUG", raising=False)
    run_passes(small_graph(), [drop_relu])
    assert capsys.readouterr().err == ""


def test_level_1_has_no_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUANTGLOW_DEBUG", "1")
    run_passes(small_graph(), [drop_relu])
    assert "declined" not in capsys.readouterr().err
