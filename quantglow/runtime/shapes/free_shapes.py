"""Programs of a model with free dimensions: for all shapes, or one for each case of its inputs.

The first combination of input shapes gets a program for all shapes (``general``), which serves
further ones where its guards hold; where none serves a combination, it is compiled on first use.
So is the graph of a file that has none for all shapes: it needs no import.  If shapes or branches
depend on the values of small inputs (a sampling rate), these belong to the case, too; after
``MOST_VALUES`` of them at the same shapes, one program serves all further values, with onnxruntime
at the operators that they decide.

A shape that comes often gets a program of its own in the background (``program_cache.OftenUsed``).
If the user asks for it, onnxruntime answers while the program of a new case is compiled
(``background``).

The last used programs are kept: at most ``MOST_PROGRAMS``, and as many as fit ``MOST_NBYTES`` (the
first one always stays).  Their kernels and constants are shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import partial

from quantglow.interpreter import check_names, check_types
from quantglow.ir.graph.family import Case, FreeCase, SharedArrays
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import PortDim, Shapes, Signature
from quantglow.ir.symbolic.size import FixedShape
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.runtime.programs.symbolic_graphs import SymbolicGraph
from quantglow.runtime.saved.saving import Freedom
from quantglow.runtime.shapes.background import Meanwhile
from quantglow.runtime.shapes.general_programs import GeneralPrograms
from quantglow.runtime.shapes.late_programs import LateExecutable, LatePrograms, OrOther
from quantglow.runtime.shapes.program_cache import (
    OFTEN,
    Check,
    KeptPrograms,
    OftenUsed,
    StoredCases,
)
from quantglow.runtime.shapes.specializations import (
    AtCase,
    Fallback,
    Served,
    ServedShapes,
    Specialisation,
    served_by_general,
    served_by_own,
    served_case,
    with_names,
)
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import (
    CompileBudgetError,
    FallbackError,
    FileFormatError,
    InputError,
    ModelError,
    QuantglowError,
    TypeRuleError,
    UndecidedError,
    UnsupportedOpError,
)
from quantglow.support.processes.threads import ForkSafeLock, SingleFlight, check_not_ending
from quantglow.transforms.partition import Executable

MOST_PROGRAMS = 32
MOST_VALUES = 16
"""Maximum number of programs for values of inputs at the same shapes."""

MOST_NBYTES = 2**30
"""Maximum size of the arenas of all programs; an arena is the memory that a program needs beside
the constants that all share."""

MOST_ADDED = 0.05
"""Share of constants that a graph for all shapes may add to a file; else it stays out of it."""


@dataclass(frozen=True, eq=False, repr=False)
class Opened(Concise):
    """The graphs of a file: for one ``case`` if it was compiled for one, and for all shapes."""

    graph: Graph
    case: Case | None = None
    general: tuple[SymbolicGraph, ...] = ()


NOTHING_OPENED = Opened(Graph((), ()))
"""A model of this process; its file has a graph without outputs until it is run."""


@dataclass(eq=False, repr=False)
class FreeShapes(Concise):
    """Programs by the cases of the inputs.  All methods are thread-safe.

    ``graph_at`` makes the graph of a case; ``fallback`` makes a replacement if that cannot be
    compiled, from the case and the reasons; ``freedom`` has the contents of a file that repeat
    this, given the graph of a case.  ``opened`` is what a file has.  ``deciding`` are the inputs
    whose values belong to a case; ``graph_at`` may ask for more by ``UndecidedError``.
    ``identity`` stands for all of a model's contents in the names of stored programs; it is empty
    for one that comes from no file.  ``is_late``: nodes decide sizes.  These may agree in a run
    only: then there is no graph, and the fallback runs the model.  ``inner`` gives the programs of
    models inside of this one.
    """

    signature: Signature
    graph_at: Callable[[FreeCase], Graph]
    compiler: Compiler
    fallback: Fallback | None = None
    freedom: Callable[[Case, Graph], Freedom] | None = None
    deciding: tuple[str, ...] = ()
    opened: Opened = NOTHING_OPENED
    identity: str = ""
    is_late: bool = False
    inner: Callable[[], tuple[ServedShapes, ...]] = tuple
    most_values: int = MOST_VALUES
    most_programs: int = MOST_PROGRAMS
    most_nbytes: int = MOST_NBYTES
    _arrays: SharedArrays = field(default_factory=SharedArrays, init=False)
    _cache: KeptPrograms = field(init=False)
    _flight: SingleFlight[Case, Served] = field(default_factory=SingleFlight, init=False)
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock, init=False)

    def __post_init__(self) -> None:
        limits = self.most_values, self.most_programs, self.most_nbytes
        self._cache = KeptPrograms(*limits, self.opened.case)

    @property
    def target(self) -> str:
        """Name of the code's target."""
        return self.compiler.name

    @property
    def num_threads(self) -> int:
        """Maximum number of threads of a call."""
        return self.compiler.num_threads

    @property
    def is_empty(self) -> bool:
        """Whether nothing is compiled yet."""
        return self._cache.first is None and self.opened.case is None

    @property
    def first(self) -> Served:
        """The first program that was made; for a model from a file, that of its graph."""
        if self._cache.first is None and self.opened.case is not None:
            self.compile_opened(self.opened.case)
        if (first := self._cache.first) is None:
            raise InputError(
                "the model leaves dimensions free and was not run yet, so there is no program to "
                "look at. Remedy: run it once, or compile it with input_shapes."
            )
        return first

    @property
    def shapes(self) -> list[dict[str, FixedShape]]:
        """Input shapes of the programs that are kept, the last used one last."""
        return [dict(case.shapes) for case in self.cases]

    @property
    def cases(self) -> list[Case]:
        """Cases of the programs that are kept, the last used one last."""
        with self._lock:
            return list(self._cache.programs)

    @property
    def cases_with_results(self) -> list[Case]:
        """The cases, and those of programs for sizes that results had."""
        inner = self.fallback.cases_with_results() if self.fallback else []
        return list(dict.fromkeys([*self.cases, *self.late.cases, *inner]))

    def contents(self) -> tuple[Graph, Freedom | None]:
        """The first graph, or that of a file before there is one, and the other contents."""
        first = self._cache.first
        graph = self.opened.graph if first is None else first.graph
        case = self.opened.case if first is None else served_case(first)
        values = None if case is None else case.value_map
        if self.is_late or graph.has_free_sizes:  # a file has graphs of plain sizes
            graph, case = self.opened.graph, None
        if self.freedom is None:
            return graph, None
        freedom = self.freedom(Case.of({}, values) if case is None else case, graph)
        general = () if case is None else self.generals.graphs_at(case)
        small = tuple(each for each in general if each.share_added(graph) <= MOST_ADDED)
        return graph, replace(freedom, general=small)

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs that are kept."""
        with self._lock:
            programs = self._cache.programs.values()
            single = [f for f in programs if not (f.is_general or is_late(f.build.executable))]
        return (
            *(served_by_own(served_case(f).shapes, f.build) for f in single if not f.is_in_parts),
            *map(served_by_general, (*self.generals, *self.late.programs)),
            *self.inner(),
            *(self.fallback.served() if self.fallback else ()),
        )

    def graph_for(self, shapes: Shapes) -> Graph:
        """A graph that is not compiled."""
        self.signature.check(with_names(self.signature, shapes))
        values = served_case(self.first).values if self.deciding else None
        return self.graph_at(Case.of(shapes, dict(values or ())))

    def joins_samples(self, shapes: Shapes, counts: Iterable[int]) -> bool:
        """Whether one graph is that of each of these numbers of samples of some shapes, in which
        they do not depend on each other."""
        if self.deciding:
            return False  # values of a batch decide otherwise than those of its samples
        try:
            return self.generals.joins_samples(Case.of(shapes), counts)
        except QuantglowError:
            return False  # The model takes no two samples of each input.

    def on_threads(self, num_threads: int) -> FreeShapes:
        """The same for another number of threads; its first case is ready."""
        return self.with_compiler(replace(self.compiler, num_threads=num_threads))

    def with_compiler(self, compiler: Compiler) -> FreeShapes:
        """The same for another compiler; its first case is ready."""
        first, opened = self._cache.first, self.opened
        case = opened.case if first is None else served_case(first)
        if first is not None and not first.build.is_part:  # its graph is that of the whole model
            opened = Opened(first.graph, case, tuple(self.generals.graphs))
        fallback = self.fallback and self.fallback.with_compiler(compiler)
        programs = replace(self, compiler=compiler, opened=opened, fallback=fallback)
        if case is not None:
            programs.prepare(case)
        return programs

    def warm_up(self, shapes: Shapes, specialised: bool = False) -> None:
        """Compile the program of some shapes; inputs whose values decide have those of the first
        call."""
        self.signature.check(with_names(self.signature, shapes))
        values = served_case(self.first).values if self.deciding else None
        case = Case.of(shapes, dict(values) if values else None)
        served = self.prepare(case)
        if specialised and _is_shared(served):
            with self._lock:
                self._often.leave(case)
            self._specialize(case, check_not_ending)

    def prepare(self, case: Case) -> Served:
        """The program of a case, compiled if it is new."""
        return self._at(case)

    def compile_opened(self, case: Case) -> None:
        """Compile the program of the case of ``opened``.  Raises the errors of the compiler."""
        graph = self.opened.graph
        served: Served | None = self._served_shapes(case, may_plan=True)
        if served is None:
            served = Specialisation(graph, self.compiler.compile(graph), case)
        with self._lock:
            self._keep(case, served)

    def at(self, feeds: Mapping[str, Array]) -> Served:
        """The program for the case of ``feeds``, compiled if it is new: now, or in a thread while
        this is the whole model in onnxruntime.
        """
        check_names([port.name for port in self.signature.inputs], feeds)
        meanwhile = self._meanwhile
        if meanwhile is None or not meanwhile.log.is_on:
            return self.compile_at(feeds)
        return meanwhile.at(feeds)

    def begin(self, feeds: Mapping[str, Array], done: Callable[[], object]) -> Served | None:
        """As ``at``, for callers with an answer of their own: None while the program is compiled in
        a thread, which calls ``done`` when it has ended, be it with an error.
        """
        check_names([port.name for port in self.signature.inputs], feeds)
        meanwhile = self._meanwhile
        if meanwhile is None or not meanwhile.log.is_on:
            return self.compile_at(feeds)
        return meanwhile.begin(feeds, done)

    def calls_until_own(self, served: Served) -> int:
        """Number of calls of a program after which its case should have one of its own; 0 where
        this is one, or none can be made."""
        if not _is_shared(served):
            return 0
        with self._lock:
            return OFTEN if self._often.may_start(served_case(served)) else 0

    def start_own(self, served: Served, done: Callable[[], object]) -> bool:
        """Whether a program of its own is compiled in a thread for the case of one that ran often
        where nobody counted; the thread calls ``done`` when it has ended, be it without success."""
        if not _is_shared(served):
            return False
        with self._lock:
            return self._often.start(served_case(served), done)

    @cached_property
    def _meanwhile(self) -> Meanwhile | None:
        log = self.compiler.answers
        return Meanwhile(self, log) if log is not None and self.fallback is not None else None

    def case_at(self, feeds: Mapping[str, Array]) -> Case:
        """The case of feeds, as far as it is known which values decide."""
        return Case.fitting(feeds, self.deciding)

    def ready(self, case: Case) -> Served | None:
        """The program of a case; None if it is not compiled."""
        return self._lookup(case)[1]

    def check(self, case: Case, feeds: Mapping[str, Array]) -> None:
        """Raise ``InputError`` for feeds that the model does not take."""
        check_types(self.signature, feeds)
        self.signature.check(case.shape_map, 0 if self.fallback or self.is_late else 1)

    def in_onnxruntime(self, case: Case) -> Served:
        """The whole model in onnxruntime.  Raises ``FallbackError``."""
        assert self.fallback is not None
        return self.fallback.meanwhile(case)

    def load_other(self) -> None:
        """Load the model in onnxruntime, if it answers calls while a program is compiled: no call
        waits for that.  Where onnxruntime does not take the model, calls wait for the compiler."""
        if self._meanwhile is None:
            return
        ports = self.signature.inputs
        sizes = {port.name: tuple(_least(dim) for dim in port.dims or ()) for port in ports}
        try:
            self.in_onnxruntime(Case.of(sizes))
        except FallbackError as error:
            debug.log(1, f"onnxruntime does not answer: {error}")

    def compile_at(self, feeds: Mapping[str, Array]) -> Served:
        """The program for the case of ``feeds``, compiled now if it is new.

        Threads that ask for the same new case wait for one of them; others continue.
        """
        while True:
            deciding = self.deciding
            try:
                return self._at(Case.fitting(feeds, deciding), feeds)
            except UndecidedError as error:
                with self._lock:
                    self.deciding = tuple(sorted({*self.deciding, *error.inputs}))
                if self.deciding == deciding:
                    raise

    def _at(self, case: Case, feeds: Mapping[str, Array] | None = None) -> Served:
        """The program of a case; ``feeds`` are checked before it is compiled."""
        if (served := self._lookup(case)[1]) is not None:
            return served
        return self._flight.result(partial(self._lookup, case), partial(self._compile_new, feeds))

    def _lookup(self, case: Case) -> tuple[Case, Served | None]:
        """The case that has a program for this one, and that, if it is there."""
        with self._lock:
            case, served = self._cache.used(case)
            if served is not None and _is_shared(served):
                self._often.called(case)
        return case, served

    def _compile_new(self, feeds: Mapping[str, Array] | None, case: Case) -> Served:
        """A new program, which is kept."""
        if feeds is not None:
            check_types(self.signature, feeds)
        served = self._compile(case)
        with self._lock:
            self._keep(case, served)
            self._cache.count(case)
        return served

    def _compile(self, case: Case) -> Served:
        if (served := self._served_shapes(case)) is not None:
            return served
        self.signature.check(case.shape_map, 0 if self.fallback or self.is_late else 1)
        if self.fallback and (replacement := self.fallback.settled_program(case)) is not None:
            return replacement
        try:
            if (late := self.late.serving(case)) is not None:
                return self._at_late(case, late)
            if (stored := self._stored.program(case)) is not None:
                return stored
            if (served := self._served_shapes(case, may_plan=True)) is not None:
                return served
            graph = self.shared_graph_at(case)
            if graph.has_free_sizes:
                return self._at_late(case, self.late.executable(case, graph))
            build = self.compiler.compile(graph)
            self._stored.keep(case, graph)
        except (CompileBudgetError, FileFormatError):
            raise
        except QuantglowError as error:
            if isinstance(error, UndecidedError) and case.values is not None:
                raise
            if self.fallback and isinstance(error, UnsupportedOpError | FallbackError):
                return self.fallback(case, error.reasons)
            if self.is_late and self.fallback and isinstance(error, ModelError | TypeRuleError):
                return self.fallback(case, (str(error),))
            said = str(error).rstrip(".")
            if "Remedy: " not in said:
                said += ". Remedy: feed shapes that its operators agree with"
            raise InputError(
                f"the model cannot be compiled for inputs of the shapes {case}: {said}."
            ) from error
        return Specialisation(graph, build, case)

    def _at_late(self, case: Case, executable: LateExecutable) -> AtCase:
        """The program of a case in whose graph nodes decide sizes."""
        program, compiler = executable.program, self.compiler
        facts = program.plannings, compiler.name, compiler.num_threads
        runs: LateExecutable | OrOther = executable
        if self.fallback is not None:
            refusals = None if program.is_int8 else Counter[Hashable]()
            other = partial(self.fallback.executable, case)
            runs = OrOther(executable, other, refusals=refusals)
        build = Build(runs, *facts, segments=program.segments, is_part=True)
        return AtCase(self.signature, self.shared_graph_at, build, case)

    @cached_property
    def late(self) -> LatePrograms:
        """The programs of graphs in which nodes decide sizes."""
        return LatePrograms(self.signature, self.shared_graph_at, self.compiler)

    @cached_property
    def generals(self) -> GeneralPrograms:
        """The programs for all shapes."""
        if self.opened.case is not None:
            self._arrays.graph(self.opened.graph)
        graphs = list(self.opened.general)
        return GeneralPrograms(self.signature, self.shared_graph_at, self.compiler, graphs)

    def shared_graph_at(self, case: FreeCase) -> Graph:
        """The graph of a case; equal constants of all graphs share memory."""
        if case == self.opened.case:
            return self.opened.graph
        with debug.time_stage("graph of shapes"):
            return self._arrays.graph(self.graph_at(case))

    def _served_shapes(self, case: Case, may_plan: bool = False) -> AtCase | None:
        """The program of a case by one for all shapes, which is made if it may be; None where none
        serves it, for the graph of a file, and where its graph may show that sizes are late.
        """
        is_of_file = bool(self.identity) and case == self.opened.case
        is_unknown = self.is_late and self._cache.first is None
        if ((is_of_file or is_unknown) and not self.opened.general) or self.late.programs:
            return None
        if (build := self.generals.build(case, self._piece, may_plan)) is None:
            return None
        return AtCase(self.signature, self.shared_graph_at, build, case, is_general=True)

    @cached_property
    def _stored(self) -> StoredCases:
        return StoredCases(self.identity, self.signature, self.shared_graph_at, self.compiler)

    def _piece(self, case: Case) -> Executable:
        """The program of a piece of a batch, as if that had been fed."""
        return self._at(case).build.executable

    @cached_property
    def _often(self) -> OftenUsed:
        return OftenUsed(self._specialize)

    def _specialize(self, case: Case, check: Check) -> None:
        """Replace the program of a case by one of its own, if that can be compiled.  Errors of our
        own are raised while verifying.
        """
        try:
            graph = self.shared_graph_at(case)
            self.compiler.load_kernels(graph, check)
            specialization = Specialisation(graph, self.compiler.compile(graph), case)
        except Exception as error:
            debug.log(1, f"no program of its own for {case}: {type(error).__name__}: {error}")
            if debug.verifying() and not isinstance(error, QuantglowError | CancelledError):
                raise
            return
        with self._lock:
            current = self._cache.programs.get(case)
            if current is not None and _is_shared(current):  # else another thread was faster
                self._keep(case, specialization)

    def _keep(self, case: Case, served: Served) -> None:
        """Make room for a new program; the caller holds the lock."""
        for dropped in self._cache.add(case, served):
            self._often.forget(dropped)


def is_late(executable: Executable) -> bool:
    """Whether sizes of a program are known when a part of it has run."""
    return isinstance(executable, LateExecutable | OrOther)


def _is_shared(served: Served) -> bool:
    """Whether a program for all shapes serves this one, and one of its own may be faster."""
    return served.is_general and not served.is_in_parts


def _least(dim: PortDim) -> int:
    """The dimension, or the smallest size of a free one."""
    return dim if isinstance(dim, int) else 1
