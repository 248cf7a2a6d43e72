"""Hashes of kernels and graphs: equal for equal programs, and they tell what changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from tests.support.pinned import pinned
from tools import graph_hashes
from tools.kernel_hashes import Texts, explain, graph_entries, runtime_entry

LEVEL = "avx2"


def entries(graph: Graph, level: str = LEVEL, texts: Texts | None = None) -> dict[str, Any]:
    actual = graph_entries("g", graph, [level], [1, 2], texts or Texts(None))
    return {name.removeprefix(f"g {level} "): entry for name, entry in actual}


def with_another_weight(graph: Graph) -> Graph:
    """The graph with one element of its first int8 constant changed."""
    chosen = next(
        node for node in graph.nodes if isinstance(node, Constant) and node.value.dtype == np.int8
    )
    value = chosen.value.copy()
    value.flat[0] ^= 1

    changed = replace(chosen, value=value)
    return graph.rebuild(lambda node: changed if node is chosen else node)


def test_equal_graphs_have_equal_hashes() -> None:
    assert entries(pinned("softmax")) == entries(pinned("softmax"))


def test_a_weight_changes_the_table_but_no_kernel() -> None:
    graph = pinned("softmax")
    before, after = entries(graph)["1"], entries(with_another_weight(graph))["1"]
    assert before["texts"] == after["texts"] and before["table"] != after["table"]


def test_threads_change_the_table_but_no_kernel() -> None:
    actual = entries(pinned("residual"))
    assert actual["1"]["texts"] == actual["2"]["texts"]
    assert actual["1"]["table"] != actual["2"]["table"]


def test_texts_that_differ_are_written(tmp_path: Path) -> None:
    texts, graph = Texts(None), pinned("softmax")
    before, after = (entries(graph, level, texts)["1"] for level in (LEVEL, "avx512vnni"))
    said = explain(texts, tmp_path, "g", before, after)
    assert "kernels differ" in said
    written = {path.name.split(".", 1)[1] for path in tmp_path.iterdir()}
    assert written == {"before.ll", "after.ll"}


def test_the_run_time_system_of_a_level_is_hashed() -> None:
    texts = Texts(None)
    actual = runtime_entry("x86-64", texts)
    assert "cmpxchg" in "".join(map(texts.get, actual))


@pytest.mark.parametrize(
    ("change", "differs"), [(lambda graph: graph, False), (with_another_weight, True)]
)
def test_a_graph_is_hashed_with_its_constants(
    change: Callable[[Graph], Graph], differs: bool
) -> None:
    graph = pinned("softmax")
    before, after = graph_hashes.entry(graph), graph_hashes.entry(change(graph))
    assert (before["constants"] != after["constants"]) == differs


def test_former_names_of_operators_count_as_those_of_today() -> None:
    line = "'m': f32[2] = Map(x='x', step='Map')"
    assert graph_hashes.renamed(line) == "'m': f32[2] = Elementwise(x='x', step='Map')"


def test_a_run_time_system_of_more_texts_differs(tmp_path: Path) -> None:
    texts = Texts(None)
    after = runtime_entry("x86-64", texts)
    assert "run-time system differs" in explain(texts, tmp_path, "r", after[:1], after)
