"""Programs of models in which the results of some nodes decide sizes.

A program runs segment by segment.  When a segment has run whose results decide sizes, the segments
behind it are bound to these.  Where the guards of the program do not hold for them, or a size is 0
or 1, another program goes on with the values that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from quantglow.ir.graph.family import Case, FreeCase, ResultShapes
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Shapes, Signature
from quantglow.ir.symbolic.expression import LARGEST, Values
from quantglow.ir.symbolic.size import find_guards, symbols
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.programs.segments import result
from quantglow.runtime.programs.symbolic_graphs import (
    SymbolicGraph,
    Template,
    case_template,
    fitting,
    free_case,
)
from quantglow.runtime.shapes.general_segments import SegmentedProgram, cut_program
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import (
    BackendError,
    CompileBudgetError,
    FallbackError,
    InputError,
    ModelError,
    OutOfMemoryError,
    TypeRuleError,
    UnsupportedOpError,
)
from quantglow.support.observing import observer, observing
from quantglow.support.processes.threads import ForkSafeLock
from quantglow.transforms.partition import Executable, branches_apart
from quantglow.transforms.size_sources import check_sources, late_sizes

MOST_SHAPES = 64
"""Maximum number of shapes of results for which an executable keeps how a run goes on."""

MOST_PROGRAMS = 32
"""Maximum number of programs of a model: where their guards differ, each serves a part."""

MOST_OF_ONE_SIZE = 4
"""Maximum number of late sizes that have programs for them only: where sizes decide the graph, each
new size would make a program."""

NO_PROGRAM = "the sizes that its results have here are served by no program"

MOST_REFUSALS = 4
"""Maximum number of runs that programs of one kind of cases begin in vain."""


@dataclass(frozen=True, eq=False, repr=False)
class LateExecutable(Concise):
    """A program at a case of the inputs.

    ``sizes``: values of the symbols that have one before it runs.  ``other`` gives the executable
    of a case with shapes of results at which the program does not serve.
    """

    program: SegmentedProgram
    case: Case
    sizes: Values
    other: Callable[[Case], LateExecutable]
    _continuations: dict[ResultShapes, Values | LateExecutable] = field(default_factory=dict)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order."""
        return self._resume(feeds, {})

    def _resume(self, feeds: Mapping[str, Array], computed: Mapping[str, Array]) -> list[Array]:
        """All outputs; ``computed`` has values by name that need not be computed again."""
        program, sizes = self.program, dict(self.sizes)
        shapes, values = dict(self.case.late), {**feeds, **computed}
        for position in self._pending(values) if computed else range(len(program.segments)):
            segment = program.bind(position, sizes)
            if (watcher := observer()) is not None:
                program.show(position, sizes, watcher, values)
            values |= segment.results(values) if segment.is_taken(values) else segment.unused
            if deciding := program.late[position]:
                shapes |= {late.node.name: values[late.node.name].shape for late in deciding}
                continuation = self._continue(tuple(shapes.items()))
                if isinstance(continuation, LateExecutable):
                    reusable = continuation._reusable(program, values, shapes)
                    return continuation._resume(feeds, reusable)
                sizes |= continuation
            for name in segment.last_read:
                values.pop(name, None)
        return [result(node, values) for _, node in program.graph.outputs]

    def _continue(self, late: ResultShapes) -> Values | LateExecutable:
        """The values of symbols, given shapes of results; where the program does not serve these,
        the executable that goes on.  Raises ``QuantglowError`` where there is none."""
        continuation = self._continuations.get(late)
        if continuation is None:
            case = replace(self.case, late=late)
            values = self.program.values_at(case)
            continuation = self.other(case) if values is None else values
            for old in list(self._continuations)[: 1 - MOST_SHAPES]:
                self._continuations.pop(old, None)
            self._continuations[late] = continuation
        return continuation

    def _reusable(
        self, program: SegmentedProgram, values: Mapping[str, Array], late: Shapes
    ) -> dict[str, Array]:
        """The values of another program that have the same meaning in this one: the late ones with
        what their operators gave beside them, and those that are computed alike.  Values that
        passes made may only be called alike."""
        meanings, others = self.program.meanings, program.meanings
        decided = late.keys() | (self.program.beside_late & program.beside_late)
        return {
            name: array
            for name, array in values.items()
            if name in decided or meanings.get(name, b"") == others[name]
        }

    def _pending(self, values: Mapping[str, Array]) -> list[int]:
        """Positions of the segments whose results are needed and not there."""
        program = self.program
        missing = {node.name for _, node in program.graph.outputs}
        missing |= {late.node.name for late in chain.from_iterable(program.late)}
        missing -= values.keys() | dict(self.case.late).keys()
        positions = []
        for position, segment in reversed(list(enumerate(program.segments))):
            if any(name in missing for name, _ in segment.graph.outputs):
                positions.append(position)
                missing |= {node.name for node in segment.reads} - values.keys()
        return positions[::-1]


