"""Saved models made ready to run.

A process that loads and runs a model imports this and what it needs, not the whole compiler:
neither onnx nor onnxruntime, SciPy or rich, and LLVM only where a kernel is not in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from quantglow.api.options import ProgramOptions
from quantglow.codegen.llvm.cache import ENVIRONMENT, CarriedObjects
from quantglow.codegen.llvm.targets import resolve
from quantglow.evaluation.report import Report, build_report
from quantglow.ir.graph.family import Case, FreeCase, values_from_json
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Signature, are_outputs
from quantglow.ir.ops.external import External
from quantglow.memory.plans import Schedule
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.native.sequences import run_pieces_address
from quantglow.runtime.native.table_runner import entries
from quantglow.runtime.programs.build import Compiler, thread_count
from quantglow.runtime.saved import saving
from quantglow.runtime.saved.machine_code import CODE_MODES
from quantglow.runtime.saved.saving import Freedom, SavedModel
from quantglow.runtime.shapes.free_shapes import FreeShapes, Opened
from quantglow.runtime.shapes.specializations import (
    Fallback,
    FallbackOnUse,
    ModelPrograms,
    OneShape,
    ServedShapes,
    Specialisation,
)
from quantglow.support import debug
from quantglow.support.arguments import file_path
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import (
    BackendError,
    FileFormatError,
    InputError,
    TypeRuleError,
)
from quantglow.support.options import (
    OptionKind,
    Options,
    argument,
    choice_among,
    option,
    takes_options,
)
from quantglow.tuning.records import RECORDS, check_tune, with_records

if TYPE_CHECKING:
    from quantglow.api.models.families import FamilyOrigin


@dataclass(frozen=True, repr=False)
class SavedFile(Options):
    """The file, which comes first and needs no name."""

    path: str | os.PathLike[str] = field(
        metadata=argument("a file that ``save`` of a compiled model wrote", OptionKind(file_path))
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class LoadArguments(ProgramOptions, SavedFile):
    """The arguments of ``load``."""

    code: Literal["ignore", "use", "require"] = option(
        "ignore",
        choice_among(CODE_MODES),
        'use of machine code that the file includes.  "ignore": the model is compiled here.  '
        '"use": code that fits this processor, version, number of threads and schedule runs; else '
        'the model is compiled here.  "require": it runs, or an error says why it does not fit.  '
        "Shapes that it does not cover are compiled in any case.  Code can do anything that this "
        "process can: use it from files that you trust only",
    )
    tune: Literal["records"] | None = option(
        None,
        choice_among([RECORDS]).or_none(),
        '"records": kernels have the forms and tiles that `quantglow tune` measured on this '
        "machine.  Results are equal, bit for bit",
    )


@takes_options(LoadArguments)
def load(options: LoadArguments) -> CompiledModel:
    """A model that ``save`` of a compiled model wrote, compiled for this processor.

    With ``while_compiling`` onnxruntime runs the float model of the file, whose weights are those
    of the int8 model.  Both are loaded here.

    Raises ``FileFormatError`` if the file is truncated or altered, or has no code that fits where
    it is required, ``OptionError`` for options.
    """
    file = os.fspath(options.path)
    check_tune(options.tune, options.backend)
    if options.code == "ignore":
        compiler = with_records(options.compiler) if options.tune else options.compiler
        return _build_model(saving.load(file), compiler)
    threads, saved = thread_count(options.num_threads), saving.load(file, with_code=True)
    brought, target = _carry_places(
        saved, file, (options.target, threads, options.schedule), must_fit=options.code == "require"
    )
    compiler = replace(options, target=target, num_threads=threads).compiler
    if options.tune and brought is None:
        compiler = with_records(compiler)
    return _build_model(saved, replace(compiler, carried=brought))


def _carry_places(
    saved: SavedModel, file: str, names: tuple[str, int, str], *, must_fit: bool
) -> tuple[CarriedObjects | None, str]:
    """The code of a file, ready to be found, and the target that it is for; None and the target
    that is ``names``, with threads and schedule, where none fits.

    Raises ``FileFormatError`` if it ``must_fit``.
    """
    try:
        if saved.code is None:
            raise BackendError("it was saved without include_code")
        brought = CarriedObjects(saved.code.entries)
        return brought, saved.code.target_for(*names)
    except BackendError as error:
        if must_fit:
            raise FileFormatError(
                f"the code in {file!r} cannot be used: {error}. Remedy: save the model with "
                "include_code for these settings, or load it with code='use', which compiles it."
            ) from None
        debug.log(1, f"code of {file}: {error}")
        return None, names[0]


def compile_saved(
    arrays: Sequence[Array],
    path: str,
    target: str,
    threads: int,
    schedule: Schedule,
    cases: Sequence[Sequence[Any]],
    cache: str,
) -> list[Array]:
    """Compile a saved model for cases in a child process, whose cache is this folder."""
    os.environ[ENVIRONMENT] = cache
    for name in ("QUANTGLOW_DEBUG", "QUANTGLOW_DUMP_DIR", "QUANTGLOW_VERIFY"):
        os.environ.pop(name, None)
    programs = load(path, target, threads, schedule=schedule).specialisations
    if isinstance(programs, FreeShapes):
        for case in map(Case.from_json, cases):
            programs.prepare(case)
    entries(resolve(target))
    run_pieces_address(resolve(target))
    return []


def _build_model(saved: SavedModel, compiler: Compiler) -> CompiledModel:
    """The model of the contents of a file.  Raises ``FileFormatError``."""
    if saved.tail is not None:
        # Only here: a process that runs a compiled model needs no onnx.
        from quantglow.api.models.saved_parts import join_parts

        return join_parts(saved, compiler, _build_model)
    _check_externals(saved.graph, is_run=not saved.is_late)
    compiler = replace(compiler, is_checked=True)
    report = Report.from_json(saved.report)
    try:
        programs = _programs_in(saved, compiler)
    except TypeRuleError as error:
        raise FileFormatError(
            f"the graph of the file has no program: {error}. Remedy: save the model again."
        ) from error
    if compiler.answers is not None and isinstance(programs, FreeShapes):
        programs.load_other()
    return CompiledModel(programs, lambda: _report_now(report, programs))


def _programs_in(saved: SavedModel, compiler: Compiler) -> ModelPrograms:
    """The programs of a saved model: the first one, but where the graph of the file is a part."""
    if saved.free is None:
        return OneShape(Specialisation(saved.graph, compiler.compile(saved.graph)), compiler)
    programs = _reopen(saved, compiler)
    case, signature = programs.opened.case, programs.signature
    if saved.is_late and not signature.is_free and not programs.deciding:
        case = Case.of(signature.default or {})
    if case is not None:
        programs.prepare(case)
    return programs


def _report_now(report: Report, programs: ModelPrograms) -> Report:
    """A saved report with the figures of the first program that runs here, once there is one."""
    if programs.is_empty:
        return report
    now = build_report(programs.first.build, {})
    return replace(
        report,
        target=now.target,
        num_threads=now.num_threads,
        memory=now.memory,
        seconds=now.seconds,
        fallback=now.fallback,
    )


def _is_whole(graph: Graph, signature: Signature) -> bool:
    """Whether a graph gives what the model gives: where that was not compiled to its end, the graph
    of a file is a part, and the rest comes from its source.
    """
    return [name for name, _ in graph.outputs] == [port.name for port in signature.outputs]


def _takes_alike(one: Signature, other: Signature) -> bool:
    """Whether two signatures have inputs of the same names and ranks, as far as these are known."""
    ports = list(zip(one.inputs, other.inputs, strict=False))
    return len(one.inputs) == len(other.inputs) and all(
        a.name == b.name and (a.dims is None or b.dims is None or len(a.dims) == len(b.dims))
        for a, b in ports
    )


def _saved_case(saved: SavedModel) -> Case:
    """The case that the graph of a file was made for.  Raises ``TypeError`` or ``ValueError``."""
    shapes = {node.name: node.type.fixed_shape for node in saved.graph.inputs}
    return Case.of(shapes, values_from_json((saved.free or {}).get("values") or {}))


def _reopen(saved: SavedModel, compiler: Compiler) -> FreeShapes:
    """The programs of a model of free dimensions, none yet.  Raises ``FileFormatError``."""
    try:
        signature = Signature.from_json((saved.free or {})["signature"])
        case = _saved_case(saved)
        if saved.graph.outputs:
            signature.check(case.shape_map)
        is_model = _is_whole(saved.graph, signature)
        if saved.graph.outputs and not is_model and saved.is_late:
            raise ValueError("its graph has other outputs than the model")
        kinds = [node.type for _, node in saved.graph.outputs]
        if is_model and not are_outputs(signature.outputs, kinds, saved.graph.declared):
            raise ValueError("its graph has outputs of other types than it declares")
        general = tuple(graph.of_model(signature) for graph in saved.general)
        for graph in general:
            if External.__name__ in graph.text:
                _check_externals(graph.at(graph.hints)[0])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, InputError) as error:
        raise FileFormatError(
            f"what the model says of its free dimensions is damaged: {error!r}. Remedy: save the "
            "model again."
        ) from error
    source = Reopened(saved, signature)
    inner: Callable[[], tuple[ServedShapes, ...]] = tuple
    if saved.is_late:
        # Only here: a process that runs a compiled model needs no onnx.
        from quantglow.api.models.programs import loop_driver

        bodies = {name: _build_model(body, compiler) for name, body in saved.loops.items()}
        loops = loop_driver(compiler, bodies)
        compiler, inner = replace(compiler, drivers=(loops,)), loops.served
    deciding = tuple((case.value_map or {}).keys())
    is_program = is_model and not saved.is_late
    opened = Opened(saved.graph, case if is_program else None, general)
    return FreeShapes(
        signature,
        source.graph_at,
        compiler,
        FallbackOnUse(source.fallback, compiler),
        source.freedom,
        deciding,
        opened,
        saved.digest,
        saved.is_late,
        inner,
    )


@dataclass(frozen=True)
class Reopened:
    """The source of a saved model, read when a second shape comes: a process that needs only the
    first imports no more than for a model of fixed shapes.
    """

    saved: SavedModel
    signature: Signature

    def graph_at(self, case: FreeCase) -> Graph:
        """The graph to compile for a case.  Raises ``FileFormatError`` for one with other outputs
        than the file declares."""
        graph = self._origin.graph_at(case)
        if not _is_whole(graph, self.signature):
            raise FileFormatError(
                "the model in the file has other outputs than it declares. Remedy: save the model "
                "again."
            )
        return graph

    def fallback(self, compiler: Compiler) -> Fallback:
        """Other ways, for cases in which the model cannot be compiled."""
        from quantglow.api.models.families import restore_source
        from quantglow.api.models.other_ways import OtherWays

        source = restore_source(self.saved)
        if not _takes_alike(source.signature, self.signature):
            raise FileFormatError(
                "the model in the file has other inputs than the file declares. "
                "Remedy: save the model again."
            )
        return OtherWays(source, compiler, self.saved.late_results)

    def freedom(self, case: Case, graph: Graph) -> Freedom:
        """The parts of the file that further shapes need."""
        saved = self.saved
        return Freedom(saved.free or {}, saved.source, saved.cases, bodies=saved.bodies)

    @cached_property
    def _origin(self) -> FamilyOrigin:
        from quantglow.api.models.families import FamilyOrigin

        return FamilyOrigin.restored(self.saved)


def _check_externals(graph: Graph, *, is_run: bool = True) -> None:
    """Check the ONNX nodes inside a graph from a file; one that is not run may have some without
    their models.  Raises ``FileFormatError``."""
    if any(isinstance(node, External) for node in graph.nodes):
        # Only here: a process without nodes of the fallback needs no onnx.
        from quantglow.importer.onnx.resolvers.external import check_externals

        check_externals(graph, is_run=is_run)
