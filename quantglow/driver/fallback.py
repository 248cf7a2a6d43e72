"""Models handed to onnxruntime: whole, or what cannot be compiled behind a part that can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from quantglow.backends.onnxruntime.session import NAME, Session
from quantglow.driver.models import ready
from quantglow.errors import (
    FallbackError,
    InputError,
    ModelError,
    QuantglowError,
    UnsupportedOpError,
)
from quantglow.frontend import Source, Split, reasons, split
from quantglow.graph.border import is_float
from quantglow.graph.case import Case
from quantglow.graph.graph import Graph
from quantglow.graph.node import Input
from quantglow.lazy import cached_property
from quantglow.report import MemoryFigures, Report
from quantglow.runtime.build import Build, Compiler
from quantglow.runtime.compiled import CompiledModel, TensorInfo
from quantglow.runtime.fallback import FallbackNode, whole_model
from quantglow.runtime.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.newer_opsets import opened
from quantglow.runtime.protocol import Executable
from quantglow.runtime.shapes.specialisations import Specialisation
from quantglow.types import Array, TensorType

NOTHING_COMPILED = (
    "nothing of this model is compiled and nothing is int8: onnxruntime runs it as it is"
)

AnyFallback = TypeVar("AnyFallback", bound=FallbackModel)


def fallback_model(source: Source, error: QuantglowError, threads: int) -> FallbackModel:
    """The model in onnxruntime; ``error`` says why it is not compiled.

    Raises ``error`` with onnxruntime's message as its cause if onnxruntime does not take it either.
    """
    known = all_reasons(source, error)
    report = Report(
        NAME,
        threads,
        MemoryFigures(),
        {},
        notes=(NOTHING_COMPILED,),
        fallback=whole_model(known),
    )
    found = FallbackModel(source.for_onnxruntime(), known, threads, lambda: report)
    try:
        return loaded(found)
    except FallbackError as refusal:
        raise error from refusal


def all_reasons(source: Source, error: QuantglowError) -> tuple[str, ...]:
    """Reasons of the error, and of nodes that would run in onnxruntime anyway."""
    found = list(error.reasons)
    with suppress(ModelError):
        found += reasons(source) if isinstance(error, UnsupportedOpError) else ()
    return tuple(dict.fromkeys(found))


def partly_compiled(
    source: Source, parts: Split, head: CompiledModel, error: QuantglowError
) -> PartlyCompiledModel:
    """The compiled head of a model, and its tail in onnxruntime.  Raises ``FallbackError``."""
    tail = tail_of(parts)

    def report() -> Report:
        known = head.report
        assert isinstance(known, Report)
        return replace(known, fallback=(*known.fallback, *tail))

    return loaded(
        PartlyCompiledModel(
            source.serialized(),
            error.reasons,
            head.specialisations.num_threads,
            report,
            head,
            parts.tail.SerializeToString(),
            tuple(output.name for output in source.proto.graph.output),
        )
    )


def check_tail(parts: Split, threads: int) -> None:
    """Raise ``FallbackError`` if onnxruntime does not load the tail."""
    opened(parts.tail.SerializeToString(), threads)


def tail_of(parts: Split) -> tuple[FallbackNode, ...]:
    """The operators behind the cut."""
    return tuple(
        FallbackNode(next(filter(None, node.output)), node.op_type, NAME, parts.reason(node))
        for node in parts.tail.graph.node
        if node.op_type != "Constant"
    )


def loaded(model: AnyFallback) -> AnyFallback:
    """The model with its session, loaded here so that it fails here: ``FallbackError``."""
    model.session  # noqa: B018
    return model


def declared_by(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Values of float32 in the types that a session takes."""
    found = dict(feeds)
    for info in map(TensorInfo.of_node, session.inputs):
        if info.name in found and is_float(found[info.name].dtype):
            found[info.name] = found[info.name].astype(info.dtype, copy=False)
    return found


@dataclass(frozen=True)
class WholeExecutable:
    """A whole model in onnxruntime, fed with shapes that nobody has checked yet."""

    session: Session

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs.  Raises ``InputError`` for feeds that the model cannot take."""
        try:
            return self.session.run(declared_by(self.session, feeds))
        except FallbackError as error:
            shapes = {name: array.shape for name, array in feeds.items()}
            raise InputError(
                f"the model cannot run on inputs of the shapes {shapes}: {error}. Remedy: feed "
                "arrays that fit; free dimensions are at least 1 in what is compiled."
            ) from error


@dataclass(frozen=True)
class PartsExecutable:
    """A compiled head and its tail in onnxruntime; ``known`` names what the head gives, ``names``
    the outputs of both."""

    head: Executable
    known: tuple[str, ...]
    tail: Session
    names: tuple[str, ...]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order."""
        values = {**feeds, **dict(zip(self.known, self.head.run(feeds), strict=True))}
        late = [name for name in self.names if name not in values]
        reads = {name: values[name] for name in self.tail.input_names}
        found = self.tail.run(declared_by(self.tail, reads), late)
        values.update(zip(late, found, strict=True))
        return [values[name] for name in self.names]


@dataclass(frozen=True)
class ModelFallback:
    """Runs a model of free shapes in the cases in which it cannot be compiled to its end: cut in
    two as ``PartlyCompiledModel`` is, or whole.
    """

    source: Source
    compiler: Compiler
    _tails: dict[bytes, Session] = field(default_factory=dict)

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Specialisation:
        """The program for a case that cannot be compiled, for these reasons.

        Raises ``FallbackError``; ``InputError`` for wrong ranks.
        """
        try:
            self.source.check_ranks(case.shape_map)
        except ModelError as error:
            raise InputError(f"{error}. Remedy: feed arrays that the model can take.") from error
        with suppress(ModelError, FallbackError):
            parts = split(self.source, case.shape_map, case.value_map)
            if parts is not None:
                return self._cut(parts, case)
        return self._whole(case, reasons)

    def _cut(self, parts: Split, case: Case) -> Specialisation:
        graph = ready(Source.of(parts.head).at(case))
        build = self.compiler.compile(graph)
        model = bytes(parts.tail.SerializeToString(deterministic=True))
        if model not in self._tails:
            self._tails[model] = opened(model, self.compiler.num_threads)
        known = tuple(name for name, _ in graph.outputs)
        names = tuple(port.name for port in self.source.signature.outputs)
        executable = PartsExecutable(build.executable, known, self._tails[model], names)
        rest = tail_of(parts)
        return Specialisation(graph, replace(build, executable=executable, rest=rest), case)

    def _whole(self, case: Case, reasons: tuple[str, ...]) -> Specialisation:
        """One program for all cases; its graph shows the inputs only."""
        shapes = case.shape_map
        ports = self.source.signature.inputs
        inputs = (Input(name=p.name, tensor=TensorType(p.dtype, shapes[p.name])) for p in ports)
        executable, threads = WholeExecutable(self._session), self.compiler.num_threads
        build = Build(executable, (), NAME, threads, rest=whole_model(reasons))
        return Specialisation(Graph(tuple(inputs), ()), build, case)

    @cached_property
    def _session(self) -> Session:
        return opened(self.source.for_onnxruntime(), self.compiler.num_threads)


@dataclass(frozen=True)
class FallbackOnUse:
    """``ModelFallback`` of a source that is made for the first case that needs it."""

    make: Callable[[], Source]
    compiler: Compiler

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Specialisation:
        """The program for a case that cannot be compiled, for these reasons."""
        return self._fallback(case, reasons)

    @cached_property
    def _fallback(self) -> ModelFallback:
        return ModelFallback(self.make(), self.compiler)
