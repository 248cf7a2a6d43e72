"""``quantize_and_compile``: from a model and samples to a checked int8 program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Literal

from quantglow.api.models.fallback import (
    check_tail,
    fallback_model,
    partly_compiled,
    ready_to_answer,
)
from quantglow.api.models.families import InputShapes, with_steps
from quantglow.api.pipeline.accuracy_control import AccuracyControl, Whole
from quantglow.api.pipeline.calibration import Calibrated, calibrated
from quantglow.api.pipeline.compilation import compiled, with_latency
from quantglow.api.pipeline.groupwise import compiled_with_packed_weights
from quantglow.api.pipeline.int8_tail import checked_whole, int8_tail, under_contract
from quantglow.api.pipeline.quantization import Prepared, prepared, quantized, without_slower
from quantglow.api.pipeline.request import AccuracyContract, Cut, QuantizationRequest, imported
from quantglow.importer import as_onnx
from quantglow.importer.onnx import open_model
from quantglow.ir.graph.graph import Graph
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.accuracy_control import DROP_TYPES
from quantglow.quantization.options import (
    COMPILED,
    ActivationType,
    DropType,
    Effort,
    Equalization,
    IgnoredNodes,
    Method,
    Preset,
    ProfileWith,
    Progress,
    QuantizationConfig,
    Recovery,
    Schedule,
    WeightType,
)
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.hybrid.tails import StagedTail
from quantglow.runtime.programs.answers import AnswerLog, WhileCompiling
from quantglow.runtime.programs.build import Compiler, kernels_ahead
from quantglow.support.arguments import (
    choice,
    count,
    flag,
    options_named,
    positive,
    progress_mode,
    shapes,
)
from quantglow.support.errors import FallbackError, OptionError, UnsupportedOpError
from quantglow.support.processes.interrupts import keeping_best


@options_named()
def quantize_and_compile(
    model: Any,
    calibration_data: Any,
    *,
    preset: Preset = "mixed",
    subset_size: int = 300,
    ignored_scope: IgnoredNodes = None,
    model_type: Literal["transformer"] | None = None,
    max_drop: float | None = None,
    drop_type: DropType = "absolute",
    validation_fn: Callable[..., float] | None = None,
    max_minutes: float | None = None,
    calibrate_method: Method | Enum = "auto",
    per_channel: bool = True,
    nodes_to_exclude: Iterable[str] | None = None,
    op_types_to_quantize: Iterable[str] | None = None,
    int16_activations: str | Iterable[str] = (),
    target: str = "native",
    num_threads: int | None = None,
    verify: bool = True,
    progress: Progress = "auto",
    seed: int = 0,
    input_shapes: InputShapes | None = None,
    measure_speed: bool = False,
    validation_data: Any = None,
    weights: WeightType | None = None,
    group_size: int = 64,
    activations: ActivationType = "dynamic",
    symmetric_weights: bool = True,
    quantize_output: bool = False,
    schedule: Schedule = "fast",
    effort: Effort = "default",
    measure_latency: bool = False,
    percentile: float = 99.999,
    recovery: Literal["auto"] | Iterable[Recovery] = "auto",
    equalization: Literal["auto"] | Iterable[Equalization] = "auto",
    before: Any = None,
    after: Any = None,
    profile_with: ProfileWith = COMPILED,
    while_compiling: WhileCompiling = "wait",
) -> CompiledModel | FallbackModel:
    """Profile ``model`` on ``calibration_data``, quantize it to int8, compile it, check it.

    model             path, bytes or ``onnx.ModelProto``; a ``torch.nn.Module`` is exported on the
                      first sample (extra ``quantglow[torch]``), or is an ``ExportedProgram``
    calibration_data  samples (dicts, arrays or tuples), a CalibrationDataReader, an ``.npz`` path,
                      a ``Profile`` or its path
    subset_size       maximum number of calibration samples (batches of the model)
    validation_data   samples for the check, in the forms of ``calibration_data``; a dict or
                      ``.npz`` file may have an array ``labels`` (class indices) beside the inputs:
                      the report then has the share of right answers of float and int8
    max_drop, drop_type, validation_fn  maximum accuracy drop allowed, see ``accuracy_contract``
    max_minutes       bounds the search for ranges, scales and rounded weights, and again that for
                      steps out of int8; the best found until then is kept, and the report says so
    verify            compare with onnxruntime, for the report, on samples that are held out of
                      calibration: up to 60 beyond ``subset_size``, or one in five of ten or more;
                      of fewer, on the same.  False: calibrate on all
    progress          progress bar; "auto": only in a terminal or a notebook
    input_shapes      fixes the shapes that the model leaves free; without it, it serves them all
    model_type        None or "transformer", as in NNCF.  NNCF then smooths activations and keeps
                      normalizations and masks in float; here every model gets that, layer by layer
                      where it helps, so both mean the same
    measure_speed     keep float the layers that int8 makes slower, timed here: may differ by run
    measure_latency   time one call for the report, beside onnxruntime's float model in a child
                      process: about half a second, or three runs of a slow model
    effort            "fast": in seconds, without search; "best": longer, and the output noise on
                      held-back samples never grows
    weights           "int4" or "int8": only weights of products are quantized, in groups of
                      ``group_size``; ``activations`` are rounded to int8 as they come ("dynamic"),
                      or "float".  No calibration data is needed (None); samples round better
    before, after     steps of ``quantglow.steps`` that become part of the model, see ``compile``;
                      all data is what the model with these steps takes, as uint8 images
    profile_with      "compiled": layers are computed on samples by machine code; "interpreter": in
                      NumPy, with the same values up to the rounding of float sums
    target, num_threads, schedule  see ``compile``; the other options: see ``QuantizationConfig``
    while_compiling   "onnxruntime": it runs the float model at new shapes while their int8 program
                      is compiled, see ``compile``; answers change when that is ready

    Ctrl-C ends what is under way and keeps the best so far, in every stage after the import; a
    second one aborts.  The report says what was cut.

    Raises a ``QuantglowError``.  No model is refused because it cannot be compiled: onnxruntime
    runs what cannot (``PartlyCompiledModel``), or, as in ``compile``, all of it
    (``FallbackModel``).  The report says which.
    """
    if model_type is not None:
        choice("model_type", model_type, ["transformer"])
    max_minutes = None if max_minutes is None else positive("max_minutes", max_minutes)
    verify = flag("verify", verify)
    request = QuantizationRequest(
        config=QuantizationConfig(
            preset=preset,
            calibrate_method=calibrate_method,
            per_channel=per_channel,
            ignored_scope=ignored_scope,
            nodes_to_exclude=nodes_to_exclude,
            op_types_to_quantize=op_types_to_quantize,
            seed=seed,
            int16_activations=int16_activations,
            weights=weights,
            group_size=group_size,
            activations=activations,
            symmetric_weights=symmetric_weights,
            quantize_output=quantize_output,
            effort=effort,
            profile_with=profile_with,
            percentile=percentile,
            recovery=recovery,
            equalization=equalization,
        ),
        subset_size=count("subset_size", subset_size),
        progress=progress_mode("progress", progress),
        input_shapes=shapes("input_shapes", input_shapes),
        validation_data=validation_data,
        verify=verify,
        holds_out=verify,
        max_minutes=max_minutes,
        contract=accuracy_contract(max_drop, drop_type, validation_fn, max_minutes),
        measure_speed=flag("measure_speed", measure_speed),
        measure_latency=flag("measure_latency", measure_latency),
    )
    answers = AnswerLog.of(while_compiling, is_on=False)
    compiler = Compiler.of(target, num_threads, schedule=schedule, answers=answers)
    model, samples = as_onnx(model, calibration_data)
    with answering_afterwards(answers):
        found = quantized_and_compiled(with_steps(model, before, after), samples, request, compiler)
    return ready_to_answer(found)


@contextmanager
def answering_afterwards(answers: AnswerLog | None) -> Iterator[None]:
    """Inside, calls wait for the compiler: accuracy is that of the int8 model."""
    try:
        yield
    finally:
        if answers is not None:
            answers.is_on = True


def quantized_and_compiled(
    model: Any, data: Any, request: QuantizationRequest, compiler: Compiler
) -> CompiledModel | FallbackModel:
    """The stages, one after the other."""
    if request.config.weights is not None:
        return compiled_with_packed_weights(model, data, request, compiler)
    try:
        source = imported(model, data, request.input_shapes)
        if source.cut is not None:
            check_rest(source.cut, compiler)
    except UnsupportedOpError as error:
        return fallback_model(open_model(model), error, compiler.num_threads)
    with keeping_best():
        seen = calibrated(source, request)
        ready = prepared(seen, request)
        if request.measure_speed:
            ready = without_slower(ready, compiler)
        found = int8_model(ready, compiler)
        if source.cut and request.verify and not isinstance(found, CompiledModel):
            found = checked_whole(found, source.family.signature, seen.checks)
    if request.measure_latency:
        return with_latency(found, model, seen.checks.feeds)
    return found


def tail_behind(
    seen: Calibrated, request: QuantizationRequest, compiler: Compiler
) -> StagedTail | None:
    """The part behind the compiled one as far as it is compiled, too; None for a whole model."""
    cut, samples = seen.imported.cut, seen.samples.drawn_samples if seen.samples else []
    if cut is None:
        return None

    def on_tail(model: Any, data: Any, own: QuantizationRequest) -> CompiledModel | FallbackModel:
        return quantized_and_compiled(model, data, own, compiler)

    return int8_tail(cut, samples, request, compiler, on_tail)


def int8_model(prepared: Prepared, compiler: Compiler) -> CompiledModel | PartlyCompiledModel:
    """The model quantized, compiled and checked, under the request's contract if it has one."""
    seen, request = prepared.calibrated, prepared.request
    cut, contract = seen.imported.cut, request.contract
    tail = tail_behind(seen, request, compiler)
    whole = whole_model(cut, tail)
    if contract is None:
        with kernels_ahead(compiler) as load_kernels:
            found = quantized(prepared, converted=load_kernels)
        return whole(compiled(found, compiler))
    controlled = AccuracyControl(prepared, contract, compiler, whole).run()
    if tail is None:
        return whole(controlled.head)
    plain = replace(request, contract=None, max_minutes=controlled.deadline.minutes_left)
    in_int8 = partial(tail_behind, seen, plain, compiler)
    return under_contract(controlled, tail, in_int8, partial(whole_model, cut))


