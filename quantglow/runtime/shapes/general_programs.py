"""The general programs of one model, planned and compiled as its shapes ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from quantglow.ir.graph.family import Case, FreeCase
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Signature
from quantglow.ir.symbolic.expression import Values
from quantglow.ir.symbolic.guards import Guards
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.program_table import Kind
from quantglow.runtime.native.sequences import BatchedExecutable
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.runtime.programs.symbolic_graphs import (
    SymbolicGraph,
    Template,
    case_template,
    fitting,
    without_ones,
)
from quantglow.runtime.shapes.general import GeneralProgram, join_graphs, symbolic_graph
from quantglow.runtime.shapes.general_segments import Retried, SegmentedProgram, program_for_all
from quantglow.support import debug
from quantglow.support.classes import Concise
from quantglow.support.errors import BackendError, QuantglowError
from quantglow.support.processes.threads import ForkSafeLock
from quantglow.transforms.partition import Executable

MOST_GENERALS = 16
"""Maximum number of general programs of a model: where their guards differ, each serves a part."""

HALVINGS = 2
"""The second program of the same symbols chooses tiles for a quarter of its sizes, and so on."""

ForAll = GeneralProgram | SegmentedProgram
"""A program for all shapes."""

Found = tuple[ForAll, Values]
"""A general program, and the values of its symbols at a case."""


@dataclass(eq=False, repr=False)
class GeneralPrograms(Concise):
    """General programs by the cases that they serve.  All methods are thread-safe.

    ``graph_at`` makes the graph of a case.  ``graphs``: graphs for all shapes, of which programs
    are made as cases ask for them; those of a file come first.
    """

    signature: Signature
    graph_at: Callable[[FreeCase], Graph]
    compiler: Compiler
    graphs: list[SymbolicGraph] = field(default_factory=list)
    _programs: list[ForAll] = field(default_factory=list)
    _joined: list[SymbolicGraph] = field(default_factory=list)
    _refused: set[Template] = field(default_factory=set)
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    def __len__(self) -> int:
        """The number of programs."""
        return len(self._programs)

    def __iter__(self) -> Iterator[ForAll]:
        """The programs, the oldest first."""
        return iter(list(self._programs))

    def build(
        self, case: Case, compile_piece: Callable[[Case], Executable], may_plan: bool
    ) -> Build | None:
        """The executable of a case and the facts of its program; None where no general program
        serves it.

        ``compile_piece`` gives that of a piece of the batch that none serves; ``may_plan``: a
        program is made if none is there.
        """
        with self._lock:
            serving = next(self._fitting(case), None) or (self._planned(case) if may_plan else None)
        if serving is None:
            return None
        program, values = serving
        if not self._takes(case, self._inputs(program, values)):
            return None
        pieces = program.pieces_at(values)
        if pieces == 1:
            served = self._code(case, may_plan)
            if served is None:
                return None
            program, code = served
            if not isinstance(code, LlvmExecutable):
                return self._build(program, Retried(code, partial(self._compile_apart, case)))
            return self._build(program, code) if self._takes(case, code.inputs) else None
        shapes = {name: (shape[0] // pieces, *shape[1:]) for name, shape in case.shapes}
        part = Case.of(shapes, case.value_map)
        by_all = self._code(part, True)
        piece = compile_piece(part) if by_all is None else by_all[1]
        if not isinstance(piece, LlvmExecutable):
            return None
        try:
            batched = BatchedExecutable(piece, pieces, *program.ends_at(values))
        except BackendError as error:  # one row may have a graph of its own, as behind a Squeeze
            debug.log(1, f"no pieces of {case}: {error}")
            return None
        return self._build(program if by_all is None else by_all[0], batched)

    def _build(self, program: ForAll, executable: Executable) -> Build:
        """An executable with the plans of its program, which are those at its hints."""
        facts = self.compiler.name, self.compiler.num_threads, program.seconds, program.segments
        return Build(executable, program.plannings, *facts)

    def _takes(self, case: Case, inputs: Mapping[str, Kind]) -> bool:
        """Whether a program reads the arrays of a case: in a file that was altered, its text may
        declare others than the model does."""
        return inputs == self.signature.kinds_at(case.shape_map)

    @staticmethod
    def _inputs(program: ForAll, values: Values) -> dict[str, Kind]:
        """Shapes and types of the inputs of a program."""
        names = [name for name, _ in program.source.template]
        kinds = ((kind.fixed_shape, kind.dtype.numpy) for kind in program.ends_at(values)[0])
        return dict(zip(names, kinds, strict=True))

    def _compile_apart(self, case: Case) -> Executable:
        """A program of its own."""
        return self.compiler.compile(self.graph_at(case)).executable

    def _fitting(self, case: Case) -> Iterator[Found]:
        """The programs whose plans fit a case."""
        for program in self._programs:
            if (values := program.values_at(case)) is not None:
                yield program, values

    def _code(self, case: Case, may_plan: bool) -> tuple[ForAll, Executable] | None:
        """A program that serves a case, and its code, made if it is not there yet."""
        with self._lock:
            for program, values in list(self._fitting(case)):
                if (code := self._compile(program, values)) is not None:
                    return program, code
            planned = self._planned(case) if may_plan else None
            code = None if planned is None else self._compile(*planned)
            return None if planned is None or code is None else (planned[0], code)

    def _compile(self, program: ForAll, values: Values) -> Executable | None:
        with self._refusing(program.source.template):
            return program.code_at(values)
        self._programs.remove(program)
        return None

    def graphs_at(self, case: Case) -> tuple[SymbolicGraph, ...]:
        """The graphs for all shapes, for a file: with one that serves a case, and one for batches
        and other sizes above 1, where there are such."""
        with self._lock:
            for target in (case, without_ones(self.signature, case)):
                template = case_template(self.signature, target)
                is_settled = self._serving(target) is not None or template in self._refused
                if not is_settled and len(self.graphs) < MOST_GENERALS:
                    with self._refusing(template):
                        self._add_graph(target, 0)
            return tuple(self.graphs)

    def joins_samples(self, case: Case, counts: Iterable[int]) -> bool:
        """Whether one graph is that of each of these numbers of samples of the case's shapes, in
        which they do not depend on each other."""
        with self._lock:
            graphs = (g for g in (*self._joined, *self.graphs) if g.sizes_at(case) is not None)
            stored = next((g for g in graphs if g.batch is not None), None)
            graph = stored or join_graphs(self.signature, case, self.graph_at)
            values = None if graph is None else graph.sizes_at(case)
            if graph is None or values is None:
                return False
            if stored is None:
                self._joined[MOST_GENERALS - 1 :] = [graph]
            return graph.joins_samples(values, counts)

    def _serving(self, case: Case) -> SymbolicGraph | None:
        return next((g for g in self.graphs if g.sizes_at(case) is not None), None)

    def _add_graph(self, case: Case, caution: int) -> tuple[SymbolicGraph, Graph, Guards] | None:
        """A new graph for all shapes, and its guards.  Raises ``QuantglowError``."""
        parts = symbolic_graph(self.signature, case, self.graph_at, self.compiler, caution=caution)
        if parts is not None:
            self.graphs.append(parts[0])
        return parts

    def _planned(self, case: Case) -> Found | None:
        """A new program made at a case; None where there is none."""
        template = case_template(self.signature, case)
        if len(self) == MOST_GENERALS or template in self._refused:
            return None
        with self._refusing(template):
            program = self._new_program(template, case)
            values = None if program is None else program.values_at(case)
            if program is not None and values is not None:
                self._programs.append(program)
                return program, values
        self._refused.add(template)
        return None

    def _new_program(self, template: Template, case: Case) -> ForAll | None:
        """A program planned for the sizes of a case; None where the model has none."""
        if self.compiler.target is None or not self.compiler.is_own:
            return None
        alike = sum(program.source.template == template for program in self)
        caution, source = HALVINGS * alike, self._serving(case)
        hints = fitting(template, case) or {}
        if source is not None:
            opened = partial(source.at, hints, caution)
            return program_for_all(source, hints, caution, opened, self.compiler)
        parts = self._add_graph(case, caution)
        if parts is None:
            return None
        source, graph, guards = parts
        return program_for_all(source, hints, caution, lambda: (graph, guards), self.compiler)

    @contextmanager
    def _refusing(self, template: Template) -> Iterator[None]:
        """Make no more programs like one that fails: each shape gets one of its own.  Errors of our
        own are raised while verifying.
        """
        try:
            yield
        except Exception as error:
            self._refused.add(template)
            debug.log(1, f"no program for all shapes: {type(error).__name__}: {error}")
            if debug.verifying() and not isinstance(error, QuantglowError):
                raise
