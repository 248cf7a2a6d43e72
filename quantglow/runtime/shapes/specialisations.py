"""Programs of one compiled model: of one shape, or of free ones (``free_shapes``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from quantglow.concise import Concise
from quantglow.foreign_types import Array
from quantglow.graph.case import Case
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Shape, Shapes, Signature
from quantglow.interpreter import check_feeds, check_names, check_types
from quantglow.lazy import cached_property
from quantglow.runtime.build import Build, Compiler
from quantglow.runtime.saved_models.saving import Freedom
from quantglow.runtime.shapes.served_shapes import ServedShapes


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
        return self.build.executable.run(feeds)


Served = Specialisation | AtCase
"""The program of a case."""


class ModelPrograms(Protocol):
    """The programs of a compiled model."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""

    @property
    def compiler(self) -> Compiler:
        """The compiler of its programs."""

    @property
    def shapes(self) -> list[dict[str, Shape]]:
        """Input shapes of the programs that are kept, the last used one last."""

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


@dataclass(frozen=True, eq=False, repr=False)
class OneShape(Concise):
    """A model whose shapes are all fixed, and the compiler that made it."""

    first: Specialisation
    compiler: Compiler

    @property
    def shapes(self) -> list[dict[str, Shape]]:
        """Nothing: its program serves one shape."""
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
        compiler = replace(self.compiler, num_threads=num_threads)
        return OneShape(
            Specialisation(self.first.graph, compiler.compile(self.first.graph)), compiler
        )


def with_names(signature: Signature, shapes: Shapes) -> Shapes:
    """The shapes.  Raises ``InputError`` unless they have the names of all inputs and no others."""
    check_names([port.name for port in signature.inputs], shapes)
    return shapes


def case_of(found: Served) -> Case:
    """The case of a program."""
    return found.case or Case.of({node.name: node.type.shape for node in found.graph.inputs})
