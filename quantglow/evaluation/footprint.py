"""Footprint of a model on a target: flash and RAM by layer, and the map of the arena over time.

The map shows which value lies where while which kernel runs, as text and as a picture.
"""

from __future__ import annotations

import html
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from quantglow.codegen.llvm.call_profile import name_of
from quantglow.codegen.llvm.emitted import EmittedCall, EmittedProgram, Place
from quantglow.export.bundle import Code, Model, contents_of
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.exporter import (
    bundle_target,
    check_own,
    code_for,
    is_integer,
    schedule_for,
)
from quantglow.export.bundle.linking import Flash
from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.program import Alloc, Dealloc, Program
from quantglow.memory.planner import MemoryPlan, lifetimes
from quantglow.memory.planning import plan_program
from quantglow.memory.schedule import MEMORY
from quantglow.support.classes import Concise
from quantglow.support.display.tables import Table, nbytes_text

ROWS, MAP_COLUMNS = 16, 72
"""Size of the text, in characters."""
LETTERS = string.ascii_uppercase + string.ascii_lowercase
FREE, OTHER = "·", "+"
MOST_NAMED = 12
"""Number of values that the text names, the largest first."""

WIDTH, HEIGHT, MARGIN = 960, 480, 40
"""Size of the picture, in pixels."""
HUES = 47
"""Degrees between the colors of neighbors in the order of sizes: far apart for any two."""

COLUMNS = ("layer", "operator", "weights", "RAM in use")


@dataclass(frozen=True)
class Layer:
    """A kernel's call: bytes of the weights that it reads first, and bytes in use meanwhile."""

    name: str
    operator: str
    weights_nbytes: int
    live_nbytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Footprint(Concise):
    """Bytes that a model takes: code and weights in flash, arena and stack in RAM.

    ``plan`` says what every order of execution needs; ``least_nbytes`` is the arena with
    ``schedule="memory"``.
    """

    target: str
    flash: Flash
    stack_nbytes: int
    arena_nbytes: int
    plan: MemoryPlan
    least_nbytes: int
    layers: tuple[Layer, ...]
    map: MemoryMap

    @staticmethod
    def of(graph: Graph, target: str, schedule: str | None = None) -> Footprint:
        """The footprint of a graph.  Raises ``BackendError``, as a bundle of it would."""
        check_own(graph)
        found = bundle_target(target)
        least = planned = plan_program(graph, found, schedule=MEMORY)
        if schedule_for(found, schedule) != MEMORY:
            planned = plan_program(graph, found)
        emitted = code_for(planned, found)
        model = Model("model", graph.source_hash, is_integer(graph))
        bundle = contents_of(model, Code((emitted,)), Placement.OBJECT)
        return Footprint(
            found.name,
            bundle.flash,
            bundle.made.stack.most_nbytes,
            bundle.made.arena_nbytes,
            replace(planned.plan, every_order_nbytes=least.plan.every_order_nbytes),
            least.plan.peak_nbytes,
            tuple(layers_of(planned.program, emitted)),
            MemoryMap.of(planned.program, planned.plan),
        )

    @property
    def advice(self) -> str:
        """The arena of a smaller schedule, if there is one."""
        if self.least_nbytes >= self.plan.peak_nbytes:
            return ""
        return f"\nschedule memory: arena {self.least_nbytes} bytes"

    def __str__(self) -> str:
        flash, ram = self.flash, self.arena_nbytes + self.stack_nbytes
        rows = [
            (layer.name, layer.operator, f"{layer.weights_nbytes:,}", f"{layer.live_nbytes:,}")
            for layer in self.layers
        ]
        return "\n".join(
            [
                f"{self.target}: flash {nbytes_text(flash.nbytes)}, RAM {nbytes_text(ram)}",
                f"flash {flash.code_nbytes:,} code + {flash.weights_nbytes:,} weights, "
                f"{flash.method}",
                f"RAM {self.arena_nbytes:,} arena + {self.stack_nbytes:,} stack",
                str(self.plan) + self.advice,
                f"{self.map}\n",
                str(Table("Layers, in bytes", COLUMNS, rows, frozenset(COLUMNS[2:]))),
            ]
        )


def layers_of(program: Program, emitted: EmittedProgram) -> Iterator[Layer]:
    """The calls of a program; a constant counts where it is read first."""
    live, seen = live_nbytes(program), set[int]()
    for call in emitted.calls:
        weights = sum(emitted.constants[i].nbytes for i in new_constants(call, seen))
        yield Layer(name_of(call.step), call.step.mnemonic, weights, live[id(call.step)])


def new_constants(call: EmittedCall, seen: set[int]) -> Iterator[int]:
    """Numbers of the constants that no call before read."""
    for inner in call.nested():
        for pointer in inner.pointers:
            if pointer.place is Place.CONSTANT and pointer.index not in seen:
                seen.add(pointer.index)
                yield pointer.index


def live_nbytes(program: Program) -> Mapping[int, int]:
    """Bytes of the temporaries that live during each instruction, by its ``id``."""
    changes = [0] * (len(program.instructions) + 1)
    for interval in lifetimes(program):
        changes[interval.begin] += interval.nbytes
        changes[interval.end] -= interval.nbytes
    found, live = dict[int, int](), 0
    for step, change in zip(program.instructions, changes, strict=False):
        live += change
        found[id(step)] = live
    return found


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