@dataclass(eq=False, repr=False)
class OrOther(Concise):
    """A program of a graph in which results have late sizes; ``make_other`` makes another way to
    run the model, which takes feeds that lead to sizes for which there is no program.

    ``refusals``: the number of such feeds so far, by kinds of cases.  After some of one ``kind``
    the program is not tried any more.  None: each run tries it, as results that are the same bits
    whatever ran before need.
    """

    program: Executable
    make_other: Callable[[], Executable]
    kind: Hashable = ()
    refusals: Counter[Hashable] | None = None

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order.  Raises ``InputError`` for feeds that no way takes."""
        refusals = Counter[Hashable]() if self.refusals is None else self.refusals
        if refusals[self.kind] >= MOST_REFUSALS:
            return self._other.run(feeds)
        try:
            return self._run_program(feeds)
        except (CompileBudgetError, OutOfMemoryError):
            raise
        except (BackendError, ModelError, TypeRuleError) as error:
            refusals[self.kind] += 1
            debug.log(1, f"the model runs another way: {error}")
            refusal = error
        try:
            return self._other.run(feeds)
        except FallbackError as error:
            said = " ".join(str(refusal).split()).rstrip(".")
            remedy = "" if "Remedy: " in said else ". Remedy: feed values that the model takes"
            raise InputError(f"no program serves these feeds: {said}{remedy}.") from error

    def _run_program(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs by the program; an observer sees only runs that come to their end."""
        with observing(None):
            results = self.program.run(feeds)
        return results if observer() is None else self.program.run(feeds)

    @cached_property
    def _other(self) -> Executable:
        return self.make_other()


@dataclass(eq=False, repr=False)
class LatePrograms(Concise):
    """Programs of one model by the cases that they serve.  All methods are thread-safe.

    ``graph_at`` makes the graph of a case.  The first program is for the input sizes of its case
    only, further ones for all input sizes.
    """

    signature: Signature
    graph_at: Callable[[FreeCase], Graph]
    compiler: Compiler
    _programs: list[SegmentedProgram] = field(default_factory=list)
    _cases: list[Case] = field(default_factory=list)
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    @property
    def programs(self) -> tuple[SegmentedProgram, ...]:
        """The programs, the oldest first."""
        return tuple(self._programs)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that the programs were made for."""
        return tuple(self._cases)

    def serving(self, case: Case) -> LateExecutable | None:
        """The executable of a case by a program that is there; None where none serves it."""
        for program in self.programs:
            if (sizes := program.values_at(case)) is not None:
                return LateExecutable(program, case, sizes, self.executable)
        return None

    def executable(self, case: Case, graph: Graph | None = None) -> LateExecutable:
        """The executable of a case, made if it is new; ``graph``: that of the case, if it is there.
        Raises ``QuantglowError``."""
        with self._lock:
            executable = self.serving(case)
            if executable is None:
                self._check_room(case)
                program = self._plan(case, graph)
                program.executable  # noqa: B018 - made here: it may add guards
                self._programs.append(program)
                self._cases.append(case)
                del self._programs[:-MOST_PROGRAMS], self._cases[:-MOST_PROGRAMS]
                executable = self.serving(case)
        assert executable is not None, "a program serves the case that it was made for"
        return executable

    def _check_room(self, case: Case) -> None:
        """Raise ``UnsupportedOpError`` for a size that no symbol has, and where sizes make too many
        float programs; int8 ones take the place of the oldest, as no other way to run a model gives
        the same bits."""
        large = [name for name, shape in case.late if max(shape, default=0) > LARGEST]
        if large:
            raise UnsupportedOpError([f"{name!r} has more than {LARGEST} rows" for name in large])
        if any(program.is_int8 for program in self._programs):
            return
        single = [program for program in self._programs if program.fixing_guards]
        fixed = {(program.source.template, program.fixing_guards) for program in single}
        if len(self._programs) >= MOST_PROGRAMS or len(fixed) >= MOST_OF_ONE_SIZE:
            sizes = ", ".join(dict(self._programs[-1].pinned)) or "results"
            raise UnsupportedOpError([f"the sizes of {sizes} decide what is computed behind them"])

    def _plan(self, case: Case, graph: Graph | None) -> SegmentedProgram:
        """A new program, planned at a case."""
        is_first = all(p.source.template == case.shapes for p in self._programs)
        template: Template = case.shapes if is_first else case_template(self.signature, case)
        sizes, guards = symbols(fitting(template, case) or {})
        if graph is None or sizes:
            free = free_case(template, sizes, case.values)
            graph = self.graph_at(replace(free, late=case.late, guards=guards))
        late = late_sizes(graph)
        sizes_of_results = (each.node.type.shape[each.axis] for each in late.values())
        guards = find_guards(sizes_of_results) or guards
        check_sources(graph, guards)
        ports = self.signature.outputs
        source = SymbolicGraph.of(graph, guards, template, case.values, None, ports)
        deciding = {each.node for each in late.values()}
        branches = [b for b in branches_apart(graph) if deciding.isdisjoint(b.nodes)]
        return cut_program(source, graph, guards, self.compiler, branches, dict(case.late))
