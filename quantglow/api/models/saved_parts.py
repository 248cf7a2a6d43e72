"""Models that earlier releases saved in parts: versions 3, 8, 10 and 11 of files.

A compiled head comes first, then the tail, an ONNX model.  onnxruntime runs the nodes of the tail
that decide shapes, and an int8 model in the file what is behind them, if there is one; a loop at
its beginning may have an int8 body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from quantglow.api.models.families import LOOP, Built, open_family
from quantglow.api.models.other_ways import select_declared
from quantglow.api.models.programs import free_programs
from quantglow.evaluation.report import Report
from quantglow.importer.onnx import Source, open_model, restore
from quantglow.importer.onnx.source import parse_output
from quantglow.ir.graph.family import Case, FreeCase, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Signature
from quantglow.ort.fallback import whole_model
from quantglow.ort.session import NAME, Session, open_session
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.runtime.saved.archives import BODY, REST
from quantglow.runtime.saved.saving import Freedom, SavedModel, SavedTail
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import AtCase, ServedShapes
from quantglow.support.arrays import Array, box
from quantglow.support.classes import cached_property
from quantglow.support.errors import (
    FileFormatError,
    ModelError,
    OptionError,
    QuantglowError,
)
from quantglow.support.files import DAMAGED_CONTENT
from quantglow.transforms.partition import Executable

BuildModel = Callable[[SavedModel, Compiler], CompiledModel]
"""Makes the model of a file."""


NO_GRAPH = (
    "an earlier release saved this model in parts, and no graph has all of them. "
    "Remedy: compile or quantize the original model again."
)


def join_parts(saved: SavedModel, compiler: Compiler, build: BuildModel) -> CompiledModel:
    """The model of a file with a tail.  Raises ``FileFormatError``."""
    assert saved.tail is not None
    parts = SavedParts(saved, _whole_tail(saved.tail), build, compiler)
    report = Report.from_json(saved.report)
    programs = PartPrograms(parts.signature, parts.refuse, compiler, parts, parts.refuse_to_save)
    return CompiledModel(programs, lambda: report)


def _whole_tail(tail: SavedTail) -> Source:
    """The model of a tail with all of its weights.  Raises ``FileFormatError``."""
    try:
        if not tail.weights:
            return open_model(tail.model)
        return restore(tail.model, tail.weights, tail.constants)
    except FileFormatError:
        raise
    except (*DAMAGED_CONTENT, QuantglowError) as error:
        raise FileFormatError(f"the tail is damaged: {error}. Remedy: save it again.") from error


@dataclass(frozen=True, eq=False)
class Tail:
    """The model behind the head; ``behind``: the int8 model of what its first nodes decide,
    ``body``: that of a loop which these are."""

    source: Source
    compiler: Compiler
    behind: CompiledModel | None
    body: CompiledModel | None

    @property
    def input_names(self) -> list[str]:
        """Names of the values that it reads."""
        return [info.name for info in self.source.fed]

    def run(self, values: Mapping[str, Array], names: Sequence[str]) -> list[Any]:
        """The named outputs, by onnxruntime alone where nothing reaches the int8 model."""
        if self.behind is None and self.body is None:
            return self._run_whole(values, names)
        inner = [] if self.behind is None else [info.name for info in self.behind.get_outputs()]
        values = {**values, **self._run_first(values)}
        missing = [name for name in names if name in inner]
        if self.behind is not None and missing:
            reads = {info.name: values[info.name] for info in self.behind.get_inputs()}
            if not all(array.size for array in reads.values()):
                return self._run_whole(values, names)
            values |= dict(zip(missing, self.behind.run(missing, reads), strict=True))
        return [values[name] for name in names]

    def _run_whole(self, values: Mapping[str, Array], names: Sequence[str]) -> list[Any]:
        reads = {name: values[name] for name in self.input_names}
        return self._whole.run(select_declared(self._whole, reads), list(names))

    def _run_first(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """The results of the first nodes."""
        first = self._first
        if isinstance(first, Session):
            names = [info.name for info in first.outputs]
            feeds = {name: values[name] for name in first.input_names}
            return dict(zip(names, first.run(select_declared(first, feeds)), strict=True))
        names = [port.name for port in first.signature.outputs]
        feeds = {port.name: values[port.name] for port in first.signature.inputs}
        return dict(zip(names, first.at(feeds).run(feeds), strict=True))

    @cached_property
    def _whole(self) -> Session:
        return open_session(self.source.serialize(), self.compiler.num_threads)

    @cached_property
    def _first(self) -> Session | FreeShapes:
        """The first nodes, with what they give the int8 model."""
        names = [info.name for info in self.source.proto.graph.output]
        if self.behind is not None:
            inner = {info.name for info in self.behind.get_outputs()}
            read = [info.name for info in self.behind.get_inputs()]
            between = [name for name in read if name not in self.input_names]
            names = list(dict.fromkeys([*(n for n in names if n not in inner), *between]))
        first = self.source.giving(names)
        if self.body is None:
            return open_session(first.serialize(), self.compiler.num_threads)
        family = open_family(first, late_results=LateResults.SYMBOLIC)
        loops = (node for node in first.proto.graph.node if node.op_type == LOOP)
        bodies = {next(filter(None, loop.output)): self.body for loop in loops}
        return free_programs(Built(family, None, bodies), self.compiler)


@dataclass(frozen=True, eq=False)
class PartsExecutable:
    """The head and the tail, one after the other; ``names``: the outputs of both."""

    head: CompiledModel
    tail: Tail
    names: tuple[str, ...]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order."""
        names = [port.name for port in self.head.specialisations.signature.outputs]
        results = self.head.specialisations.at(feeds).run(feeds)
        values: dict[str, Any] = {**feeds, **dict(zip(names, results, strict=True))}
        late = [name for name in self.names if name not in values]
        if late:
            values |= dict(zip(late, self.tail.run(values, late), strict=True))
        return [v if isinstance(v, np.ndarray) else box(v) for v in map(values.get, self.names)]


