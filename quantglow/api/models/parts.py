"""Models of free shapes that cannot be compiled to their end: cut in two, or whole in onnxruntime.

A model is cut once.  Its head is a model of free dimensions with programs of its own, so that a new
shape costs no more than for a model that is compiled whole; its tail is one session for all shapes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from quantglow.api.models.fallback import compile_on_use, nodes_in, tail_nodes
from quantglow.api.models.families import Built, free_programs, open_family, open_late_family
from quantglow.importer.onnx import (
    Behind,
    ExternalLoop,
    LateLoop,
    Source,
    Split,
    divide,
    names_of_weights,
    split,
)
from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.graph.signature import Signature, is_float
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import SMALLEST
from quantglow.ir.types import TensorType
from quantglow.ort.fallback import FallbackNode, whole_model
from quantglow.ort.session import NAME, Session, open_session
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.loop import AnyModel, Bodies, BodyShapes, CompiledLoop
from quantglow.runtime.hybrid.loop_driver import LoopDriver, OpenedLoop
from quantglow.runtime.hybrid.tails import StagedTail, Tail
from quantglow.runtime.hybrid.trips import TripSession
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.runtime.programs.feeds import TensorInfo
from quantglow.runtime.shapes.free_shapes import MOST_VALUES, FreeShapes
from quantglow.runtime.shapes.late_programs import MOST_REFUSALS, NO_PROGRAM, OrParts
from quantglow.runtime.shapes.specializations import (
    Served,
    ServedShapes,
    Specialisation,
    served_by_onnxruntime,
    with_elsewhere,
)
from quantglow.support.arrays import Array, box
from quantglow.support.classes import cached_property
from quantglow.support.errors import (
    FallbackError,
    InputError,
    ModelError,
    QuantglowError,
    UnsupportedOpError,
)
from quantglow.transforms.partition import Executable

Kind = tuple[object, ...]
"""Facts of a case that decide where a model is cut: values, ranks, and axes without elements."""


def _case_kind(case: Case) -> Kind:
    """The kind of a case."""
    return case.values, tuple((name, *map(bool, shape)) for name, shape in case.shapes)


SMALL = 256
"""Sizes below are tried four times as large; others half as large."""


def _other_sizes(signature: Signature, case: Case) -> Case:
    """The case with other sizes of free dimensions, but for those of 0 and 1."""
    shapes = case.shape_map
    builds = {}
    for port in signature.inputs:
        sizes = shapes[port.name]
        dims = port.dims or (None,) * len(sizes)
        pairs = zip(sizes, dims, strict=True)
        builds[port.name] = tuple(n if isinstance(d, int) else _other_size(n) for n, d in pairs)
    return replace(Case.of(builds), values=case.values)


def _other_size(size: int) -> int:
    """Another size; 0 and 1 stay: they change how a model is compiled."""
    if size < SMALLEST:
        return size
    return 4 * size if size < SMALL else size // 2


def _cut_identity(cut: Split) -> Kind:
    """A value that is equal for equal cuts of a model."""
    tail = bytes(cut.tail.SerializeToString(deterministic=True))
    names = tuple(name for node in cut.head.graph.node for name in node.output)
    ends = tuple(output.name for output in cut.head.graph.output)
    return names, ends, hashlib.sha256(tail).digest()


def select_declared(session: Tail, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Values of float32 in the types that a session takes."""
    declared = dict(feeds)
    for info in map(TensorInfo.of_node, session.inputs):
        if info.name in declared and is_float(declared[info.name].dtype):
            declared[info.name] = declared[info.name].astype(info.dtype, copy=False)
    return declared


