"""Memory in tables, words and pictures: weights, flash and RAM, the arena over time."""

from __future__ import annotations

import html
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quantglow.evaluation.footprint import ArenaBlock, Footprint, LayerFootprint, MemoryMap
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.report.tables import Bar, Column, ReportTable, nbytes_text


def weights_text(sizes: WeightSizes) -> str:
    """The sizes of weights before and after quantization."""
    if not sizes.float_nbytes:
        return "no weights"
    before, after = map(nbytes_text, (sizes.float_nbytes, sizes.quantized_nbytes))
    return f"weights {before} -> {after} ({sizes.ratio:.1f} times smaller)"


def weights_bars(sizes: WeightSizes) -> Sequence[Bar]:
    """A bar for each size."""
    longest = max(sizes.float_nbytes, sizes.quantized_nbytes, 1)
    pairs = (("weights", sizes.quantized_nbytes), ("float weights", sizes.float_nbytes))
    return [Bar(n, size / longest, nbytes_text(size), n == "weights") for n, size in pairs]


LAYERS: tuple[Column[LayerFootprint], ...] = (
    Column("layer", lambda layer: layer.name),
    Column("operator", lambda layer: layer.operator),
    Column("weights", lambda layer: layer.weights_nbytes, "{:,}"),
    Column("RAM in use", lambda layer: layer.live_nbytes, "{:,}"),
)
"""Columns of the kernels of a footprint."""


def footprint_text(footprint: Footprint) -> str:
    """Flash and RAM, the plan, the arena over time, and a table of layers."""
    flash, ram = footprint.flash, footprint.arena_nbytes + footprint.stack_nbytes
    return "\n".join(
        [
            f"{footprint.target}: flash {nbytes_text(flash.nbytes)}, RAM {nbytes_text(ram)}",
            f"flash {flash.code_nbytes:,} code + {flash.weights_nbytes:,} weights, {flash.method}",
            f"RAM {footprint.arena_nbytes:,} arena + {footprint.stack_nbytes:,} stack",
            str(footprint.plan),
            *_smaller_arena(footprint),
            f"{footprint.map}\n",
            str(ReportTable.of("Layers, in bytes", LAYERS, footprint.layers)),
        ]
    )


def _smaller_arena(footprint: Footprint) -> Iterator[str]:
    """The arena of a schedule that needs less memory, if there is one."""
    if footprint.least_nbytes < footprint.plan.peak_nbytes:
        yield f"schedule memory: arena {footprint.least_nbytes} bytes"


ROWS, MAP_COLUMNS = 16, 72
"""Size of the text of a map, in characters."""
LETTERS = string.ascii_uppercase + string.ascii_lowercase
FREE, OTHER = "·", "+"
MOST_NAMED = 12
"""Number of values that the text names, the largest first."""


def memory_text(arena: MemoryMap) -> str:
    """The arena over time in characters, and its largest values."""
    if not arena.blocks:
        return "The arena is empty."
    columns = min(arena.kernels, MAP_COLUMNS)
    return "\n".join(
        [
            f"The arena over time: a column is {arena.kernels / columns:.3g} kernel(s), a row "
            f"{nbytes_text(-(-arena.nbytes // ROWS))}; address 0 is below",
            *grid(arena, columns),
            *_legend(arena),
        ]
    )


def grid(arena: MemoryMap, columns: int) -> Iterator[str]:
    """The rows of characters, the highest addresses first."""
    for row in reversed(range(ROWS)):
        address = (row + 0.5) * arena.nbytes / ROWS
        yield "".join(
            _letter_at(arena, (column + 0.5) * arena.kernels / columns - 0.5, address)
            for column in range(columns)
        )


def _letter_at(arena: MemoryMap, kernel: float, address: float) -> str:
    """The letter of the value in the middle of a cell."""
    kernel = round(kernel)
    places = (at for at, block in enumerate(arena.blocks) if block.covers(kernel, address))
    at = next(places, None)
    return FREE if at is None else LETTERS[at] if at < len(LETTERS) else OTHER


def _legend(arena: MemoryMap) -> Iterator[str]:
    """Names, sizes and lives of the largest values."""
    for letter, block in zip(LETTERS[:MOST_NAMED], arena.blocks, strict=False):
        life = f"kernels {block.begin + 1} to {block.end + 1} of {arena.kernels}"
        yield f"  {letter}  {nbytes_text(block.nbytes):>9}  {life}  {block.name}"
    if (smaller := len(arena.blocks) - MOST_NAMED) > 0:
        yield f"  and {smaller} smaller value(s)"


WIDTH, HEIGHT, MARGIN = 960, 480, 40
"""Size of the picture of a map, in pixels."""
HUES = 47
"""degrees between the colors of neighbors in the order of sizes: far apart for any two."""


@dataclass(frozen=True)
class MemoryPicture:
    """The arena over time as SVG: a rectangle for each value, whose name shows when pointed at."""

    arena: MemoryMap

    def __str__(self) -> str:
        blocks = enumerate(self.arena.blocks)
        rectangles = "\n".join(self.rectangle(block, HUES * at % 360) for at, block in blocks)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
            f"{rectangles}\n{''.join(self.axes())}\n</svg>\n"
        )

    def rectangle(self, block: ArenaBlock, hue: int) -> str:
        """A value, higher addresses above."""
        across, up = self.scales()
        x, width = MARGIN + block.begin * across, (block.end + 1 - block.begin) * across
        height = block.nbytes * up
        y = HEIGHT - MARGIN - block.offset * up - height
        title = html.escape(f"{block.name}, {nbytes_text(block.nbytes)}")
        return (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'fill="hsl({hue},60%,70%)" stroke="white" stroke-width="0.5"><title>{title}</title>'
            "</rect>"
        )

    def scales(self) -> tuple[float, float]:
        """Pixels for a kernel and for a byte."""
        inside = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
        return inside[0] / max(self.arena.kernels, 1), inside[1] / max(self.arena.nbytes, 1)

    def axes(self) -> Iterator[str]:
        """The words beside the picture."""
        bottom, size = HEIGHT - MARGIN, nbytes_text(self.arena.nbytes)
        yield f'<text x="{MARGIN}" y="{MARGIN - 8}">arena, {size}</text>'
        yield f'<text x="{MARGIN}" y="{bottom + 18}">kernel 1</text>'
        last = f"kernel {self.arena.kernels}"
        yield f'<text x="{WIDTH - MARGIN}" y="{bottom + 18}" text-anchor="end">{last}</text>'
        axes = f"M{MARGIN} {MARGIN}V{bottom}H{WIDTH - MARGIN}"
        yield f'<path d="{axes}" fill="none" stroke="black"/>'