class PartPrograms(FreeShapes):
    """Programs for all shapes of a model in parts, none of which has a graph."""

    @property
    def is_empty(self) -> bool:
        """True: no program has a graph to show."""
        return True

    @property
    def first(self) -> NoReturn:
        """Raise ``OptionError``: there is no program of the whole model."""
        raise OptionError(NO_GRAPH)


@dataclass(frozen=True, eq=False)
class SavedParts:
    """The parts as a fallback of programs for all shapes, of which there are none."""

    saved: SavedModel
    tail: Source
    build: BuildModel
    compiler: Compiler

    @cached_property
    def executable_of_parts(self) -> PartsExecutable:
        """The head and the tail.  Raises ``FileFormatError``."""
        head = self.build(replace(self.saved, tail=None), self.compiler)
        return PartsExecutable(head, self.staged_tail, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs of the model."""
        assert self.saved.tail is not None
        return self.saved.tail.output_names

    @property
    def staged_tail(self) -> Tail:
        """The tail, with its int8 parts.  Raises ``FileFormatError``."""
        assert self.saved.tail is not None
        files = self.saved.tail.files.items()
        models = {name: self.build(file, self.compiler) for name, file in files}
        return Tail(self.tail, self.compiler, models.get(REST), models.get(BODY))

    @cached_property
    def signature(self) -> Signature:
        """The inputs of the head, and the outputs of both.  Raises ``FileFormatError``."""
        head = self.executable_of_parts.head.specialisations.signature
        late = {port.name: port for port in map(parse_output, self.tail.proto.graph.output)}
        ports = {port.name: port for port in head.outputs} | late
        if unknown := sorted(set(self.names) - ports.keys()):
            raise FileFormatError(f"no part gives {unknown}. Remedy: save the model again.")
        known = {port.name for port in (*head.inputs, *head.outputs)}
        if unknown := sorted(set(self.staged_tail.input_names) - known):
            raise FileFormatError(
                f"no part gives the tail {unknown}. Remedy: save the model again."
            )
        return Signature(head.inputs, tuple(ports[name] for name in self.names))

    def refuse(self, case: FreeCase) -> NoReturn:
        """Raise ``OptionError``: there is no graph of the whole model."""
        raise OptionError(NO_GRAPH)

    def refuse_to_save(self, case: Case, graph: Graph) -> Freedom:
        """Raise ``OptionError``: its parts have no place in a file of this version."""
        raise OptionError(
            "an earlier release saved this model in parts, which is not written any more. "
            "Remedy: keep the file, or compile or quantize the original model again."
        )

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> AtCase:
        """The parts, whatever the case."""
        parts, threads = self.executable_of_parts, self.compiler.num_threads
        suffix = whole_model(self.saved.tail.reasons if self.saved.tail else ())
        build = Build(parts, (), NAME, threads, suffix=suffix, is_part=True)
        return AtCase(self.signature, self.refuse, build, case, is_general=True)

    def executable(self, case: Case) -> Executable:
        """The parts."""
        return self.executable_of_parts

    def settled_program(self, case: Case) -> AtCase:
        """The parts, whatever the case."""
        return self(case, ())

    def meanwhile(self, case: Case) -> AtCase:
        """The parts: nothing is compiled for a case."""
        return self(case, ())

    def with_compiler(self, compiler: Compiler) -> SavedParts:
        """The same for another compiler."""
        return replace(self, compiler=compiler)

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of the head."""
        return self.executable_of_parts.head.specialisations.served()

    def cases_with_results(self) -> list[Case]:
        """None: code is for programs of graphs."""
        return []

    def original(self) -> bytes:
        """Raise ``ModelError``: a file in parts does not have it."""
        raise ModelError(
            "an earlier release saved this model in parts, without its source. Remedy: use the "
            "original model."
        )
