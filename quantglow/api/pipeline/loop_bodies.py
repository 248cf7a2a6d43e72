"""Int8 bodies of loops whose number of trips is computed: models of their own.

Samples run through the float model up to a loop; the inputs of some trips are the samples of its
body.  A body stays float where no trip is made, and where options name operators that it does not
have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantglow.api.models.programs import compile_loop
from quantglow.api.pipeline.calibration import Calibrated
from quantglow.api.pipeline.request import QuantizationRequest, computing
from quantglow.importer.onnx import ExternalLoop
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.external import External
from quantglow.ort.session import open_session
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.shape_variants import graph_for
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.hybrid.loop import AnyModel, CompiledLoop
from quantglow.runtime.hybrid.loop_driver import LoopBodies
from quantglow.runtime.hybrid.trips import Progress, TripSession
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.saved.members import MOST_FILES
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.arrays import Array
from quantglow.support.errors import QuantglowError

Quantize = Callable[[Any, Any, QuantizationRequest], CompiledModel | FallbackModel]
"""Makes an int8 model of an ONNX model, samples and a request."""

MOST_DEPTH = MOST_FILES // 2
"""Maximum number of int8 parts inside of each other; each may have a body, which is a file, too."""

UNREACHED = "no calibration sample leads to values of it"
TOO_DEEP = f"it is behind more than {MOST_DEPTH} operators that decide shapes"
IN_PARTS = "onnxruntime computes a part of it"
AMBIGUOUS = "another loop gives a value of this name"
"""Why a part stays float."""

LEAST_TRIPS, MOST_TRIPS = 2, 128
"""Trips of each sample that a body is calibrated on, and of all samples, if these are few."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples are spread evenly over the unit interval."""


def quantize_bodies(
    calibrated: Calibrated, request: QuantizationRequest, compiler: Compiler, quantize: Quantize
) -> LoopBodies:
    """The int8 bodies of the loops of a model, or why they stay float."""
    samples = calibrated.deciding or ()
    of_body = part_request(request)

    def body(loop: ExternalLoop) -> CompiledModel | str:
        if of_body.depth > MOST_DEPTH:
            return TOO_DEEP
        with computing(request.config.profile_with):
            trips = list(_reaching_trips(loop, calibrated.float_graph, samples, compiler))
        if not trips:
            return UNREACHED
        shapes = [{name: array.shape for name, array in trip.items()} for trip in trips]
        model = quantize_part(loop.late.body_for(shapes), trips, of_body, quantize)
        if isinstance(model, CompiledModel) and not _has_late_sizes(model):
            return model
        return model if isinstance(model, str) else IN_PARTS

    return {
        name: body(loops[0]) if len(loops) == 1 else AMBIGUOUS
        for name, loops in _loops_by_name(calibrated.float_graph).items()
    }


def part_request(request: QuantizationRequest) -> QuantizationRequest:
    """The request for a part of a model, which is checked with all of it."""
    return replace(
        request,
        input_shapes=None,
        validation_data=None,
        validation_fn=None,
        max_drop=None,
        verify=False,
        holds_out=False,
        measure_speed=False,
        measure_latency=False,
        progress=False,
        depth=request.depth + 1,
    )


def quantize_part(
    model: Any,
    samples: Sequence[Mapping[str, Array]],
    request: QuantizationRequest,
    quantize: Quantize,
) -> AnyModel | str:
    """The int8 model of a part, or why there is none: it cannot be made, or each value of an input
    would make a program.
    """
    try:
        part_model = quantize(model, samples, request)
    except QuantglowError as error:
        return str(error)
    if not isinstance(part_model, CompiledModel | PartlyCompiledModel):
        return "nothing of it is compiled with its int8 form"
    programs = part_model.specialisations
    decides = isinstance(programs, FreeShapes) and bool(programs.deciding)
    return "its shapes depend on values of its inputs" if decides else part_model


def _has_late_sizes(model: CompiledModel) -> bool:
    """Whether nodes of a model decide sizes: it runs in segments."""
    programs = model.specialisations
    return isinstance(programs, FreeShapes) and programs.is_late


def _loops_by_name(graph: Graph) -> dict[str, list[ExternalLoop]]:
    """The loops of a graph whose bodies are models of their own, each once."""
    loops: dict[str, dict[bytes, ExternalLoop]] = {}
    for node in graph.nodes:
        loop = ExternalLoop.of(node) if isinstance(node, External) else None
        if loop is not None:
            loops.setdefault(loop.name, {}).setdefault(loop.model, loop)
    return {name: list(same.values()) for name, same in loops.items()}


def _reaching_trips(
    external: ExternalLoop, main: Graph, samples: Sequence[Feeds], compiler: Compiler
) -> Iterator[dict[str, Array]]:
    """The inputs of some trips that samples make."""
    session = open_session(external.model, compiler.num_threads)
    loop = compile_loop(external.late, session, compiler, "")
    for number, feeds in enumerate(samples):
        graph = graph_for(feeds, main)
        operands = [(name, graph.by_name(value)) for name, value in external.operands.items()]
        stem = replace(graph, outputs=tuple(operands))
        values = dict(zip(external.operands, interpret(stem, feeds), strict=True))
        yield from sample_trips(loop, loop.begun(values), number, len(samples))


def sample_trips(
    loop: CompiledLoop, progress: Progress, number: int, samples: int
) -> Iterator[dict[str, Array]]:
    """The inputs of some trips of a loop on sample ``number`` of so many, but for those with arrays
    without elements."""
    each = max(LEAST_TRIPS, MOST_TRIPS // max(samples, 1))
    count = _trips_in(progress.copy(), loop.trip) if loop.names.holds else progress.limit or 0
    trips = _positions(count, each, number)
    while progress.goes_on and progress.trips < count:
        if progress.trips in trips and progress.has_elements:
            yield progress.feeds
        loop.trip.step(progress)


def _trips_in(progress: Progress, trip: TripSession) -> int:
    """The number of trips until a condition ends them."""
    while progress.goes_on:
        trip.step(progress)
    return progress.trips


def _positions(count: int, each: int, sample: int) -> set[int]:
    """Trips of a sample, evenly spread; others for each sample."""
    if count <= each:
        return set(range(count))
    shift = GOLDEN * sample % 1
    return {int((n + shift) / each * count) for n in range(each)}
