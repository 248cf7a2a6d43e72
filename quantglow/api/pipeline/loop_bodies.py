"""Int8 bodies of loops whose number of trips is computed: models of their own.

Samples run through the float model up to a loop; the inputs of some trips are the samples of its
body.  A profile has that of these trips.  A body stays float where no trip is made, and where
options name operators that it does not have.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quantglow import profiling
from quantglow.api.models.families import open_float_family
from quantglow.api.models.programs import compile_loop
from quantglow.api.pipeline.calibration import Calibrated
from quantglow.api.pipeline.request import QuantizationRequest, computing
from quantglow.importer.onnx import ExternalLoop
from quantglow.interpreter import Listener, interpret
from quantglow.ir.graph.family import Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.external import External
from quantglow.ort.session import open_session
from quantglow.profiling import Profile, merge_bodies
from quantglow.profiling.recording import run_interpreter
from quantglow.profiling.samples.feeds import Feeds, Located
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.hybrid.loop import CompiledLoop
from quantglow.runtime.hybrid.loop_driver import LoopBodies
from quantglow.runtime.hybrid.trips import Progress, TripSession
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.saved.members import MOST_FILES
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.arrays import Array
from quantglow.support.errors import QuantglowError, UnsupportedOpError

Quantize = Callable[[Any, Any, QuantizationRequest], CompiledModel | FallbackModel]
"""Makes an int8 model of an ONNX model, samples and a request."""

MOST_DEPTH = MOST_FILES // 2
"""Maximum number of int8 parts inside of each other; each may have a body, which is a file, too."""

UNREACHED = "no calibration sample leads to values of it"
UNPROFILED = "the profile has no trips of it"
TOO_DEEP = f"it is behind more than {MOST_DEPTH} operators that decide shapes"
HAS_FALLBACK = "onnxruntime computes a part of it"
AMBIGUOUS = "another loop gives a value of this name"
"""Why a part stays float."""

LEAST_TRIPS, MOST_TRIPS = 2, 128
"""Trips of each sample that a body is calibrated on, and of all samples, if these are few."""

TRIPS_OF_PROFILE = 16
"""Maximum number of trips of each sample that a profile has."""

Trip = Mapping[str, Array]
"""The inputs of a trip."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples are spread evenly over the unit interval."""


def quantize_bodies(
    calibrated: Calibrated, request: QuantizationRequest, compiler: Compiler, quantize: Quantize
) -> LoopBodies:
    """The int8 bodies of the loops of a model, or why they stay float."""
    of_body, profiles = part_request(request), calibrated.profile.bodies
    with computing(request.config.profile_with):
        loops, trips_of = _trips_by_loop(calibrated, compiler)

    def body(name: str, loop: ExternalLoop) -> CompiledModel | str:
        if of_body.depth > MOST_DEPTH:
            return TOO_DEEP
        if calibrated.samples is None:
            profile = profiles.get(name)
            return UNPROFILED if profile is None else quantized(loop, [], profile)
        trips = trips_of[name]
        return quantized(loop, trips, trips) if trips else UNREACHED

    def quantized(loop: ExternalLoop, trips: Sequence[Trip], data: Any) -> CompiledModel | str:
        cases = data.cases if isinstance(data, Profile) else ()
        shapes = [*map(shapes_of, trips), *(case.shape_map for case in sorted(cases))]
        try:
            inner = loop.late.body_for(shapes)
        except UnsupportedOpError as error:
            return "; ".join(error.reasons)
        model = quantize_part(inner, data, of_body, quantize)
        if isinstance(model, str) or not model.build.fallback:
            return model
        return HAS_FALLBACK

    return {
        name: AMBIGUOUS if others else body(name, loop) for name, (loop, *others) in loops.items()
    }


def profile_with_bodies(
    family: Family, data: Any, *, subset_size: int = 300, progress: bool | str = "auto"
) -> Profile:
    """The profile of a model, with those of the bodies of its loops; see ``profiling.profile``."""
    trips = TripProfiles()
    profile = profiling.profile(
        family, data, subset_size=subset_size, progress=progress, run=trips.run
    )
    return replace(profile, bodies=trips.bodies)


