"""Flash and RAM that a model takes on a target, by layer, before a bundle is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from quantglow.backends.llvm.aot.weights import Placement
from quantglow.backends.llvm.emitted import EmittedCall, EmittedProgram, Place
from quantglow.backends.llvm.runtime.profiler import name_of
from quantglow.bundle import Code, Model, contents_of
from quantglow.bundle.flash import Flash
from quantglow.concise import Concise
from quantglow.graph.graph import Graph
from quantglow.instr.program import Program
from quantglow.memory.planner import MemoryPlan, lifetimes
from quantglow.memory.schedules import MEMORY
from quantglow.report.display.tables import Table, nbytes_text
from quantglow.report.memory.memory_map import MemoryMap
from quantglow.runtime.bundles import bundle_target, check_own, code_for, is_integer, schedule_for
from quantglow.runtime.planning import plan_program

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
