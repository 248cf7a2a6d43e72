"""Other ways to run a model in the cases in which its graph has no program.

A graph in which results have late sizes is tried first, then one whose late results are opaque;
what has neither runs whole in onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from quantglow.api.models.families import Built, open_family
from quantglow.api.models.programs import free_programs
from quantglow.importer.onnx import Source
from quantglow.ir.graph.family import Case, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.graph.signature import Signature, is_float
from quantglow.ir.symbolic.expression import SMALLEST
from quantglow.ir.types import TensorType
from quantglow.ort.fallback import whole_model
from quantglow.ort.session import NAME, Session, open_session
from quantglow.runtime.programs.build import Build, Compiler
from quantglow.runtime.programs.feeds import TensorInfo
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.late_programs import MOST_REFUSALS, NO_PROGRAM, OrOther
from quantglow.runtime.shapes.specializations import (
    Served,
    ServedShapes,
    Specialisation,
    served_by_onnxruntime,
)
from quantglow.support.arrays import Array
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
"""Facts of a case that decide which nodes a graph can have: values, ranks, and axes without
elements."""


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


def select_declared(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
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


@dataclass(frozen=True)
class OtherWays:
    """Runs a model in the cases in which the graph of ``tried`` late results has no program.

    A kind of cases is ``settled`` where another shape of it has the same fate: further ones need no
    import; the reasons are those of the first one.  ``whole``: why it runs whole in some cases.
    """

    source: Source
    compiler: Compiler
    tried: LateResults = LateResults.REFUSED
    settled: dict[Kind, tuple[str, ...]] = field(default_factory=dict)
    whole: dict[str, None] = field(default_factory=dict)
    _tested: dict[Kind, bool | None] = field(default_factory=dict)
    _refusals: Counter[Hashable] = field(default_factory=Counter)

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Served:
        """The program for a case that cannot be compiled, for these reasons.

        Raises ``FallbackError``; ``InputError`` for wrong ranks.
        """
        try:
            self.source.check_ranks(case.shape_map)
        except ModelError as error:
            raise InputError(f"{error}. Remedy: feed arrays that the model can take.") from error
        kind = _case_kind(case)
        if kind not in self.settled and self._is_settled(kind, case):
            self.settled[kind] = reasons
        return self._serve(self._ways, case, reasons)

    def executable(self, case: Case) -> Executable:
        """Another way at a case whose program of late sizes does not serve all feeds; this settles
        no other case."""
        ways = [way for way in self._ways if not way.is_late]
        return self._serve(ways, case, (NO_PROGRAM,)).build.executable

    def settled_program(self, case: Case) -> Served | None:
        """The program for a case of a kind that is settled; None for other cases."""
        reasons = self.settled.get(_case_kind(case))
        return None if reasons is None else self._serve(self._ways, case, reasons)

    def meanwhile(self, case: Case) -> Served:
        """The whole model in onnxruntime, for a case whose program is not ready.  Raises
        ``FallbackError``."""
        return self._whole.at(case)

    def with_compiler(self, compiler: Compiler) -> OtherWays:
        """The same for another compiler."""
        return OtherWays(self.source, compiler, self.tried)

    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of all ways, and an entry for what runs whole."""
        entries = list(chain.from_iterable(way.served() for way in self._ways))
        if self.whole:
            shapes = [(port.name, port.dims or ("...",)) for port in self.source.signature.inputs]
            why = f"the whole model in {NAME}: {'; '.join(list(self.whole))}"
            entries.append(served_by_onnxruntime(shapes, why))
        return tuple(entries)

    def cases_with_results(self) -> list[Case]:
        """The cases of its programs, with the sizes that results had."""
        return list(chain.from_iterable(way.cases_with_results for way in self._ways))

    def original(self) -> bytes:
        """The ONNX model."""
        return self.source.serialize()

    def _serve(self, ways: Sequence[FreeShapes], case: Case, reasons: tuple[str, ...]) -> Served:
        """The program of the first way that has one."""
        kind = _case_kind(case)
        for way in ways:
            if way.is_late and self._refusals[kind] >= MOST_REFUSALS:
                continue
            try:
                served = way.prepare(case)
            except QuantglowError:
                continue
            executable: Executable = served  # it shows observers its graph
            if way.is_late:
                other = partial(self.executable, case)
                executable = OrOther(served.build.executable, other, kind, self._refusals)
            build = replace(served.build, executable=executable, is_part=True)
            return replace(served, build=build)
        self.whole.update(dict.fromkeys(reasons))
        return self._whole.at(case, reasons)

    def _is_settled(self, kind: Kind, case: Case) -> bool:
        """Whether the graph of other sizes of a kind cannot be imported either; where the model
        does not take those, that of two cases that came."""
        if kind not in self._tested:
            answer = self._tested[kind] = self._fails_at(_other_sizes(self.source.signature, case))
            return answer is True
        return self._tested[kind] is None

    def _fails_at(self, case: Case) -> bool | None:
        """Whether the graph of a case has nodes that cannot be compiled; None where the model does
        not take the case."""
        try:
            self.source.at(case, self.tried)
        except UnsupportedOpError:
            return True
        except QuantglowError:
            return None
        return False

    @cached_property
    def _ways(self) -> list[FreeShapes]:
        """The programs of other graphs, those that are tried first at the beginning."""
        others = list(LateResults)
        others = others[others.index(self.tried) + 1 :]
        ways = []
        for late_results in others:
            with suppress(QuantglowError):  # a model of fixed shapes is imported here
                family = open_family(self.source, late_results=late_results)
                ways.append(free_programs(Built(family), self.compiler))
        return ways

    @cached_property
    def _whole(self) -> WholeModel:
        return WholeModel(self.source, self.compiler.num_threads)
