"""Footprint of a model on a target: flash and RAM by layer, and the map of the arena over time.

The map has the value that lies at each address while each kernel runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from quantglow.codegen.llvm.call_profile import call_name
from quantglow.codegen.llvm.emitted import EmittedCall, EmittedProgram, MemoryRegion
from quantglow.export.bundle import BundleCode, BundledModel, build_contents
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
from quantglow.memory.plans import MEMORY
from quantglow.support.classes import Concise
from quantglow.support.views import HasText


@dataclass(frozen=True)
class LayerFootprint:
    """A kernel's call: bytes of the weights that it reads first, and bytes in use meanwhile."""

    name: str
    operator: str
    weights_nbytes: int
    live_nbytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Footprint(Concise, HasText):
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
    layers: tuple[LayerFootprint, ...]
    map: MemoryMap

    @staticmethod
    def of(graph: Graph, target: str, schedule: str | None = None) -> Footprint:
        """The footprint of a graph.  Raises ``BackendError``, as a bundle of it would."""
        check_own(graph)
        bundle_isa = bundle_target(target)
        least = planned = plan_program(graph, bundle_isa, schedule=MEMORY)
        if schedule_for(bundle_isa, schedule) != MEMORY:
            planned = plan_program(graph, bundle_isa)
        emitted = code_for(planned, bundle_isa)
        model = BundledModel("model", graph.source_hash, is_integer(graph))
        bundle = build_contents(model, BundleCode((emitted,)), Placement.OBJECT)
        return Footprint(
            bundle_isa.name,
            bundle.flash,
            bundle.program.stack.most_nbytes,
            bundle.program.arena_nbytes,
            replace(planned.plan, every_order_nbytes=least.plan.every_order_nbytes),
            least.plan.peak_nbytes,
            tuple(_layer_footprints(planned.program, emitted)),
            MemoryMap.of(planned.program, planned.plan),
        )


def _layer_footprints(program: Program, emitted: EmittedProgram) -> Iterator[LayerFootprint]:
    """The calls of a program; a constant counts where it is read first."""
    live, counted = live_nbytes(program), set[int]()
    for call in emitted.calls:
        weights = sum(emitted.constants[i].nbytes for i in _new_constants(call, counted))
        yield LayerFootprint(call_name(call.step), call.step.mnemonic, weights, live[id(call.step)])


def _new_constants(call: EmittedCall, counted: set[int]) -> Iterator[int]:
    """Numbers of the constants that no call before read."""
    for inner in call.nested():
        for pointer in inner.pointers:
            if pointer.place is MemoryRegion.CONSTANT and pointer.index not in counted:
                counted.add(pointer.index)
                yield pointer.index


def live_nbytes(program: Program) -> Mapping[int, int]:
    """Bytes of the temporaries that live during each instruction, by its ``id``."""
    changes = [0] * (len(program.instructions) + 1)
    for interval in lifetimes(program):
        changes[interval.begin] += int(interval.nbytes)
        changes[interval.end] -= int(interval.nbytes)
    peaks, live = dict[int, int](), 0
    for step, change in zip(program.instructions, changes, strict=False):
        live += change
        peaks[id(step)] = live
    return peaks


@dataclass(frozen=True)
class ArenaBlock:
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
class MemoryMap(HasText):
    """The blocks of a plan, the largest first, over ``kernels`` kernels and ``nbytes`` bytes."""

    blocks: tuple[ArenaBlock, ...]
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
            ArenaBlock(
                interval.buffer.name,
                plan.offsets[interval.buffer],
                int(interval.nbytes),
                before[interval.begin],
                max(before[interval.end] - 1, before[interval.begin]),
            )
            for interval in lifetimes(program)
        ]
        blocks.sort(key=lambda block: (-block.nbytes, block.begin))
        return MemoryMap(tuple(blocks), count, plan.peak_nbytes)
