"""An ``EmittedProgram``: kernels and where their pointers lead, without an address.

It holds all that a loader needs and nothing of the process that made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.ir.ops.indexing import Gather, Scatter
from quantglow.ir.program.program import Compute, Instruction, View
from quantglow.ir.symbolic.size import Dim, Shape
from quantglow.memory.planner import OrderedPlan
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property

if TYPE_CHECKING:
    from quantglow.memory.unwritten import Blocks

CALL_WORK = 1000.0
"""Work in the time (some 4 nanoseconds) that a call takes besides its own."""


class MemoryRegion(Enum):
    """The memory that a pointer leads to."""

    ARENA = "arena"
    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    CHECK = "check"
    """An int64 of the running context, where a kernel stores an index that is out of range."""
    SIZE = "size"
    """No memory: the offset itself is the operand, a size that depends on free dimensions."""
    ROW = "row"
    """A row of the table of calls."""
    ARGUMENT = "argument"
    """A pointer among the arguments of all calls, which a loop moves."""


@dataclass(frozen=True)
class PointerExtent:
    """The elements that lie behind a pointer, and the buffer that they have to lie in.

    shape, strides  in elements; the trips of a loop that moves the pointer are an axis, too
    element_nbytes  of an element
    begin           of the buffer, in bytes from the beginning of the pointer's place
    nbytes          of the buffer
    """

    shape: Shape
    strides: Shape
    element_nbytes: int
    begin: int
    nbytes: Dim


@dataclass(frozen=True)
class Pointer:
    """An address that is known when the program is loaded: ``offset_bytes`` from the beginning of
    a place; ``index`` says which constant, input, output, check or (in a program for all shapes)
    buffer of the arena.  ``extent``: of the operand behind it, for the check of plans."""

    place: MemoryRegion
    index: int = 0
    offset_bytes: Dim = 0
    extent: PointerExtent | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class EmittedCall(Concise):
    """A row of the table of calls.

    step      the instruction that the kernel executes
    kernel    its text, label and estimated work; its pointers are replaced by ``pointers``
    nbytes    bytes of all operands
    body      of a loop: the calls of one trip
    """

    step: Instruction
    kernel: KernelCall
    pointers: tuple[Pointer, ...]
    nbytes: Dim
    body: tuple[EmittedCall, ...] = ()

    @property
    def items(self) -> Dim:
        """Independent pieces of work."""
        return self.kernel.items

    @property
    def work(self) -> float:
        """Estimated operations."""
        return self.kernel.work

    @property
    def indexing(self) -> Gather | Scatter | None:
        """The operator whose indices the kernel checks."""
        if not self.kernel.checked:
            return None
        assert isinstance(self.step, Compute) and isinstance(self.step.op, Gather | Scatter)
        return self.step.op

    def without_text(self) -> EmittedCall:
        """The same call once its kernel is loaded."""
        body = tuple(call.without_text() for call in self.body)
        return replace(self, kernel=replace(self.kernel, code=""), body=body)

    def nested(self) -> Iterator[EmittedCall]:
        """The calls of the body, and the call itself, in the order in which they were made."""
        for call in self.body:
            yield from call.nested()
        yield self


@dataclass(frozen=True, eq=False, repr=False)
class EmittedProgram(Concise):
    """A program for one target, ready to be loaded or written.

    rows          kernels in the order of execution, then those of the bodies of loops
    count         rows that are in no body
    constants     weights, packed or as they are, each once
    arena_nbytes  memory of all values in between
    inputs        names and views, in the order of the program
    outputs       the same
    order         the order of buffers in the arena, of a program for all shapes
    unwritten     ranges of the arena's blocks that kernels read before one writes there, known of a
                  program that becomes a bundle (``memory/unwritten.py``)
    """

    target: Target
    rows: tuple[EmittedCall, ...]
    count: int
    constants: tuple[Array, ...]
    arena_nbytes: int
    inputs: tuple[tuple[str, View], ...]
    outputs: tuple[tuple[str, View], ...]
    order: OrderedPlan | None = None
    unwritten: Blocks = ()

    @property
    def calls(self) -> tuple[EmittedCall, ...]:
        """The kernels that are in no body, in the order of execution."""
        return self.rows[: self.count]

    @cached_property
    def indexings(self) -> tuple[Gather | Scatter, ...]:
        """The operators whose indices kernels check, in the order of the checks."""
        every = (call for outer in self.calls for call in outer.nested())
        return tuple(op for call in every if (op := call.indexing) is not None)

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct LLVM IR texts, in the order of their first call."""
        return tuple(dict.fromkeys(call.kernel.ir for call in self.rows))

    @property
    def work(self) -> float:
        """Estimated operations of all calls."""
        return sum(call.work for call in self.calls)

    def without_texts(self) -> EmittedProgram:
        """The same program once its kernels are loaded: texts keep their generators alive."""
        return replace(self, rows=tuple(call.without_text() for call in self.rows))