@dataclass
class TripProfiles:
    """The profiles of the bodies of loops, by the names of the loops, on trips that samples made.
    Thread-safe."""

    bodies: dict[str, Profile] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, graph: Graph, batches: Sequence[Located], listeners: Sequence[Listener]) -> None:
        """Run batches in the interpreter, and some trips of the loops that they lead to."""
        run_interpreter(graph, batches, listeners)
        for name, (loop, *others) in _loops_by_name(graph).items():
            if not others:
                # A body that cannot be quantized has no profile: errors come up where it would be.
                with self.lock, suppress(QuantglowError):
                    self._add(name, loop, graph, batches)

    def _add(self, name: str, loop: ExternalLoop, graph: Graph, batches: Sequence[Feeds]) -> None:
        # The same trips, in whatever order samples come, and on any number of threads.
        session = open_session(loop.model, 1)
        late = compile_loop(loop.late, session, Compiler(None), "")
        for feeds in batches:
            progress = late.begun(_operands(loop, graph, feeds))
            trips = list(chosen_trips(late, progress, TRIPS_OF_PROFILE, 0))
            if trips:
                body = loop.late.body_for(list(map(shapes_of, trips)))
                profile = profiling.profile(open_float_family(body), trips, progress=False)
                self.bodies = merge_bodies(self.bodies, {name: profile})


def shapes_of(trip: Trip) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs of a trip."""
    return {name: array.shape for name, array in trip.items()}


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
) -> CompiledModel | str:
    """The int8 model of a part, or why there is none: it cannot be made, or each value of an input
    would make a program.
    """
    try:
        part_model = quantize(model, samples, request)
    except QuantglowError as error:
        return str(error)
    if not isinstance(part_model, CompiledModel):
        return "nothing of it is compiled with its int8 form"
    programs = part_model.specialisations
    decides = isinstance(programs, FreeShapes) and bool(programs.deciding)
    return "its shapes depend on values of its inputs" if decides else part_model


def _loops_by_name(graph: Graph) -> dict[str, list[ExternalLoop]]:
    """The loops of a graph whose bodies are models of their own, each once."""
    loops: dict[str, dict[bytes, ExternalLoop]] = {}
    for node in graph.nodes:
        loop = ExternalLoop.of(node) if isinstance(node, External) else None
        if loop is not None:
            loops.setdefault(loop.name, {}).setdefault(loop.model, loop)
    return {name: list(same.values()) for name, same in loops.items()}


def _trips_by_loop(
    calibrated: Calibrated, compiler: Compiler
) -> tuple[dict[str, list[ExternalLoop]], dict[str, list[Trip]]]:
    """The loops of the graphs of all samples by name, and the inputs of some trips that these make:
    of all samples, as few trips of a body have the shapes of another."""
    family, loops = calibrated.family, _loops_by_name(calibrated.float_graph)
    trips: dict[str, list[Trip]] = defaultdict(list)
    samples = calibrated.samples.drawn_samples if calibrated.samples and loops else []
    loops_in: dict[Graph, dict[str, list[ExternalLoop]]] = {}
    opened: dict[bytes, CompiledLoop] = {}
    for number, feeds in enumerate(samples):
        graph = family.graph_at(family.case_of(feeds))
        if graph not in loops_in:
            loops_in[graph] = _loops_by_name(graph)
        for name, (external, *_) in loops_in[graph].items():
            if external.model not in opened:
                session = open_session(external.model, compiler.num_threads)
                opened[external.model] = compile_loop(external.late, session, compiler, "")
            loop = opened[external.model]
            begun = loop.begun(_operands(external, graph, feeds))
            trips[name] += sample_trips(loop, begun, number, len(samples))
    return loops, trips


def _operands(loop: ExternalLoop, graph: Graph, feeds: Feeds) -> dict[str, Array]:
    """The operands of a loop in the float run of a sample."""
    operands = [(name, graph.by_name(value)) for name, value in loop.operands.items()]
    stem = replace(graph, outputs=tuple(operands))
    with np.errstate(all="ignore"):
        return dict(zip(loop.operands, interpret(stem, feeds), strict=True))


def sample_trips(
    loop: CompiledLoop, progress: Progress, number: int, samples: int
) -> Iterator[dict[str, Array]]:
    """The inputs of some trips of a loop on sample ``number`` of so many, but for those with arrays
    without elements."""
    yield from chosen_trips(loop, progress, max(LEAST_TRIPS, MOST_TRIPS // max(samples, 1)), number)


def chosen_trips(
    loop: CompiledLoop, progress: Progress, most: int, number: int
) -> Iterator[dict[str, Array]]:
    """The inputs of at most so many trips, others for each ``number``."""
    count = _trips_in(progress.copy(), loop.trip) if loop.names.holds else progress.limit or 0
    trips = _positions(count, most, number)
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
