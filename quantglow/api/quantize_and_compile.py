"""``quantize_and_compile``: from a model and samples to a checked int8 program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from quantglow.api.models.fallback import fallback_model, ready_to_answer
from quantglow.api.models.families import with_steps
from quantglow.api.pipeline.accuracy_control import AccuracyControl
from quantglow.api.pipeline.calibration import calibrate
from quantglow.api.pipeline.compilation import (
    compile_quantized,
    load_kernels,
    with_int8_share,
    with_latency,
)
from quantglow.api.pipeline.groupwise import compile_with_packed_weights
from quantglow.api.pipeline.loop_bodies import quantize_bodies
from quantglow.api.pipeline.quantization import (
    Prepared,
    prepare_quantization,
    quantize_cases,
    without_slower,
)
from quantglow.api.pipeline.request import (
    AccuracyContract,
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
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.programs.answers import AnswerLog
from quantglow.runtime.programs.build import Compiler, kernels_ahead
from quantglow.support.errors import OptionError, UnsupportedOpError
from quantglow.support.options import takes_options
from quantglow.support.processes.interrupts import keeping_best


@takes_options(QuantizationArguments)
def quantize_and_compile(options: QuantizationArguments) -> CompiledModel | FallbackModel:
    """Profile ``model`` on ``calibration_data``, quantize it to int8, compile it, check it.

    Ctrl-C ends what is under way and keeps the best so far, in every stage after the import; a
    second one aborts.  The report says what was cut.

    Raises a ``QuantglowError``.  No model is refused because it cannot be compiled: onnxruntime
    runs what cannot, or, as in ``compile``, all of it (``FallbackModel``).  The report says which.
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
        if not request.depth:
            feeds = calibrated_model.checks.feeds
            compiled = with_int8_share(compiled, feeds, request.verify)
    if request.measure_latency:
        return with_latency(compiled, model, calibrated_model.checks.feeds)
    return compiled


def _int8_model(prepared: Prepared, compiler: Compiler) -> CompiledModel:
    """The model quantized, compiled and checked, under the request's contract if it has one."""
    contract = prepared.request.contract
    if contract is not None:
        return AccuracyControl(prepared, contract, compiler).run()
    with kernels_ahead(partial(load_kernels, prepared, compiler)) as begin:
        candidate = quantize_cases(prepared, converted=begin)
    return compile_quantized(candidate, compiler)


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
        return _int8_model(ready, compiler)