@dataclass(frozen=True)
class WholeExecutable:
    """A whole model in onnxruntime, fed with shapes that nobody has checked yet."""

    session: Session

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs.  Raises ``InputError`` for feeds that the model cannot take."""
        try:
            return self.session.run_values(select_declared(self.session, feeds))
        except FallbackError as error:
            shapes = {name: array.shape for name, array in feeds.items()}
            raise InputError(
                f"the model cannot run on inputs of the shapes {shapes}: {error}. Remedy: "
                "feed arrays that fit; free dimensions are at least 1 in what is "
                "compiled."
            ) from error


WHILE_COMPILING = "it answers while the program is compiled"


@dataclass(frozen=True, eq=False)
class WholeModel:
    """A model of free shapes that onnxruntime runs whole, whatever the case."""

    source: Source
    num_threads: int

    def at(self, case: Case, reasons: tuple[str, ...] = (WHILE_COMPILING,)) -> Specialisation:
        """One program for all cases; its graph shows the inputs only.  Raises ``FallbackError``."""
        shapes = case.shape_map
        ports = self.source.signature.inputs
        inputs = (Input(name=p.name, tensor=TensorType(p.dtype, shapes[p.name])) for p in ports)
        executable = WholeExecutable(self._session)
        whole, threads = whole_model(reasons), self.num_threads
        build = Build(executable, (), NAME, threads, suffix=whole, is_part=True)
        return Specialisation(Graph(tuple(inputs), ()), build, case)

    @cached_property
    def _session(self) -> Session:
        return open_session(self.source.serialize(), self.num_threads)


@dataclass(frozen=True, eq=False)
class HeadAndTail:
    """The programs of a head, and its tail; ``names``: the outputs of both, ``suffix``: the
    operators of the tail that onnxruntime runs, if none of it is compiled."""

    head: FreeShapes
    tail: Tail
    names: tuple[str, ...]
    suffix: tuple[FallbackNode, ...]

    @cached_property
    def head_names(self) -> tuple[str, ...]:
        """Names of the values that the head gives."""
        return tuple(port.name for port in self.head.signature.outputs)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order."""
        reads_of_head = self.head.at(feeds).run(feeds)
        values = {**feeds, **dict(zip(self.head_names, reads_of_head, strict=True))}
        late = [name for name in self.names if name not in values]
        reads = {name: values[name] for name in self.tail.input_names}
        results = self.tail.run(select_declared(self.tail, reads), late)
        arrays = (r if isinstance(r, np.ndarray) else box(r) for r in results)
        values.update(zip(late, arrays, strict=True))
        return [values[name] for name in self.names]

    def at(self, case: Case) -> Served:
        """The program of the head at a case, which runs both parts."""
        prepared = self.head.prepare(case)
        build = replace(
            prepared.build, executable=self, suffix=self.suffix, later=self.later, is_part=True
        )
        return replace(prepared, build=build)

    def later(self) -> tuple[FallbackNode, ...]:
        """The operators that onnxruntime runs in a tail that is compiled in part, as far as they
        are known."""
        return self.tail.fallback if isinstance(self.tail, StagedTail) else ()

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of the head with what the tail leaves to onnxruntime, and of the tail."""
        staged = self.tail if isinstance(self.tail, StagedTail) else None
        fallback, late = (
            (self.suffix, ()) if staged is None else (staged.own_fallback, staged.served)
        )
        return (*(with_elsewhere(program, fallback) for program in self.head.served()), *late)


@dataclass(frozen=True)
class ModelFallback:
    """Runs a model of free shapes in the cases in which it cannot be compiled to its end: cut in
    two as ``PartlyCompiledModel`` is, or whole.

    A kind of cases is ``settled`` where another shape of it has the same fate, or one graph serves
    it to the end: further ones need no import.  ``whole``: the reasons why it runs whole in some
    cases.
    """

    source: Source
    compiler: Compiler
    settled: dict[Kind, tuple[HeadAndTail | None, tuple[str, ...]]] = field(default_factory=dict)
    whole: dict[str, None] = field(default_factory=dict)
    _tried: dict[Kind, tuple[bool | None, frozenset[str]]] = field(default_factory=dict)
    _cuts: dict[Kind, HeadAndTail] = field(default_factory=dict)
    _complete: set[Kind] = field(default_factory=set)
    _refusals: Counter[Hashable] = field(default_factory=Counter)

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Served:
        """The program for a case that cannot be compiled, for these reasons.

        Raises ``FallbackError``; ``InputError`` for wrong ranks.
        """
        try:
            self.source.check_ranks(case.shape_map)
        except ModelError as error:
            raise InputError(f"{error}. Remedy: feed arrays that the model can take.") from error
        kind, cut = _case_kind(case), self._cut(case)
        if cut is not None and (served := self._serve_whole(kind, case)) is not None:
            self._complete.add(kind)
            return served
        parts = None if cut is None else self._divide(cut)
        if kind not in self.settled and self._is_settled(kind, cut, case):
            self.settled[kind] = parts, reasons
        return self._at(parts, reasons, case)

    def in_parts(self, case: Case) -> Executable:
        """The model cut at a case, or whole in onnxruntime; this settles no other case."""
        cut = self._cut(case)
        parts = None if cut is None else self._divide(cut)
        return self._at(parts, (NO_PROGRAM,), case).build.executable

    def settled_program(self, case: Case) -> Served | None:
        """The program for a case of a kind that is settled; None for other cases."""
        kind = _case_kind(case)
        if kind in self._complete and (served := self._serve_whole(kind, case)) is not None:
            return served
        settled = self.settled.get(kind)
        return None if settled is None else self._at(*settled, case)

    def meanwhile(self, case: Case) -> Served:
        """The whole model in onnxruntime, for a case whose program is not ready.  Raises
        ``FallbackError``."""
        return self._whole.at(case)

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of all heads, and an entry for what runs whole."""
        entries = [entry for parts in list(self._cuts.values()) for entry in parts.served()]
        entries += [*self._whole_graphs.served(), *self._loops.served]
        if self.whole:
            shapes = [(port.name, port.dims or ("...",)) for port in self.source.signature.inputs]
            why = f"the whole model in {NAME}: {'; '.join(list(self.whole))}"
            entries.append(served_by_onnxruntime(shapes, why))
        return tuple(entries)

    def original(self) -> bytes:
        """The ONNX model."""
        return self.source.serialize()

    def _at(self, parts: HeadAndTail | None, reasons: tuple[str, ...], case: Case) -> Served:
        if parts is not None:
            return parts.at(case)
        self.whole.update(dict.fromkeys(reasons))
        return self._whole.at(case, reasons)

    def _serve_whole(self, kind: Kind, case: Case) -> Served | None:
        """The program of the graph to the end of the model; None where that has values that no
        graph holds, or sizes that decide the graph."""
        if self._refusals[kind] >= MOST_REFUSALS:
            return None
        try:
            served = self._whole_graphs.prepare(case)
        except QuantglowError:
            return None
        parts = partial(self.in_parts, case)
        executable = OrParts(served.build.executable, parts, kind, self._refusals)
        return replace(served, build=replace(served.build, executable=executable, is_part=True))

    def _cut(self, case: Case) -> Split | None:
        """The model as it is cut at a case; None where it is not."""
        with suppress(ModelError, FallbackError):
            return split(self.source, case.shape_map, case.value_map)
        return None

    def _is_settled(self, kind: Kind, cut: Split | None, case: Case) -> bool:
        """Whether a kind is cut alike at other sizes; where the model does not take those, at two
        cases that came."""
        late = frozenset[str]() if cut is None else cut.late
        if kind not in self._tried:
            answer = self._is_cut_alike(cut, _other_sizes(self.source.signature, case))
            self._tried[kind] = answer, late
            return answer is True
        return cut is not None and self._tried[kind] == (None, late)

    def _is_cut_alike(self, cut: Split | None, case: Case) -> bool | None:
        """Whether the same values are behind the cut at another case, or the model cannot be
        compiled there either; None where it does not take that."""
        try:
            other = split(self.source, case.shape_map, case.value_map)
            if cut is not None:
                return other is not None and other.late == cut.late
            self.source.at(case)
        except UnsupportedOpError:
            return cut is None
        except QuantglowError:
            return None
        return False

    def _divide(self, cut: Split) -> HeadAndTail:
        """The parts, the same for equal cuts."""
        identity = _cut_identity(cut)
        if identity not in self._cuts:
            self._cuts.setdefault(identity, self._new_parts(cut))
        return self._cuts[identity]

    def _new_parts(self, cut: Split) -> HeadAndTail:
        names = tuple(port.name for port in self.source.signature.outputs)
        head = _model_programs(Source.of(cut.head), self.compiler)
        staged = stage_tail(cut.tail, cut.late, cut.reasons, self.compiler)
        if staged is None:
            tail = open_session(bytes(cut.tail.SerializeToString()), self.compiler.num_threads)
            return HeadAndTail(head, tail, names, tail_nodes(cut))
        return HeadAndTail(head, staged, names, ())

    @cached_property
    def _whole_graphs(self) -> FreeShapes:
        """The programs of graphs to the end of the model."""
        compiler = replace(self.compiler, drivers=(self._loops,))
        return free_programs(Built(open_late_family(self.source, has_driver=True)), compiler)

    @cached_property
    def _loops(self) -> LoopDriver:
        return loop_driver(self.compiler)

    @cached_property
    def _whole(self) -> WholeModel:
        return WholeModel(self.source, self.compiler.num_threads)


