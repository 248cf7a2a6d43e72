"""Programs of calls that add rows to a state, in place.

A state has a capacity of rows.  A program takes it in one of two ways: as a cache that it extends,
which is a view of the first rows; or whole, by operators that write rows at their places
(GroupQueryAttention, whose samples have lengths of their own).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node, ancestors
from quantglow.ir.ops import Scatter
from quantglow.ir.symbolic.expression import Expression
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import symbols, to_expression
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.programs.symbolic_graphs import Template, case_template, fitting, free_case
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.general import CAPACITY, Donated, GeneralProgram, general_program
from quantglow.runtime.shapes.specializations import ServedShapes, served_by_general
from quantglow.support import debug
from quantglow.support.classes import Concise
from quantglow.support.errors import BackendError, QuantglowError
from quantglow.support.processes.threads import ForkSafeLock
from quantglow.transforms.program.copy_elision import view_source

MOST_PROGRAMS = 16
"""Maximum number of programs for the states of a model."""


@dataclass(frozen=True)
class CachePair:
    """An input, the output that is this input with more rows, and the axis of these."""

    input: str
    output: str
    axis: int


@dataclass(frozen=True)
class Growth:
    """The rows of the outputs, as an expression of the sizes of inputs that fit a template."""

    template: Template
    guards: Guards
    rows: Expression

    def at(self, case: Case) -> int | None:
        """The rows after a call; None where this does not tell."""
        values = fitting(self.template, case)
        if values is None or not self.guards.hold(values):
            return None
        return self.rows.at(values)


@dataclass(frozen=True)
class StateProgram:
    """A program for all lengths and capacities; ``_is_whole``: it reads the state as it is."""

    general: GeneralProgram
    is_whole: bool


@dataclass(eq=False, repr=False)
class StatePrograms(Concise):
    """The programs for all states of a model with the same pairs.  Thread-safe."""

    free: FreeShapes
    pairs: tuple[CachePair, ...]
    _growths: list[Growth] = field(default_factory=list)
    _programs: list[StateProgram] = field(default_factory=list)
    _refused: set[Template] = field(default_factory=set)
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    def rows(self, case: Case) -> int | None:
        """The rows of a state after a call; None where no program will serve it."""
        if (rows := self._rows(case)) is not None:
            return rows
        template = case_template(self.free.signature, case)
        with self._lock:
            if (rows := self._rows(case)) is not None:
                return rows
            if template in self._refused or len(self._growths) == MOST_PROGRAMS:
                return None
            try:
                self._growths.append(self._growth(template, case))
            except Exception as error:  # noqa: BLE001 - raised again while verifying
                self._refuse(template, error)
        return self._rows(case)

    def _rows(self, case: Case) -> int | None:
        counts = (growth.at(case) for growth in self._growths)
        return next((rows for rows in counts if rows is not None), None)

    def _growth(self, template: Template, case: Case) -> Growth:
        """How the first pair grows.  Raises ``QuantglowError``."""
        self.free.signature.check(case.shape_map)
        sizes, guards = symbols(fitting(template, case) or {})
        graph = self.free.shared_graph_at(free_case(template, sizes, case.values))
        pair = self.pairs[0]
        rows = to_expression(dict(graph.outputs)[pair.output].type.shape[pair.axis])
        guards.is_closed = True
        return Growth(template, guards, rows)

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs, and the shapes that each serves."""
        return tuple(served_by_general(program.general) for program in self._programs)

    def at(self, case: Case, capacity: int) -> LlvmExecutable | None:
        """The executable for a call on a state of this capacity; None where there is none."""
        if (executable := self._lookup(case, capacity)) is not None:
            return executable
        template = case_template(self.free.signature, case)
        with self._lock:
            if (executable := self._lookup(case, capacity)) is not None:
                return executable
            if template in self._refused or len(self._programs) == MOST_PROGRAMS:
                return None
            try:
                self._programs.append(self._build(case, capacity))
            except Exception as error:  # noqa: BLE001 - raised again while verifying
                self._refuse(template, error)
        return self._lookup(case, capacity)

    def _lookup(self, case: Case, capacity: int) -> LlvmExecutable | None:
        """The executable of a program that is there."""
        candidates = (self._bound(program, case, capacity) for program in self._programs)
        return next((executable for executable in candidates if executable is not None), None)

    def _refuse(self, template: Template, error: Exception) -> None:
        """Copy the caches of such calls.  Errors of our own are raised while verifying."""
        debug.log(1, f"no program in place for a state: {type(error).__name__}: {error}")
        self._refused.add(template)
        if debug.verifying() and not isinstance(error, QuantglowError):
            raise error

    def _bound(self, program: StateProgram, case: Case, capacity: int) -> LlvmExecutable | None:
        shown = self._whole(case, capacity) if program.is_whole else case
        more = {} if program.is_whole else {CAPACITY: capacity}
        values = program.general.values_at(shown, more)
        return None if values is None else program.general.code_at(values)

    def _whole(self, case: Case, capacity: int) -> Case:
        """The case of a call to which the state is shown with all its capacity."""
        shapes = dict(case.shapes)
        for pair in self.pairs:
            shape, axis = shapes[pair.input], pair.axis
            shapes[pair.input] = (*shape[:axis], capacity, *shape[axis + 1 :])
        return Case.of(shapes, case.value_map)

    def _build(self, case: Case, capacity: int) -> StateProgram:
        """A new program.  Raises ``QuantglowError`` where nothing can be done in place."""
        pairs = tuple((pair.input, pair.output, pair.axis) for pair in self.pairs)
        try:
            return self._program(case, Donated(pairs, CAPACITY, capacity), is_whole=False)
        except BackendError as error:
            debug.log(1, f"a state is not only extended: {error}")
            whole = self._whole(case, capacity)
            template = dict(case_template(self.free.signature, whole))
            name = str(template[self.pairs[0].input][self.pairs[0].axis])
            program = self._program(whole, Donated(pairs, name, capacity), is_whole=True)
            if _depends_on(program.general.lowered.graph, name, self.pairs):
                raise BackendError(f"more than its state depends on {name!r}") from error
            return program

    def _program(self, case: Case, donated: Donated, *, is_whole: bool) -> StateProgram:
        free = self.free
        program = general_program(
            free.signature, case, free.shared_graph_at, free.compiler, donated
        )
        if program is None:
            raise BackendError("the model is not one program for all shapes")
        program.loaded  # noqa: B018 - made here, so that it fails here
        return StateProgram(program, is_whole)


def _depends_on(graph: Graph, symbol: str, pairs: Iterable[CachePair]) -> bool:
    """Whether more than the states depends on their capacity: the states themselves, and the
    places of rows in them, may."""
    outputs = dict(graph.outputs)
    allowed: set[Node] = set()
    for pair in pairs:
        node: Node = outputs[pair.output]
        while not isinstance(node, Input):
            allowed.add(node)
            if isinstance(node, Scatter):
                allowed |= ancestors([node.indices])
                node = node.x
            elif (inner := view_source(node)) is not node:
                allowed |= set(node.operands)
                node = inner
            else:
                return True
        allowed.add(node)
    return any(symbol in node.symbols for node in graph.nodes if node not in allowed)
