"""Int8 for the part of a model behind operators that decide shapes, and for bodies of loops.

Calibration samples run through the float model up to that part in onnxruntime; the arrays that
arrive are its samples.  A body has the inputs of some trips.  A part stays float where
none arrive (a profile instead of samples, nothing chosen in any), and where options name operators
that it does not have; under an accuracy contract ``controlled_tail`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantglow.driver.parts import compiled_loop, declared_by, staged_tail
from quantglow.driver.pipeline.imported import Cut
from quantglow.driver.pipeline.request import QuantizationRequest
from quantglow.errors import QuantglowError
from quantglow.foreign_types import Array
from quantglow.frontend import Behind, Split, open_model
from quantglow.runtime.any_model import AnyModel
from quantglow.runtime.build import Compiler
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.loops.progress import Progress, TripSession
from quantglow.runtime.newer_opsets import opened
from quantglow.runtime.saved_models.members import MOST_FILES
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.staged_tails import StagedTail

Quantize = Callable[[Any, Any, QuantizationRequest], CompiledModel | FallbackModel]
"""Makes an int8 model of an ONNX model, samples and a request."""

MOST_DEPTH = MOST_FILES // 2
"""Maximum number of int8 parts inside of each other; each may have a body, which is a file, too."""

UNDER_CONTRACT = "without validation_fn accuracy control measures the part before it"
UNREACHED = "no calibration sample leads to values of it"
TOO_DEEP = f"it is behind more than {MOST_DEPTH} operators that decide shapes"
"""Why a part stays float."""

LEAST_TRIPS, MOST_TRIPS = 2, 128
"""Trips of each sample that a body is calibrated on, and of all samples, if these are few."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples are spread evenly over the unit interval."""


def int8_tail(
    cut: Cut,
    samples: Sequence[Mapping[str, Array]],
    request: QuantizationRequest,
    compiler: Compiler,
    quantize: Quantize,
) -> StagedTail | None:
    """The tail of a model, int8 where it can be; None where nothing of it is compiled."""
    own = replace(
        request,
        input_shapes=None,
        validation_data=None,
        verify=False,
        holds_out=False,
        measure_speed=False,
        measure_latency=False,
        progress=False,
        depth=request.depth + 1,
    )

    def part(model: Any, reached: list[dict[str, Array]]) -> AnyModel | str:
        if own.depth > MOST_DEPTH:
            return TOO_DEEP
        return quantized_part(model, reached, own, quantize) if reached else UNREACHED

    def int8(behind: Behind) -> tuple[AnyModel | str, AnyModel | str]:
        if request.contract is not None:
            return UNDER_CONTRACT, UNDER_CONTRACT
        found = list(reaching(cut.split, behind, samples, compiler.num_threads))
        body: AnyModel | str = UNREACHED
        if behind.loop is not None:
            trips = list(trips_of(behind, found, compiler))
            shapes = [{name: array.shape for name, array in trip.items()} for trip in trips]
            body = part(behind.loop.body_for(shapes), trips) if trips else UNREACHED
        names = [info.name for info in behind.rest.graph.input]
        given = ({name: values[name] for name in names} for values in found)
        rest = [feeds for feeds in given if all(array.size for array in feeds.values())]
        return body, part(behind.rest, rest) if behind.rest.graph.output else UNREACHED

    split = cut.split
    staged = staged_tail(split.tail, split.late, split.reasons, compiler, int8)
    return as_saved(staged, split, compiler)


def as_saved(staged: StagedTail | None, split: Split, compiler: Compiler) -> StagedTail | None:
    """A tail whose loop has an int8 body, with the weights that a file gives it: onnxruntime runs
    the loop where that body does not.  Other tails as they are."""
    if staged is None or staged.loop is None or staged.loop.int8 is None:
        return staged
    parts = staged.loop.int8, (staged.rest if staged.is_int8 else None) or staged.why
    whole = open_model(staged.restored).whole
    again = staged_tail(whole, split.late, split.reasons, compiler, lambda behind: parts)
    return again and replace(again, is_restored=True)


def quantized_part(
    model: Any,
    samples: Sequence[Mapping[str, Array]],
    request: QuantizationRequest,
    quantize: Quantize,
) -> AnyModel | str:
    """The int8 model of a part, or why there is none: it cannot be made, or each value of an input
    would make a program.
    """
    try:
        found = quantize(model, samples, request)
    except QuantglowError as error:
        return str(error)
    if not isinstance(found, CompiledModel | PartlyCompiledModel):
        return "nothing of it is compiled with its int8 form"
    programs = found.specialisations
    decides = isinstance(programs, FreeShapes) and bool(programs.deciding)
    return "its shapes depend on values of its inputs" if decides else found


def trips_of(
    behind: Behind, samples: Sequence[Mapping[str, Array]], compiler: Compiler
) -> Iterator[dict[str, Array]]:
    """The inputs of some trips of a loop, but for those with arrays without elements; ``samples``
    have the values that it reads."""
    assert behind.loop is not None
    session = opened(bytes(behind.first.SerializeToString()), compiler.num_threads)
    loop = compiled_loop(behind.loop, session, compiler, "")
    each = max(LEAST_TRIPS, MOST_TRIPS // max(len(samples), 1))
    for number, sample in enumerate(samples):
        feeds = declared_by(session, {name: sample[name] for name in session.input_names})
        progress = loop.begun(feeds)
        count = trips_in(progress.copy(), loop.trip) if loop.names.holds else progress.limit or 0
        wanted = positions(count, each, number)
        while progress.goes_on and progress.trips < count:
            if progress.trips in wanted and progress.has_elements:
                yield progress.feeds
            loop.trip.step(progress)


def trips_in(progress: Progress, trip: TripSession) -> int:
    """The number of trips until a condition ends them."""
    while progress.goes_on:
        trip.step(progress)
    return progress.trips


def positions(count: int, each: int, sample: int) -> set[int]:
    """Trips of a sample, evenly spread; others for each sample."""
    if count <= each:
        return set(range(count))
    shift = GOLDEN * sample % 1
    return {int((n + shift) / each * count) for n in range(each)}


def reaching(
    parts: Split, behind: Behind, samples: Sequence[Mapping[str, Array]], threads: int
) -> Iterator[dict[str, Array]]:
    """The values that samples of the model lead to in front of the rest."""
    stages = [opened(bytes(m.SerializeToString()), threads) for m in (parts.head, behind.first)]
    for sample in samples:
        values = dict(sample)
        for stage in stages:
            reads = {name: values[name] for name in stage.input_names}
            given = stage.run(declared_by(stage, reads))
            values |= dict(zip([info.name for info in stage.outputs], given, strict=True))
        yield values
