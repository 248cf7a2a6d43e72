"""The arena over time: which value lies where while which kernel runs, as text and as a picture."""

from __future__ import annotations

import html
import string
from collections.abc import Iterator
from dataclasses import dataclass

from quantglow.instr.program import Alloc, Dealloc, Program
from quantglow.memory.planner import MemoryPlan, lifetimes
from quantglow.report.display.tables import nbytes_text

ROWS, MAP_COLUMNS = 16, 72
"""Size of the text, in characters."""
LETTERS = string.ascii_uppercase + string.ascii_lowercase
FREE, OTHER = "·", "+"
MOST_NAMED = 12
"""Number of values that the text names, the largest first."""

WIDTH, HEIGHT, MARGIN = 960, 480, 40
"""Size of the picture, in pixels."""
HUES = 47
"""Degrees between the colours of neighbours in the order of sizes: far apart for any two."""


@dataclass(frozen=True)
class Block:
    """A value in the arena: its bytes, and the first and the last kernel while it is there."""

    name: str
    offset: int
    nbytes: int
    begin: int
    end: int

    def covers(self, kernel: float, address: float) -> bool:
        """Whether the value has this address while this kernel runs."""
        is_alive = self.begin <= kernel < self.end + 1
        return is_alive and self.offset <= address < self.offset + self.nbytes


@dataclass(frozen=True)
class MemoryMap:
    """The blocks of a plan, the largest first, over ``kernels`` kernels and ``nbytes`` bytes."""

    blocks: tuple[Block, ...]
    kernels: int
    nbytes: int

    @staticmethod
    def of(program: Program, plan: MemoryPlan) -> MemoryMap:
        """The map of a program at the shape that it was planned for."""
        before, count = [], 0
        for step in program.instructions:
            before.append(count)
            count += not isinstance(step, Alloc | Dealloc)
        blocks = [
            Block(
                interval.buffer.name,
                plan.offsets[interval.buffer],
                interval.nbytes,
                before[interval.begin],
                max(before[interval.end] - 1, before[interval.begin]),
            )
            for interval in lifetimes(program)
        ]
        blocks.sort(key=lambda block: (-block.nbytes, block.begin))
        return MemoryMap(tuple(blocks), count, plan.peak_nbytes)

    def __str__(self) -> str:
        if not self.blocks:
            return "The arena is empty."
        columns = min(self.kernels, MAP_COLUMNS)
        return "\n".join(
            [
                f"The arena over time: a column is {self.kernels / columns:.3g} kernel(s), a row "
                f"{nbytes_text(-(-self.nbytes // ROWS))}; address 0 is below",
                *self.grid(columns),
                *self.legend(),
            ]
        )

    def grid(self, columns: int) -> Iterator[str]:
        """The rows of characters, the highest addresses first."""
        for row in reversed(range(ROWS)):
            address = (row + 0.5) * self.nbytes / ROWS
            yield "".join(
                self.letter_at((column + 0.5) * self.kernels / columns - 0.5, address)
                for column in range(columns)
            )

    def letter_at(self, kernel: float, address: float) -> str:
        """The letter of the value in the middle of a cell."""
        kernel = round(kernel)
        found = (at for at, block in enumerate(self.blocks) if block.covers(kernel, address))
        at = next(found, None)
        return FREE if at is None else LETTERS[at] if at < len(LETTERS) else OTHER

    def legend(self) -> Iterator[str]:
        """Names, sizes and lives of the largest values."""
        for letter, block in zip(LETTERS[:MOST_NAMED], self.blocks, strict=False):
            life = f"kernels {block.begin + 1} to {block.end + 1} of {self.kernels}"
            yield f"  {letter}  {nbytes_text(block.nbytes):>9}  {life}  {block.name}"
        if (rest := len(self.blocks) - MOST_NAMED) > 0:
            yield f"  and {rest} smaller value(s)"

    def svg(self) -> str:
        """The map as a picture: a rectangle for each value, whose name shows when pointed at."""
        rectangles = "\n".join(
            self.rectangle(block, HUES * at % 360) for at, block in enumerate(self.blocks)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
            f"{rectangles}\n{''.join(self.axes())}\n</svg>\n"
        )

    def rectangle(self, block: Block, hue: int) -> str:
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
        return inside[0] / max(self.kernels, 1), inside[1] / max(self.nbytes, 1)

    def axes(self) -> Iterator[str]:
        """The words beside the picture."""
        bottom = HEIGHT - MARGIN
        yield f'<text x="{MARGIN}" y="{MARGIN - 8}">arena, {nbytes_text(self.nbytes)}</text>'
        yield f'<text x="{MARGIN}" y="{bottom + 18}">kernel 1</text>'
        last = f"kernel {self.kernels}"
        yield f'<text x="{WIDTH - MARGIN}" y="{bottom + 18}" text-anchor="end">{last}</text>'
        yield (
            f'<path d="M{MARGIN} {MARGIN}V{bottom}H{WIDTH - MARGIN}" fill="none" stroke="black"/>'
        )
