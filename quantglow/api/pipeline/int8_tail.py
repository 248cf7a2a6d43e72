"""Int8 for the part of a model behind operators that decide shapes, and the check of all its parts.

Calibration samples run through the float model up to that part in onnxruntime; the arrays that
arrive are its samples.  The samples of a loop's body are the inputs of some trips.  A part stays
float where none arrive (a profile instead of samples, nothing chosen in any), and where options
name operators that it does not have.

Under an accuracy contract the search of accuracy control ends with that part in float.  It becomes
int8 if the contract still holds for the whole model (``under_contract``), which only
``validation_fn`` can measure.

``check_whole`` compares the outputs of all parts together with those of onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from quantglow.api.models.parts import compile_loop, select_declared, stage_tail
from quantglow.api.pipeline.accuracy_control import Controlled, Whole
from quantglow.api.pipeline.calibration import CheckSamples
from quantglow.api.pipeline.request import Cut, QuantizationRequest
from quantglow.evaluation.accuracy import NOTHING_QUANTIZED, OutputAccuracy, RightAnswers
from quantglow.evaluation.layers import (
    NO_OUTPUT_OF_NUMBERS,
    Verification,
    attempt,
    until_interrupted,
)
from quantglow.evaluation.metrics import class_like
from quantglow.evaluation.outputs import (
    ONNXRUNTIME,
    compare_output,
    pairs_of_one_size,
    shape_notes,
)
from quantglow.evaluation.report import Report
from quantglow.importer.onnx import Behind, Split, open_model
from quantglow.ir.graph.signature import Signature, declared_only
from quantglow.ir.types import DType, TensorType
from quantglow.ort.float_results import Outputs, running
from quantglow.ort.session import open_session
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.hybrid.loop import AnyModel
from quantglow.runtime.hybrid.tails import StagedTail
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

UNDER_CONTRACT = "without validation_fn accuracy control measures the part before it"
UNREACHED = "no calibration sample leads to values of it"
TOO_DEEP = f"it is behind more than {MOST_DEPTH} operators that decide shapes"
"""Why a part stays float."""

LEAST_TRIPS, MOST_TRIPS = 2, 128
"""Trips of each sample that a body is calibrated on, and of all samples, if these are few."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples are spread evenly over the unit interval."""

Model = CompiledModel | PartlyCompiledModel

HEAD_ONLY = "the outputs of the whole model were not compared, only those of its first part"

NO_RIGHT_ANSWERS = (
    "the labels of validation_data were not used: no output has one row of scores for each, of the "
    "same shape in float and int8"
)


