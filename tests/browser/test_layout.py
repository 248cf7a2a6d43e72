"""The layout of large graphs: no two boxes overlap, edges join their nodes, soon enough."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Opener
from tools.page_speed import NODES, SHAPES, drawn, milliseconds, page_of_shape

pytestmark = pytest.mark.browser

BOUND = 30_000
"""Milliseconds: far above what a busy machine takes.  ``make browser-speed`` measures."""

CHECK = """([nodes, edges]) => {
    const { x, y, paths } = layered(nodes, edges);
    const { width, height } = NODE;
    const near = (a, b, x, y) => Math.abs(a - x) <= width / 2 && Math.abs(b - y) <= height / 2;
    const order = [...x.keys()].sort((a, b) => y[a] - y[b]);
    let overlaps = 0;
    order.forEach((node, at) => {
        for (let next = at + 1; next < nodes && y[order[next]] - y[node] < height; next++) {
            overlaps += Math.abs(x[order[next]] - x[node]) < width;
        }
    });
    const loose = edges.filter(([from, to], at) => {
        const [first, last] = [paths[at][0], paths[at].at(-1)];
        return !near(...first, x[from], y[from]) || !near(...last, x[to], y[to]);
    });
    const rising = edges.filter(([from, to]) => y[from] >= y[to]);
    return { overlaps, loose: loose.length, rising: rising.length };
}"""
"""The names are those of the page's scripts."""


@pytest.fixture(scope="module")
def scripts(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A page whose scripts are called."""
    return Opener(chromium, tmp_path_factory.mktemp("layout"))(page_of_shape("chain", 1)).page


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 37, 600])
def test_boxes_do_not_overlap_and_edges_join_them(scripts: Any, shape: str, count: int) -> None:
    edges = [list(edge) for edge in SHAPES[shape](count)]
    assert scripts.evaluate(CHECK, [count, edges]) == {"overlaps": 0, "loose": 0, "rising": 0}


def test_thousands_of_nodes_are_drawn(chromium: Any, show: Opener) -> None:
    shape = "branches"
    path = show.folder / "large.html"
    path.write_text(page_of_shape(shape, NODES), encoding="utf-8")
    assert milliseconds(chromium, path) < BOUND
    page = chromium.contexts[-1].pages[-1]
    assert page.locator(".node").count() == NODES
    assert page.locator("path.edge").count() == len(drawn(shape, NODES).edges)


def test_large_graphs_begin_folded(show: Opener) -> None:
    shown = show(page_of_shape("residual", NODES))
    assert shown.count(".node") < 20
