"""Programs of models: compiled at once or on first use, with a driver of their loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from quantglow.api.models.families import Built, graph_case, open_family
from quantglow.importer.onnx import ExternalLoop, LateLoop, Source
from quantglow.importer.onnx.nodes.values import graph_dtype
from quantglow.ir.graph.family import Case, FreeCase, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.external import External
from quantglow.ort.session import Session, open_session
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.loop import Bodies, BodyShapes, CompiledLoop
from quantglow.runtime.hybrid.loop_driver import LoopBodies, LoopDriver, OpenedLoop
from quantglow.runtime.hybrid.trips import TripSession
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.free_shapes import MOST_VALUES, FreeShapes, Opened
from quantglow.runtime.shapes.general import general_program
from quantglow.runtime.shapes.specializations import (
    Fallback,
    ModelPrograms,
    OneShape,
    Specialisation,
)
from quantglow.support.errors import FileFormatError


def build_programs(
    built: Built,
    compiler: Compiler,
    fallback: Fallback | None = None,
    graph: Graph | None = None,
    case: Case | None = None,
) -> ModelPrograms:
    """The programs of a model: that of ``graph``, compiled now, and programs for other shapes where
    the family has them.

    ``case``: that of the graph, by default that of its inputs.  ``fallback`` runs what cannot be
    compiled.  Raises the errors of the compiler.
    """
    # The model declares more of late results than the graph tells.
    is_single = built.family.is_single and built.family.late_results is LateResults.REFUSED
    if graph is not None and is_single:
        return OneShape(Specialisation(graph, compiler.compile(graph), case), compiler)
    if graph is None:
        return free_programs(built, compiler, fallback)
    opened = case or graph_case(graph, ())
    if built.is_late:
        programs = free_programs(built, compiler, fallback)
        programs.prepare(replace(opened, late=()))
    else:
        programs = free_programs(built, compiler, fallback, Opened(graph, opened))
        programs.compile_opened(opened)
    return programs


def load_first_kernels(
    built: Built, compiler: Compiler, graph: Graph, case: Case, check: Callable[[], object]
) -> None:
    """Compile the kernels of the first program of ``build_programs``, whatever its weights.

    ``check`` is called before each kernel; its error ends the work.
    """

    def graph_at(free: FreeCase) -> Graph:
        return graph if free == case else built.exact_graph_at(free)

    program = None
    if not (built.family.is_single or built.is_late):
        program = general_program(built.family.signature, case, graph_at, compiler)
    if program is None:
        compiler.load_kernels(graph, check)
    else:
        program.load_kernels(check)


def free_programs(
    built: Built,
    compiler: Compiler,
    fallback: Fallback | None = None,
    opened: Opened | None = None,
    most_values: int = MOST_VALUES,
) -> FreeShapes:
    """The programs of a model, compiled on first use; ``opened``: the graph of a case that is
    known, ``most_values``: those for values of inputs at the same shapes.

    Loops of models in which nodes decide sizes have a driver.
    """
    family = built.family
    loops = loop_driver(compiler, built.bodies)
    return FreeShapes(
        family.signature,
        built.graph_at,
        replace(compiler, drivers=(loops,)) if built.is_late else compiler,
        fallback,
        built.freedom,
        family.deciding,
        opened or built.opened,
        is_late=built.is_late,
        inner=loops.served,
        most_values=most_values,
    )


def compile_loop(
    loop: LateLoop, session: Session, compiler: Compiler, int8: CompiledModel | str
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
    if isinstance(int8, str):
        return CompiledLoop(
            loop.names, session, operand_session, trip, Bodies(programs), not_int8=int8
        )
    bodies = Bodies(None, int8.specialisations)
    return CompiledLoop(loop.names, session, operand_session, trip, bodies, int8)


def loop_driver(compiler: Compiler, bodies: LoopBodies | None = None) -> LoopDriver:
    """The driver of loops of graphs that go to the end of their model; ``bodies`` are int8, or say
    why they are not."""

    def open_loop(node: External) -> OpenedLoop | None:
        external = ExternalLoop.of(node)
        return None if external is None else open_external(external)

    def open_external(external: ExternalLoop) -> OpenedLoop:
        int8 = (bodies or {}).get(external.name, "")
        if not isinstance(int8, str):
            _check_body(external, int8)

        def compile_for(num_threads: int) -> CompiledLoop:
            session = open_session(external.model, num_threads)
            threaded = replace(compiler, num_threads=num_threads)
            body = int8 if isinstance(int8, str) else int8.with_num_threads(num_threads)
            return compile_loop(external.late, session, threaded, body)

        body = None if isinstance(int8, str) else int8
        names = external.operands, external.results, external.late.names
        return OpenedLoop(external.model, *names, compile_for, body)

    return LoopDriver(open_loop)


def _check_body(external: ExternalLoop, body: CompiledModel) -> None:
    """Raise ``FileFormatError`` unless a body, which a file may have, is that of the loop: it reads
    the loop's values where they are."""
    proto, signature = external.late.body.graph, body.specialisations.signature
    for infos, ports in ((proto.input, signature.inputs), (proto.output, signature.outputs)):
        kinds = {info.name: graph_dtype(info.type.tensor_type.elem_type) for info in infos}
        if kinds != {port.name: port.dtype for port in ports}:
            raise FileFormatError(
                f"the int8 body of the loop {external.name!r} has other inputs or outputs than the "
                "loop. Remedy: save the model again."
            )
