"""Drawings of graphs and histograms as plain data, and the pages that notebooks show of them.

>>> blocks(["/a/conv", "/a/relu", "/b/conv", "/b/relu"])
[('a',), ('a',), ('b',), ('b',)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from quantglow.evaluation.metrics import Range
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.profiling import Histogram, Profile
from quantglow.report.webpage import Page

SEPARATORS = ("/", ".", "_")
"""Characters between the parts of a name: those of PyTorch, of Paddle, of MXNet."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class DrawnNode:
    """A node; ``precision`` is that of its result, ``block`` the path of its block."""

    name: str
    op: str
    type: str
    precision: str
    block: Path


@dataclass(frozen=True)
class DrawnGraph:
    """Nodes but constants, operands before users, and edges between their positions."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[tuple[int, int], ...]

    @staticmethod
    def of(graph: Graph) -> DrawnGraph:
        """The drawing of a graph."""
        nodes = [node for node in graph.nodes if not isinstance(node, Constant)]
        places = {node: place for place, node in enumerate(nodes)}
        edges = {
            (places[operand], place): None
            for node, place in places.items()
            for operand in node.operands
            if operand in places
        }
        paths = blocks([node.name for node in nodes])
        drawn = (
            DrawnNode(node.name, node.op, str(node.type), precision(node), path)
            for node, path in zip(nodes, paths, strict=True)
        )
        return DrawnGraph(tuple(drawn), tuple(edges))

    def to_json(self) -> dict[str, Any]:
        """The drawing in types that ``json`` writes."""
        return asdict(self)


def precision(node: Node) -> str:
    """``float``, ``int8``, ``int16``, or nothing for integers that stand for themselves."""
    kind = node.type
    if kind.quant is not None:
        return f"int{8 * kind.dtype.nbytes}"
    return "float" if kind.dtype.is_float else ""


def blocks(names: Sequence[str]) -> list[Path]:
    """The block of each name: the parts that it has in common with other names, but not with all.

    A part that its block alone has adds nothing, and is left out.
    """
    paths = [_prefixes(name, _name_separator(names)) for name in names]
    counts = Counter(prefix for prefixes in paths for prefix in prefixes)
    return [tuple(keep(prefixes, counts, len(names))) for prefixes in paths]


def _name_separator(names: Sequence[str]) -> str:
    """The first separator that half of the names have inside; a line feed if there is none."""
    for separator in SEPARATORS:
        if 2 * sum(separator in name.strip(separator) for name in names) > len(names):
            return separator
    return "\n"


def _prefixes(name: str, separator: str) -> list[Path]:
    """The paths of the blocks that a name could be in, outermost first."""
    parts = name.strip(separator).split(separator)
    return [tuple(parts[:end]) for end in range(1, len(parts))]


def keep(prefixes: Sequence[Path], counts: Counter[Path], whole: int) -> list[str]:
    """The last part of each block that has two nodes or more, and fewer than the block around."""
    parts, around = [], whole
    for prefix in prefixes:
        if 1 < counts[prefix] < around:
            parts.append(prefix[-1])
            around = counts[prefix]
    return parts


BARS = 56
"""Maximum number of bars of a histogram."""


def histogram_bars(histogram: Histogram, stored: Range | None = None) -> dict[str, Any]:
    """Counts in equal bars between the reals ``low`` and ``high``; ``stored`` is the range of the
    integers, None for a float tensor."""
    edges, counts = histogram.edges, histogram.counts
    group = -(-len(counts) // BARS)
    bars = np.add.reduceat(counts, np.arange(0, len(counts), group))
    low, width = float(edges[0]), float(edges[1] - edges[0])
    return {
        "low": low,
        "high": low + width * group * len(bars),
        "counts": bars.tolist(),
        "range": None if stored is None else list(stored),
    }


class ModelWithReport(Protocol):
    """A model whose report has a page."""

    @property
    def report(self) -> Any:
        """The report."""


def graph_page(graph: Graph) -> Page:
    """The drawing of a graph: it folds, zooms and searches."""
    drawing = DrawnGraph.of(graph)
    return Page.of(f"Graph of {len(drawing.nodes)} nodes", {"graph": drawing.to_json()})


def profile_page(profile: Profile) -> Page:
    """The histograms of a profile, with a search."""
    bars = {name: histogram_bars(each) for name, each in profile.histograms.items() if each.count}
    title = f"Profile of {len(bars)} tensors over {profile.samples} sample(s)"
    return Page.of(title, {"histograms": bars})


def model_page(model: ModelWithReport) -> Page:
    """The page that explains a model, as its report has it."""
    return Page(model.report.to_html())
