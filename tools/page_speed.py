"""Milliseconds in which Chromium lays out and draws pages of large graphs, all unfolded.

    make browser-speed

The graphs have the shapes of networks: a chain, residual blocks, blocks of branches, skip
connections from one half to the other, and a mask that many layers read.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quantglow.report.drawing import DrawnGraph, DrawnNode, blocks
from quantglow.report.webpage import page
from tools.browser_setup import opened

NODES = 5_000
Edges = Iterator[tuple[int, int]]


def chain(count: int) -> Edges:
    """Each node reads the one before."""
    yield from ((node - 1, node) for node in range(1, count))


def residual(count: int) -> Edges:
    """A chain with an edge around each block of ten."""
    yield from chain(count)
    yield from ((node - 10, node) for node in range(10, count, 10))


def branches(count: int) -> Edges:
    """Blocks of four branches of two nodes, and one around them."""
    for first in range(0, count - 9, 10):
        last = first + 9
        yield first, last
        for node in range(first + 1, last, 2):
            yield from ((first, node), (node, node + 1), (node + 1, last))
        if last + 1 < count:
            yield last, last + 1


def skips(count: int) -> Edges:
    """A chain whose second half reads the first, the last value first."""
    yield from chain(count)
    yield from ((count - node, node) for node in range(count // 2 + 1, count) if node % 50 == 0)


def mask(count: int) -> Edges:
    """A chain in which every seventh node reads the first one."""
    yield from chain(count)
    yield from ((0, node) for node in range(7, count, 7))


SHAPES: dict[str, Callable[[int], Edges]] = {
    shape.__name__: shape for shape in (chain, residual, branches, skips, mask)
}


def drawn(shape: str, count: int) -> DrawnGraph:
    """A graph of a shape, with blocks of fifty nodes."""
    names = [f"/stage{node // 500}/block{node // 50}/node{node}" for node in range(count)]
    paths = blocks(names)
    nodes = (DrawnNode(n, "Conv", "f32[1]", "int8", p) for n, p in zip(names, paths, strict=True))
    return DrawnGraph(tuple(nodes), tuple(SHAPES[shape](count)))


def page_of_shape(shape: str, count: int) -> str:
    """The page of such a graph."""
    return page(shape, {"graph": drawn(shape, count).to_json()})


def milliseconds(chromium: Any, path: Path) -> float:
    """Time in which a page unfolds its graph: layout, drawing, and the frame that shows it."""
    shown = chromium.new_page()
    shown.goto(path.as_uri())
    shown.wait_for_selector("body[data-ready]")
    return float(
        shown.evaluate(
            """() => new Promise((done) => {
                const started = performance.now();
                document.getElementById("unfold").click();
                requestAnimationFrame(() => setTimeout(() => done(performance.now() - started)));
            })"""
        )
    )


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened() as chromium:
        for shape in SHAPES:
            path = Path(folder) / f"{shape}.html"
            path.write_text(page_of_shape(shape, options.nodes), encoding="utf-8")
            print(f"{shape:10} {options.nodes} nodes {milliseconds(chromium, path):7.0f} ms")


if __name__ == "__main__":
    main()