def check_rest(cut: Cut, compiler: Compiler) -> None:
    """Raise the cut's error if onnxruntime does not take the rest: before the work, not after."""
    try:
        check_tail(cut.split, compiler.num_threads)
    except FallbackError as refusal:
        raise cut.error from refusal


def quantized_under(
    contract: AccuracyContract | None,
    graph: Graph,
    samples: Sequence[Feeds],
    config: QuantizationConfig,
    compiler: Compiler,
) -> CompiledModel:
    """An optimized float graph quantized on all of the samples and compiled, not checked."""
    limit = contract.max_minutes if contract else None
    request = QuantizationRequest(
        config, subset_size=len(samples), max_minutes=limit, contract=contract
    )
    if config.weights is not None:
        raise OptionError("recipes are for int8 activations. Remedy: leave weights= out.")
    with keeping_best():
        ready = prepared(calibrated(imported(graph, samples), request), request)
        made = int8_model(ready, compiler)
        assert isinstance(made, CompiledModel)
        return made


def whole_model(cut: Cut | None, tail: StagedTail | None = None) -> Whole:
    """A function that completes the compiled part to the user's model; ``tail``: the rest of it, if
    that is compiled in part.
    """
    if cut is None:
        return lambda compiled: compiled
    return lambda head: partly_compiled(cut.source, cut.split, head, cut.error, tail)


def accuracy_contract(
    max_drop: float | None,
    drop_type: str,
    validation_fn: Callable[..., float] | None,
    max_minutes: float | None,
) -> AccuracyContract | None:
    """The contract the user asked for, None without ``max_drop``.

    max_drop       maximum accuracy drop allowed
    drop_type      "absolute", or "relative" to the float model's figure
    validation_fn  a compiled model -> its figure, better when larger
    max_minutes    ends the search, as Ctrl-C does; the best model found until then is kept

    Until the contract holds, values become int16, then operators float, in the order of
    ``quantization.accuracy_control``.  Without ``validation_fn`` the figure is
    minus the relative error of the outputs on the samples checked, ``10 ** (-SQNR / 20)``: a drop
    of 0.1 is 20 dB.
    """
    choice("drop_type", drop_type, DROP_TYPES)
    if max_drop is not None:
        return AccuracyContract(max_drop, drop_type, validation_fn, max_minutes)
    if validation_fn is not None:
        raise OptionError(
            "validation_fn belongs to max_drop. Remedy: pass max_drop, what may be lost."
        )
    return None