def _model_programs(
    source: Source, compiler: Compiler, most_values: int = MOST_VALUES
) -> FreeShapes:
    """The programs of a model, compiled on first use, whether its dimensions are free or not."""
    fallback = ModelFallback(source, compiler)
    return free_programs(Built(open_family(source)), compiler, fallback, most_values)


Int8Models = Callable[[Behind], tuple[AnyModel | str, AnyModel | str]]
"""Makes int8 models of a loop's body and of the rest of a tail, or says why they stay float."""


def _all_float(behind: Behind) -> tuple[str, str]:
    """No int8 models, which nobody asked for."""
    return "", ""


def stage_tail(
    tail: Any,
    late: Collection[str],
    reasons: Sequence[str],
    compiler: Compiler,
    int8: Int8Models = _all_float,
) -> StagedTail | None:
    """The tail of a ``Split`` with the parts of it compiled whose shapes are known late; None where
    nothing of that is worth it, or can be."""
    behind = divide(tail, late)
    if behind is None:
        return None
    with suppress(ModelError, FallbackError):
        threads = compiler.num_threads
        session = open_session(bytes(behind.first.SerializeToString()), threads)
        nodes = nodes_in(behind.first.graph.node, reasons)
        body, suffix = int8(behind)
        loop = None
        if behind.loop is not None:
            loop = compile_loop(behind.loop, session, compiler, body)
        whole, names = bytes(tail.SerializeToString()), frozenset(late)
        staged = partial(StagedTail, loop or session, whole=whole, nodes=nodes, num_threads=threads)
        staged = partial(
            staged, rounded=_rounded_weights(behind, loop, not isinstance(suffix, str))
        )
        if not behind.suffix.graph.output:
            return staged(suffix=None, late=names)
        if not isinstance(suffix, str):
            return staged(suffix=suffix, late=names, is_int8=True)
        on_use = compile_on_use(_float_programs(behind.suffix, compiler), ())
        return staged(suffix=on_use, late=names, why=suffix)
    return None


