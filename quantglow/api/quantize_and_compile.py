"""``quantize_and_compile``: from a model and samples to a checked int8 program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from quantglow.api.models.fallback import (
    check_tail,
    fallback_model,
    partly_compiled,
    ready_to_answer,
)
from quantglow.api.models.families import with_steps
from quantglow.api.pipeline.accuracy_control import AccuracyControl, Whole
from quantglow.api.pipeline.calibration import Calibrated, calibrate
from quantglow.api.pipeline.compilation import (
    compile_quantized,
    with_int8_share,
    with_latency,
)
from quantglow.api.pipeline.groupwise import compile_with_packed_weights
from quantglow.api.pipeline.int8_tail import check_whole, int8_tail, under_contract
from quantglow.api.pipeline.loop_bodies import quantize_bodies
from quantglow.api.pipeline.quantization import (
    Prepared,
    prepare_quantization,
    quantize_cases,
    without_slower,
)
from quantglow.api.pipeline.request import (
    AccuracyContract,
    Cut,
    QuantizationArguments,
    QuantizationRequest,
    import_request,
)
from quantglow.importer import as_onnx
from quantglow.importer.onnx import open_model
from quantglow.ir.graph.graph import Graph
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.options import QuantizationConfig
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.hybrid.tails import StagedTail
from quantglow.runtime.programs.answers import AnswerLog
from quantglow.runtime.programs.build import Compiler, kernels_ahead
from quantglow.support.errors import FallbackError, OptionError, UnsupportedOpError
from quantglow.support.options import takes_options
from quantglow.support.processes.interrupts import keeping_best


@takes_options(QuantizationArguments)
def quantize_and_compile(options: QuantizationArguments) -> CompiledModel | FallbackModel:
    """Profile ``model`` on ``calibration_data``, quantize it to int8, compile it, check it.

    Ctrl-C ends what is under way and keeps the best so far, in every stage after the import; a
    second one aborts.  The report says what was cut.

    Raises a ``QuantglowError``.  No model is refused because it cannot be compiled: onnxruntime
    runs what cannot (``PartlyCompiledModel``), or, as in ``compile``, all of it
    (``FallbackModel``).  The report says which.
    """
    answers = AnswerLog.of(options.while_compiling, is_on=False)
    compiler = Compiler.of(
        options.target,
        options.num_threads,
        backends=options.backends,
        schedule=options.schedule,
        answers=answers,
    )
    model, samples = as_onnx(options.model, options.calibration_data)
    model = with_steps(model, options.before, options.after)
    with _answering_afterwards(answers):
        compiled = _run_pipeline(model, samples, QuantizationRequest.of(options), compiler)
    return ready_to_answer(compiled)


@contextmanager
def _answering_afterwards(answers: AnswerLog | None) -> Iterator[None]:
    """Inside, calls wait for the compiler: accuracy is that of the int8 model."""
    try:
        yield
    finally:
        if answers is not None:
            answers.is_on = True


def _run_pipeline(
    model: Any, data: Any, request: QuantizationRequest, compiler: Compiler
) -> CompiledModel | FallbackModel:
    """The stages, one after the other."""
    if request.config.weights is not None:
        return compile_with_packed_weights(model, data, request, compiler)

    def quantize_part(
        part: Any, samples: Any, of_part: QuantizationRequest
    ) -> CompiledModel | FallbackModel:
        return _run_pipeline(part, samples, of_part, compiler)

    try:
        source = import_request(model, data, request.input_shapes)
        if source.cut is not None:
            _check_rest(source.cut, compiler)
    except UnsupportedOpError as error:
        return fallback_model(open_model(model), error, compiler.num_threads)
    with keeping_best():
        calibrated_model = calibrate(source, request)
        ready = prepare_quantization(calibrated_model, request)
        bodies = quantize_bodies(calibrated_model, request, compiler, quantize_part)
        ready = replace(ready, bodies=bodies)
        if request.measure_speed:
            ready = without_slower(ready, compiler)
        compiled = _int8_model(ready, compiler)
        if source.cut and request.verify and not isinstance(compiled, CompiledModel):
            compiled = check_whole(compiled, source.family.signature, calibrated_model.checks)
        if not request.depth:
            feeds, signature = calibrated_model.checks.feeds, source.family.signature
            compiled = with_int8_share(compiled, signature, feeds, request.verify)
    if request.measure_latency:
        return with_latency(compiled, model, calibrated_model.checks.feeds)
    return compiled


def _tail_behind(
    calibrated: Calibrated, request: QuantizationRequest, compiler: Compiler
) -> StagedTail | None:
    """The part behind the compiled one as far as it is compiled, too; None for a whole model."""
    cut, samples = (
        calibrated.imported.cut,
        calibrated.samples.drawn_samples if calibrated.samples else [],
    )
    if cut is None:
        return None

    def on_tail(
        model: Any, data: Any, tail_request: QuantizationRequest
    ) -> CompiledModel | FallbackModel:
        return _run_pipeline(model, data, tail_request, compiler)

    return int8_tail(cut, samples, request, compiler, on_tail)


def _int8_model(prepared: Prepared, compiler: Compiler) -> CompiledModel | PartlyCompiledModel:
    """The model quantized, compiled and checked, under the request's contract if it has one."""
    calibrated, request = prepared.calibrated, prepared.request
    cut, contract = calibrated.imported.cut, request.contract
    tail = _tail_behind(calibrated, request, compiler)
    whole = _whole_model(cut, tail)
    if contract is None:
        with kernels_ahead(compiler) as load_kernels:
            candidate = quantize_cases(prepared, converted=load_kernels)
        return whole(compile_quantized(candidate, compiler))
    controlled = AccuracyControl(prepared, contract, compiler, whole).run()
    if tail is None:
        return whole(controlled.head)
    minutes = controlled.deadline.minutes_left
    plain = replace(request, max_drop=None, validation_fn=None, max_minutes=minutes)
    in_int8 = partial(_tail_behind, calibrated, plain, compiler)
    return under_contract(controlled, tail, in_int8, partial(_whole_model, cut))


def _check_rest(cut: Cut, compiler: Compiler) -> None:
    """Raise the cut's error if onnxruntime does not take the rest: before the work, not after."""
    try:
        check_tail(cut.split, compiler.num_threads)
    except FallbackError as refusal:
        raise cut.error from refusal


def quantize_under(
    contract: AccuracyContract | None,
    graph: Graph,
    samples: Sequence[Feeds],
    config: QuantizationConfig,
    compiler: Compiler,
) -> CompiledModel:
    """An optimized float graph quantized on all of the samples and compiled, not checked."""
    limits = {} if contract is None else vars(contract)
    request = QuantizationRequest(config=config, subset_size=len(samples), verify=False, **limits)
    if config.weights is not None:
        raise OptionError("recipes are for int8 activations. Remedy: leave weights= out.")
    with keeping_best():
        ready = prepare_quantization(calibrate(import_request(graph, samples), request), request)
        model = _int8_model(ready, compiler)
        assert isinstance(model, CompiledModel)
        return model


def _whole_model(cut: Cut | None, tail: StagedTail | None = None) -> Whole:
    """A function that completes the compiled part to the user's model; ``tail``: the rest of it, if
    that is compiled in part.
    """
    if cut is None:
        return lambda compiled: compiled
    return lambda head: partly_compiled(cut.source, cut.split, head, cut.error, tail)