def int8_tail(
    cut: Cut,
    samples: Sequence[Mapping[str, Array]],
    request: QuantizationRequest,
    compiler: Compiler,
    quantize: Quantize,
) -> StagedTail | None:
    """The tail of a model, int8 where it can be; None where nothing of it is compiled."""
    tail_request = replace(
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
        if tail_request.depth > MOST_DEPTH:
            return TOO_DEEP
        return _quantize_part(model, reached, tail_request, quantize) if reached else UNREACHED

    def int8(behind: Behind) -> tuple[AnyModel | str, AnyModel | str]:
        if request.contract is not None:
            return UNDER_CONTRACT, UNDER_CONTRACT
        reached = list(_reaching(cut.split, behind, samples, compiler.num_threads))
        body: AnyModel | str = UNREACHED
        if behind.loop is not None:
            trips = list(_sample_trips(behind, reached, compiler))
            shapes = [{name: array.shape for name, array in trip.items()} for trip in trips]
            body = part(behind.loop.body_for(shapes), trips) if trips else UNREACHED
        names = [info.name for info in behind.suffix.graph.input]
        tail_feeds = ({name: values[name] for name in names} for values in reached)
        filled_feeds = [
            feeds for feeds in tail_feeds if all(array.size for array in feeds.values())
        ]
        return body, part(behind.suffix, filled_feeds) if behind.suffix.graph.output else UNREACHED

    split = cut.split
    staged = stage_tail(split.tail, split.late, split.reasons, compiler, int8)
    return _as_saved(staged, split, compiler)


def _as_saved(staged: StagedTail | None, split: Split, compiler: Compiler) -> StagedTail | None:
    """A tail whose loop has an int8 body, with the weights that a file gives it: onnxruntime runs
    the loop where that body does not.  Other tails as they are."""
    if staged is None or staged.loop is None or staged.loop.int8 is None:
        return staged
    parts = staged.loop.int8, (staged.suffix if staged.is_int8 else None) or staged.why
    whole = open_model(staged.restored).whole
    again = stage_tail(whole, split.late, split.reasons, compiler, lambda behind: parts)
    return again and replace(again, is_restored=True)


def _quantize_part(
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


def _sample_trips(
    behind: Behind, samples: Sequence[Mapping[str, Array]], compiler: Compiler
) -> Iterator[dict[str, Array]]:
    """The inputs of some trips of a loop, but for those with arrays without elements; ``samples``
    have the values that it reads."""
    assert behind.loop is not None
    session = open_session(bytes(behind.first.SerializeToString()), compiler.num_threads)
    loop = compile_loop(behind.loop, session, compiler, "")
    each = max(LEAST_TRIPS, MOST_TRIPS // max(len(samples), 1))
    for number, sample in enumerate(samples):
        feeds = select_declared(session, {name: sample[name] for name in session.input_names})
        progress = loop.begun(feeds)
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


def _reaching(
    parts: Split, behind: Behind, samples: Sequence[Mapping[str, Array]], threads: int
) -> Iterator[dict[str, Array]]:
    """The values that samples of the model lead to in front of the rest."""
    stages = [
        open_session(bytes(m.SerializeToString()), threads) for m in (parts.head, behind.first)
    ]
    for sample in samples:
        values = dict(sample)
        for stage in stages:
            reads = {name: values[name] for name in stage.input_names}
            head_values = stage.run(select_declared(stage, reads))
            values |= dict(zip([info.name for info in stage.outputs], head_values, strict=True))
        yield values


def under_contract(
    controlled: Controlled,
    in_float: StagedTail,
    int8: Callable[[], StagedTail | None],
    whole: Callable[[StagedTail], Whole],
) -> Model:
    """The whole model, with an int8 tail where that keeps the contract.

    ``int8`` makes that tail; ``whole`` gives a function that completes a head by a tail.
    """
    head, contract = controlled.head, controlled.contract
    if not controlled.measures_whole_model:
        return whole(in_float.because(UNDER_CONTRACT))(head)
    if why := controlled.deadline.reason:
        return whole(in_float.because(f"{why} ended accuracy control before it"))(head)
    tail = int8()
    if tail is None or not tail.has_int8:
        return whole(tail or in_float)(head)
    joined = whole(tail)(head)
    drop = contract.drop(controlled.baseline, contract.figure(joined))
    if drop > contract.max_drop:
        return whole(in_float.because(f"in int8 the drop would be {drop:.4g}"))(head)
    note = f"accuracy control: with the part behind the cut in int8 the drop is {drop:.4g}"
    return whole(tail)(controlled.noted(note))


def check_whole(
    model: PartlyCompiledModel, signature: Signature, checks: CheckSamples
) -> PartlyCompiledModel:
    """The model; its report has the accuracy of its own outputs, not of those of its first part."""
    if not checks.feeds:
        return model
    check = partial(_compare, model, signature, checks)
    result, head = attempt(check, Verification(), HEAD_ONLY), model.reporter

    def report() -> Report:
        head_report = head()
        notes = (*head_report.notes, *result.notes)
        if model.staged is not None and model.staged.is_int8:
            notes = tuple(note for note in notes if note != NOTHING_QUANTIZED)
        if not result.samples:
            return replace(head_report, notes=notes)
        return replace(
            head_report,
            notes=notes,
            outputs=result.outputs,
            compared_with=result.compared_with,
            samples=result.samples,
            right=result.right,
        )

    return replace(model, reporter=report)


def _compare(
    model: PartlyCompiledModel, signature: Signature, checks: CheckSamples
) -> Verification:
    """Every output that is a tensor of numbers, on the samples of the check."""
    samples, names = list(until_interrupted(checks.feeds)), _numbers(model)
    if not names:
        return Verification(notes=(NO_OUTPUT_OF_NUMBERS,))
    declared = [declared_only(signature.inputs, feeds) for feeds in samples]
    with running(model.model, declared, names) as answer:
        results: Outputs = [model.run(names, feeds) for feeds in samples]
        expected, notes = answer()
    outputs = list[OutputAccuracy]()
    for position, name in enumerate(names):
        fitting = pairs_of_one_size(results, expected, position)
        outputs += [_accuracy(name, fitting)] if fitting else []
    notes = (*notes, *shape_notes(dict(enumerate(names)), results, expected))
    right = _right(checks, expected, results)
    if checks.validation and checks.validation.labels and right is None:
        notes = (*notes, NO_RIGHT_ANSWERS)
    return Verification(tuple(outputs), (), ONNXRUNTIME, len(samples), notes, right)


def _numbers(model: PartlyCompiledModel) -> list[str]:
    """Names of the outputs that are tensors of numbers."""
    kinds = {info.name: info.type for info in model.get_outputs()}
    return [n for n, kind in kinds.items() if kind.startswith("tensor(") and "string" not in kind]


def _right(checks: CheckSamples, expected: Outputs, results: Outputs) -> RightAnswers | None:
    """The shares of right answers; None where outputs of a sample have other shapes, or fit no
    labels."""
    shapes = ([[array.shape for array in row] for row in rows] for rows in (expected, results))
    if checks.validation is None or next(shapes) != next(shapes):
        return None
    return checks.validation.right(expected, results)


def _accuracy(name: str, pairs: Sequence[tuple[Array, Array]]) -> OutputAccuracy:
    """The accuracy of an output, given pairs of arrays of one shape."""
    full = [(w, f) for w, f in pairs if w.size]
    scores = [w.dtype.kind == "f" and class_like(TensorType(DType.F32, w.shape)) for w, _ in full]
    classes = bool(scores) and all(scores)
    return compare_output(name, [w for w, _ in full], [f for _, f in full], classes)