def _rounded_weights(behind: Behind, loop: CompiledLoop | None, is_int8: bool) -> frozenset[str]:
    """Weights that only int8 parts of a tail read: the body of its loop, and its rest if that
    ``is_int8``."""
    rounded, exact = set[str](), set[str]()
    (rounded if is_int8 else exact).update(names_of_weights(behind.suffix))
    if behind.loop is not None and loop is not None and loop.is_int8:
        rounded.update(names_of_weights(behind.loop.body))
        exact.update(names_of_weights(behind.loop.operands))
    else:
        exact.update(names_of_weights(behind.first))
    return frozenset(rounded - exact)


def compile_loop(
    loop: LateLoop, session: Session, compiler: Compiler, int8: AnyModel | str
) -> CompiledLoop:
    """A loop that runs in programs of its body; ``int8``: the quantized body, or why there is
    none."""
    threads = compiler.num_threads

    def programs(trips: Sequence[BodyShapes]) -> FreeShapes:
        source = Source.of(loop.body_for(trips))
        return free_programs(Built(open_family(source)), compiler, None, most_values=0)

    operands = bytes(loop.operands.SerializeToString())
    operand_session = open_session(operands, threads) if loop.operands.graph.output else None
    body = bytes(loop.body.SerializeToString())
    trip = TripSession(lambda: open_session(body, threads))
    if not isinstance(int8, str | CompiledModel):
        int8 = "onnxruntime computes a part of it"
    if isinstance(int8, str):
        return CompiledLoop(
            loop.names, session, operand_session, trip, Bodies(programs), not_int8=int8
        )
    bodies = Bodies(None, int8.specialisations)
    return CompiledLoop(loop.names, session, operand_session, trip, bodies, int8)


def loop_driver(compiler: Compiler) -> LoopDriver:
    """The driver of loops of graphs that go to the end of their model."""

    def open_loop(node: External) -> OpenedLoop | None:
        external = ExternalLoop.of(node)
        return None if external is None else open_external(external)

    def open_external(external: ExternalLoop) -> OpenedLoop:
        def compile_for(num_threads: int) -> CompiledLoop:
            session = open_session(external.model, num_threads)
            threaded = replace(compiler, num_threads=num_threads)
            return compile_loop(external.late, session, threaded, "")

        names = external.operands, external.results
        return OpenedLoop(external.model, *names, compile_for)

    return LoopDriver(open_loop)


def _float_programs(model: Any, compiler: Compiler) -> FreeShapes:
    """Programs of the part of a tail whose shapes are known late, none for values of its inputs."""
    return _model_programs(Source.of(model), compiler, most_values=0)
