"""Specializations: programs of one compiled model, of one shape or of free ones.

Also their replacements in the cases in which a model cannot be compiled to its end, and the entries
of a report about them: which shapes each program serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from quantglow.interpreter import check_feeds, check_names, check_types
from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import PortDim, Shapes, Signature
from quantglow.ort.fallback import FallbackNode
from quantglow.runtime.programs.answers import Answers
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.runtime.saved.saving import Freedom
from quantglow.runtime.shapes.general import GeneralProgram
from quantglow.runtime.shapes.general_segments import SegmentedProgram
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.observing import observer
from quantglow.transforms.partition import Executable

FOR_ONE, FOR_ALL, WHOLE = "for this shape", "for all shapes", "where it cannot be compiled"
MEANWHILE = "while it is compiled"
"""How programs were made."""

MOST_CONDITIONS = 6
"""Conditions of a program that are shown."""


@dataclass(frozen=True)
class ServedShapes:
    """A program of a model.

    ``shapes``: those that it serves, ``x [N, 3, H, W]``.  ``program``: how it was made.
    ``conditions``: of the symbols, under which it serves them.  ``elsewhere``: operators that it
    leaves to other backends.
    """

    shapes: str
    program: str
    conditions: tuple[str, ...] = ()
    elsewhere: str = ""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ServedShapes:
        """The entry from the result of ``dataclasses.asdict``.  Raises ``KeyError`` or
        ``TypeError``."""
        conditions = tuple(map(str, data["conditions"]))
        shapes, program, elsewhere = (str(data[k]) for k in ("shapes", "program", "elsewhere"))
        return ServedShapes(shapes, program, conditions, elsewhere)


def served_by_own(shapes: Iterable[tuple[str, Iterable[PortDim]]], build: Build) -> ServedShapes:
    """The entry of a program that was compiled for one shape."""
    return ServedShapes(_shapes_text(shapes), FOR_ONE, elsewhere=_elsewhere_text(build.fallback))


def served_by_onnxruntime(
    shapes: Iterable[tuple[str, Iterable[PortDim]]], why: str
) -> ServedShapes:
    """The entry of a model that runs whole in onnxruntime where it cannot be compiled."""
    return ServedShapes(_shapes_text(shapes), WHOLE, elsewhere=why)


def served_meanwhile(calls: Answers) -> ServedShapes:
    """The entry of calls that onnxruntime answered."""
    number = f"{calls.onnxruntime} call{'s' if calls.onnxruntime > 1 else ''}"
    return ServedShapes(
        calls.shapes, MEANWHILE, elsewhere=f"{number} of the whole model in onnxruntime"
    )


def _elsewhere_text(nodes: Iterable[FallbackNode]) -> str:
    """``2 Gather in onnxruntime``."""
    counts = Counter((node.op, node.backend) for node in nodes)
    return ", ".join(f"{n} {op} in {backend}" for (op, backend), n in counts.items())


def served_by_general(program: GeneralProgram | SegmentedProgram) -> ServedShapes:
    """The entry of a program for all shapes."""
    conditions = list(program.guards.texts)
    if len(conditions) > MOST_CONDITIONS:
        hidden = len(conditions) - MOST_CONDITIONS + 1
        conditions = [*conditions[: MOST_CONDITIONS - 1], f"and {hidden} more"]
    elsewhere = _elsewhere_text(program.fallback)
    return ServedShapes(
        _shapes_text(program.source.template), FOR_ALL, tuple(conditions), elsewhere
    )


def _shapes_text(shapes: Iterable[tuple[str, Iterable[PortDim]]]) -> str:
    """``x [N, 3, H, W], mask [N, T]``."""
    return ", ".join(f"{name} [{', '.join(map(str, dims))}]" for name, dims in shapes)


@dataclass(frozen=True, eq=False, repr=False)
class Specialisation(Concise):
    """A graph and its machine code, with its ``case`` if it was made for one."""

    is_general: ClassVar[bool] = False

    graph: Graph
    build: Build
    case: Case | None = None

    @property
    def is_in_parts(self) -> bool:
        """Whether a part of the model is behind the graph, or onnxruntime runs all of it."""
        return self.build.is_part

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order.  Raises ``InputError`` for feeds that do not fit."""
        check_feeds(self.graph, feeds)
        show_run(self, feeds)
        return self.build.executable.run(feeds)


