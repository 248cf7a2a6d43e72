"""Commands that write models and results: ``profile``, ``quantize``, ``compile`` and ``run``.

A report ends with the command to try next.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from quantglow.api import stages
from quantglow.api.quantize_and_compile import quantize_and_compile
from quantglow.cli.arguments import (
    calibration_arguments,
    code_argument,
    control_arguments,
    include_code_argument,
    machine_arguments,
    model_argument,
    output_argument,
    quantization_arguments,
    quantization_options,
    shapes_of,
    trace_argument,
    tune_argument,
    validation_argument,
    weight_arguments,
    weight_options,
    while_compiling_argument,
)
from quantglow.cli.files import (
    ARRAYS,
    FLOAT_SHARE,
    INT8_SHARE,
    MODELS,
    SAVED,
    arrays_in,
    check_onnx,
    check_writable,
    opened,
    refuse_shapes_of_saved,
    samples_of,
    validation_of,
    write_arrays,
)
from quantglow.cli.steps import steps_arguments, steps_of, words_of
from quantglow.codegen.llvm.targets import resolve
from quantglow.evaluation.report import Report
from quantglow.report.accuracy import is_close
from quantglow.report.report import ReportView
from quantglow.report.tables import Table
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.support.arrays import Array
from quantglow.support.errors import AccuracyDropError, OptionError

TRANSFORMER = "transformer"

MEANWHILE = "onnxruntime answered with the float model: the program was still being compiled"

DEFAULT_ENDING = f".int8{SAVED}"
"""Suffix of the model that ``quantize`` writes to the current folder if no name is given."""


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True, or_profile=False)
    steps_arguments(parser)
    output_argument(parser, "profile to write (.npz)")


def profile(options: argparse.Namespace, console: Console) -> None:
    """Record a profile."""
    check_onnx(options.model)
    check_writable(options.output, ARRAYS, (options.model, options.calibration_data))
    found = stages.profile(
        options.model,
        samples_of(options),
        subset_size=options.subset_size,
        input_shapes=shapes_of(options),
        **steps_of(options),
    )
    found.save(options.output)
    console.print(
        f"{options.output}: {len(found.histograms)} tensors over {found.samples} batches",
        highlight=False,
        markup=False,
    )


def quantize_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=False)
    steps_arguments(parser)
    quantization_arguments(parser)
    weight_arguments(parser)
    control_arguments(parser)
    machine_arguments(parser)
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare with onnxruntime, for the report, on samples held out of calibration",
    )
    validation_argument(parser)
    parser.add_argument(
        "--measure-speed",
        action="store_true",
        help="keep layers float that int8 makes slower on this machine",
    )
    parser.add_argument(
        "--measure-latency",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="time one call beside onnxruntime's float model, for half a second",
    )
    parser.add_argument(
        "--model-type", choices=[TRANSFORMER], help="as in NNCF; every model gets what that means"
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default="auto",
        help="progress on stderr (default: on a terminal)",
    )
    trace_argument(parser, "the stages")
    parser.add_argument("--all-layers", action="store_true", help="print every table")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    what = f"model to write: {SAVED}, or .onnx for QDQ (default: MODEL{DEFAULT_ENDING} here)"
    output_argument(parser, what, required=False)
    include_code_argument(parser)


def quantize(options: argparse.Namespace, console: Console) -> None:
    """Quantize, compile, check, report and save.  If a contract fails, the best model is saved."""
    check_onnx(options.model)
    if not options.calibration_data and not options.weights:
        raise OptionError("--calibration-data is missing. Remedy: give it, or --weights.")
    output = options.output or Path(options.model).stem + DEFAULT_ENDING
    given = (options.model, options.calibration_data, options.validation_data)
    check_writable(output, MODELS, [path for path in given if path], INT8_SHARE)
    check_include_code(output, options.include_code)
    if not options.output and not options.json:
        console.print(f"no --output: the model goes to {output}", highlight=False, markup=False)
    try:
        compiled = quantize_and_compile(
            options.model,
            samples_of(options),
            **quantization_options(options),
            **weight_options(options),
            subset_size=options.subset_size,
            model_type=options.model_type,
            progress=options.progress,
            max_drop=options.max_drop,
            drop_type=options.drop_type,
            max_minutes=options.max_minutes,
            target=options.target,
            num_threads=options.num_threads,
            schedule=options.schedule,
            verify=options.verify,
            input_shapes=shapes_of(options),
            measure_speed=options.measure_speed,
            validation_data=validation_of(options),
            measure_latency=options.measure_latency,
            **steps_of(options),
        )
    except AccuracyDropError as error:
        if isinstance(error.best, CompiledModel | FallbackModel):
            save(error.best, output, options.include_code, console)
        raise
    saved = save(compiled, output, options.include_code)
    if not options.json:
        console.print(saved, highlight=False, markup=False)
    show(compiled.report, options, output, console)


def show(report: object, options: argparse.Namespace, output: str, console: Console) -> None:
    """Print the report of a model that was saved, and the command to try next."""
    assert isinstance(report, Report)
    step = next_command(report, options, output)
    if options.json:
        summary = report.summary(step)
        found = {"output": output, "nbytes": os.path.getsize(output), "report": report.to_json()}
        found |= {"summary": summary.to_json() if summary else None}
        console.file.write(json.dumps(found) + "\n")
        return
    console.print(ReportView(report, options.all_layers, step), highlight=False, crop=False)


def next_command(report: Report, options: argparse.Namespace, output: str) -> str:
    """The command that measures a good model, or looks into another one."""
    is_file = os.path.basename(options.model) != "stdin.onnx"
    onnx = ["--onnx", options.model, *words_of(options)]
    beside = [*onnx, "--compare", "onnxruntime"] if is_file else []
    own = ["--input-shapes", *options.input_shapes] if options.input_shapes else []
    saved = Path(output).suffix == SAVED
    good = ["quantglow", "bench", output, *(beside if saved else own)]
    return next_step(report, options, output, good)


def compile_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    steps_arguments(parser)
    machine_arguments(parser)
    output_argument(parser, f"model to write: {SAVED}, or .onnx as optimized")
    include_code_argument(parser)


def compile(options: argparse.Namespace, console: Console) -> None:
    """Compile a model without quantization and save it."""
    refuse_shapes_of_saved(options)
    check_writable(options.output, MODELS, (options.model,), FLOAT_SHARE)
    check_include_code(options.output, options.include_code)
    compiled = opened(options)
    console.print(compiled.report, crop=False)
    save(compiled, options.output, options.include_code, console)


def run_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    steps_arguments(parser)
    machine_arguments(parser)
    code_argument(parser)
    tune_argument(parser)
    while_compiling_argument(parser)
    parser.add_argument(
        "--inputs", required=True, metavar="FILE", help=".npz with an array for each input"
    )
    output_argument(parser, ".npz file to write, with an array for each output", required=False)
    trace_argument(parser, "the run")


def run(options: argparse.Namespace, console: Console) -> None:
    """Run once; show and save the outputs."""
    refuse_shapes_of_saved(options)
    if options.output:
        check_writable(options.output, ARRAYS, (options.model, options.inputs))
    feeds = arrays_in(options.inputs)
    compiled = opened(options)
    outputs = compiled.run(None, feeds)
    named = dict(zip((info.name for info in compiled.get_outputs()), outputs, strict=True))
    console.print(outputs_table(named).rich())
    if any(calls.onnxruntime for calls in compiled.answers):
        console.print(MEANWHILE)
    if options.output:
        write_arrays(options.output, named)


# -- helpers


def check_include_code(output: str, targets: Sequence[str]) -> None:
    """Raise ``OptionError`` for code in a file that has none, or for a processor that is not here,
    before the work begins."""
    if targets and Path(output).suffix == ".onnx":
        raise OptionError(f"--include-code is for {SAVED} files. Remedy: write one, or omit it.")
    for name in targets:
        resolve(name)


def save(
    compiled: CompiledModel | FallbackModel,
    output: str,
    include_code: Sequence[str],
    console: Console | None = None,
) -> str:
    """Save a model; the sentence about it, which is printed, too, if there is a console."""
    if Path(output).suffix == ".onnx":
        compiled.export_onnx(output)
    else:
        compiled.save(output, include_code=include_code)
    saved = f"saved {output} ({os.path.getsize(output)} bytes)"
    if console is not None:
        console.print(saved, highlight=False, markup=False)
    return saved


def extremes(array: Array) -> tuple[str, str, str]:
    """Smallest, largest, and index of the largest; blank for outputs that are empty or texts."""
    if not array.size or array.dtype.kind not in "biuf":
        return "", "", ""
    return f"{array.min():.6g}", f"{array.max():.6g}", str(int(array.argmax()))


def outputs_table(outputs: Mapping[str, Array]) -> Table:
    rows = [
        (name, f"{array.dtype}{list(array.shape)}", *extremes(array))
        for name, array in outputs.items()
    ]
    numbers = ("smallest", "largest", "index of largest")
    return Table("Outputs", ("name", "type", *numbers), rows, frozenset(numbers))


def next_step(report: Report, options: argparse.Namespace, output: str, good: Sequence[str]) -> str:
    """The command ``good``, or the one that looks into a result that is not close to float."""
    if report.verdict and not is_close(report.verdict) and options.calibration_data:
        page = ["--output", f"{Path(output).stem}.html"]
        return shlex.join(["quantglow", "debug", *source_words(options), *page])
    return shlex.join(good)


def source_words(options: argparse.Namespace) -> list[str]:
    """The model and its calibration data, as words of another command."""
    words = [options.model, "--calibration-data", options.calibration_data]
    words += ["--preprocess", options.preprocess] if options.preprocess else []
    words += ["--input-shapes", *options.input_shapes] if options.input_shapes else []
    return [*words, *words_of(options)]
