"""Pictures of the results for the README: ``python -m tools pictures`` draws them anew."""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PICTURE = ROOT / "docs" / "pictures" / "latency.svg"

PEERS = {"onnxruntime": 4, "OpenVINO": 5}
"""Columns of quantglow's time over that of a peer, on the first processor."""
COLORS = {"quantglow": "#3f51b5", "onnxruntime": "#e08e45", "OpenVINO": "#7fa650"}
TEXT = "#808080"
"""Legible on white and on black."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(options: argparse.Namespace) -> int:
    """Write the picture."""
    draw(ratios(RESULTS.read_text(encoding="utf-8")), PICTURE)
    return 0


def ratios(results: str) -> dict[str, dict[str, float]]:
    """The time of each peer over quantglow's, of each network in int8 on one thread."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in results.splitlines()]
    return {
        row[0]: {peer: 1 / float(row[column]) for peer, column in PEERS.items()}
        for row in rows
        if row[1:3] == ["1", "int8"]
    }


def draw(actual: dict[str, dict[str, float]], path: Path) -> None:
    """Horizontal bars, the same bytes for the same figures."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "quantglow", "svg.fonttype": "none", "text.color": TEXT})
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    names = list(COLORS)
    for position, name in enumerate(names):
        widths = [1.0 if name == "quantglow" else ratio[name] for ratio in actual.values()]
        at = [row + 0.27 * (position - 1) for row in range(len(actual))]
        bars = axes.barh(at, widths, 0.25, color=COLORS[name], label=name)
        if name != "quantglow":
            axes.bar_label(bars, fmt="%.1f", padding=3, color=TEXT, fontsize=8)
    axes.set_yticks(range(len(actual)), list(actual), color=TEXT)
    axes.invert_yaxis()
    axes.set_title(
        "One call in int8 on one thread of a Zen 5, quantglow = 1 (shorter is faster)", fontsize=11
    )
    axes.legend(frameon=False, loc="lower right")
    axes.tick_params(colors=TEXT, length=0)
    axes.xaxis.set_visible(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.savefig(path, transparent=True, metadata={"Date": None})