@dataclass(frozen=True, eq=False, repr=False)
class AtCase(Concise):
    """A program at one ``case``, whose graph ``graph_at`` makes when somebody asks for it.

    ``is_general``: it is a program for all shapes, at one of them; else an earlier process compiled
    it for this case only.
    """

    signature: Signature
    graph_at: Callable[[Case], Graph]
    build: Build
    case: Case
    is_general: bool = False

    @property
    def is_in_parts(self) -> bool:
        """Whether a part of the model is behind the graph."""
        return self.build.is_part

    @cached_property
    def graph(self) -> Graph:
        """The graph of the case."""
        return self.graph_at(self.case)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order.  Raises ``InputError`` for feeds of other types."""
        check_types(self.signature, feeds)
        show_run(self, feeds)
        return self.build.executable.run(feeds)


Served = Specialisation | AtCase
"""The program of a case."""


def show_run(program: Served, feeds: Mapping[str, Array]) -> None:
    """Show an observer the graph that runs; parts of a model show theirs themselves."""
    watcher = observer()
    if watcher is not None and not program.is_in_parts:
        watcher.saw_graph(program.graph, feeds)


class ModelPrograms(Protocol):
    """The programs of a compiled model."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""

    @property
    def compiler(self) -> Compiler:
        """The compiler of its programs."""

    @property
    def cases(self) -> list[Case]:
        """Cases of the programs that are kept, the last used one last."""

    @property
    def cases_with_results(self) -> list[Case]:
        """The cases, and those of programs for sizes that results had."""

    @property
    def target(self) -> str:
        """Name of the code's target."""

    @property
    def num_threads(self) -> int:
        """Maximum number of threads of a call."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is compiled yet."""

    @property
    def first(self) -> Served:
        """The program that the report is about.  Raises ``InputError`` if nothing is
        compiled yet.
        """

    def contents(self) -> tuple[Graph, Freedom | None]:
        """The graph that a file has, and its other contents; None if there are no others."""

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of a model with free dimensions, and the shapes that each serves."""

    def graph_for(self, shapes: Shapes) -> Graph:
        """The graph at some input shapes, with the deciding values of the first one.

        Raises ``InputError`` for shapes that the model does not take.
        """

    def warm_up(self, shapes: Shapes, specialised: bool = False) -> None:
        """Compile the program of some input shapes, unless it is there; ``specialised``: one of
        their own.  Raises ``InputError``."""

    def at(self, feeds: Mapping[str, Array]) -> Served:
        """The program for the shapes of some arrays.  Raises ``InputError``."""

    def on_threads(self, num_threads: int) -> ModelPrograms:
        """The same for another number of threads; both share constants and kernels."""

    def with_compiler(self, compiler: Compiler) -> ModelPrograms:
        """The same model, compiled anew for the first case."""


@dataclass(frozen=True, eq=False, repr=False)
class OneShape(Concise):
    """A model whose shapes are all fixed, and the compiler that made it."""

    first: Specialisation
    compiler: Compiler

    @property
    def cases(self) -> list[Case]:
        """None: its program serves one shape."""
        return []

    @property
    def cases_with_results(self) -> list[Case]:
        """None."""
        return []

    @property
    def is_empty(self) -> bool:
        """False: its program exists."""
        return False

    def contents(self) -> tuple[Graph, None]:
        """The only graph."""
        return self.first.graph, None

    def served(self) -> tuple[ServedShapes, ...]:
        """Nothing: its shapes are fixed."""
        return ()

    def graph_for(self, shapes: Shapes) -> Graph:
        """The only graph."""
        self.signature.check(with_names(self.signature, shapes))
        return self.first.graph

    def warm_up(self, shapes: Shapes, specialised: bool = False) -> None:
        """Check the shapes: the only program exists."""
        self.signature.check(with_names(self.signature, shapes))

    @property
    def signature(self) -> Signature:
        """The types of the graph."""
        return self.first.graph.signature

    @property
    def target(self) -> str:
        """Target of the only program."""
        return self.first.build.target

    @property
    def num_threads(self) -> int:
        """Maximum number of threads of the only program."""
        return self.first.build.num_threads

    def at(self, feeds: Mapping[str, Array]) -> Specialisation:
        """The only program; ``run`` checks the feeds."""
        return self.first

    def on_threads(self, num_threads: int) -> OneShape:
        """The same graph, compiled for another number of threads."""
        return self.with_compiler(replace(self.compiler, num_threads=num_threads))

    def with_compiler(self, compiler: Compiler) -> OneShape:
        """The same graph, compiled anew."""
        graph = self.first.graph
        return OneShape(Specialisation(graph, compiler.compile(graph)), compiler)


def with_names(signature: Signature, shapes: Shapes) -> Shapes:
    """The shapes.  Raises ``InputError`` unless they have the names of all inputs and no others."""
    check_names([port.name for port in signature.inputs], shapes)
    return shapes


def served_case(served: Served) -> Case:
    """The case of a program."""
    return served.case or Case.of(
        {node.name: node.type.fixed_shape for node in served.graph.inputs}
    )


class Fallback(Protocol):
    """Other ways to run a model than the programs of its graph.  All methods are thread-safe."""

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Served:
        """The program for a case that cannot be compiled, for these reasons."""

    def executable(self, case: Case) -> Executable:
        """Another way at a case whose program does not serve all feeds: other ones do not become
        settled by it."""

    def settled_program(self, case: Case) -> Served | None:
        """The program for a case like one that could not be compiled; None for other cases."""

    def meanwhile(self, case: Case) -> Served:
        """The whole model in onnxruntime, for a case whose program is not ready.  Raises
        ``FallbackError``."""

    def with_compiler(self, compiler: Compiler) -> Fallback:
        """The same for another compiler."""

    def served(self) -> tuple[ServedShapes, ...]:
        """Entries of its programs."""

    def cases_with_results(self) -> list[Case]:
        """The cases of its programs, with the sizes that results had."""

    def original(self) -> bytes:
        """The ONNX model that it runs."""


@dataclass(frozen=True, eq=False)
class FallbackOnUse:
    """The fallback that ``make`` makes for the first case that needs it.

    ``exact``: the whole model by ``background.Meanwhile``, if another than that of the fallback is
    at hand.
    """

    make: Callable[[Compiler], Fallback]
    compiler: Compiler
    exact: Callable[[Case], Served] | None = None

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Served:
        """The program for a case that cannot be compiled, for these reasons."""
        return self._fallback(case, reasons)

    def executable(self, case: Case) -> Executable:
        """Another way at a case whose program does not serve all feeds."""
        return self._fallback.executable(case)

    def with_compiler(self, compiler: Compiler) -> FallbackOnUse:
        """The same for another compiler."""
        return replace(self, compiler=compiler)

    @cached_property
    def _fallback(self) -> Fallback:
        return self.make(self.compiler)

    @property
    def _begun(self) -> Fallback | None:
        """The fallback, if a case needed it."""
        return vars(self).get("_fallback")

    def meanwhile(self, case: Case) -> Served:
        """The whole model in onnxruntime, for a case whose program is not ready."""
        return self._fallback.meanwhile(case) if self.exact is None else self.exact(case)

    def settled_program(self, case: Case) -> Served | None:
        """The program for a case like one that could not be compiled; None for other cases."""
        return None if self._begun is None else self._begun.settled_program(case)

    def served(self) -> tuple[ServedShapes, ...]:
        """Entries of its programs."""
        return () if self._begun is None else self._begun.served()

    def cases_with_results(self) -> list[Case]:
        """The cases of its programs, with the sizes that results had."""
        return [] if self._begun is None else self._begun.cases_with_results()

    def original(self) -> bytes:
        """The ONNX model that it runs."""
        return self._fallback.original()
