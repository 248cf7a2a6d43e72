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

from quantglow.api.load import LoadArguments
from quantglow.api.pipeline.request import QuantizationArguments
from quantglow.api.profile import ProfileArguments
from quantglow.api.profile import profile as record_profile
from quantglow.api.quantize_and_compile import quantize_and_compile
from quantglow.cli.arguments import (
    MACHINE,
    MODEL,
    calibration_arguments,
    data_arguments,
    include_code_argument,
    model_argument,
    open_samples,
    option_flags,
    option_values,
    output_argument,
    steps_arguments,
    trace_argument,
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
    open_model,
    refuse_shapes_of_saved,
    write_arrays,
)
from quantglow.cli.steps import step_words
from quantglow.codegen.llvm.targets import resolve
from quantglow.evaluation.report import Report
from quantglow.report.accuracy import is_close
from quantglow.report.report import ReportView
from quantglow.report.tables import ReportTable
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.support.arrays import Array
from quantglow.support.errors import AccuracyDropError, OptionError
from quantglow.support.options import declarations, own_flags

QUANTIZE = tuple(
    name
    for name, declared in declarations(QuantizationArguments).items()
    if declared.flag is not None and name != "while_compiling"
)
"""Options of ``quantize``: all but those of a model that runs in this process."""

PROFILE = own_flags(ProfileArguments)

MEANWHILE = "onnxruntime answered with the float model: the program was still being compiled"

DEFAULT_ENDING = f".int8{SAVED}"
"""Suffix of the model that ``quantize`` writes to the current folder if no name is given."""


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True, or_profile=False)
    steps_arguments(parser)
    option_flags(parser, PROFILE, ProfileArguments)
    output_argument(parser, "profile to write (.npz)")


def profile(options: argparse.Namespace, console: Console) -> None:
    """Record a profile."""
    check_onnx(options.model)
    check_writable(options.output, ARRAYS, (options.model, options.calibration_data))
    result = record_profile(
        options.model,
        open_samples(options),
        **option_values(options, ["subset_size", *MODEL, *PROFILE]),
    )
    result.save(options.output)
    console.print(
        f"{options.output}: {len(result.histograms)} tensors over {result.samples} batches",
        highlight=False,
        markup=False,
    )


def quantize_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    data_arguments(parser, required=False)
    steps_arguments(parser)
    option_flags(
        parser,
        [name for name in QUANTIZE if name not in MODEL],
        measure_latency=True,
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
    inputs = (options.model, options.calibration_data, options.validation_data)
    check_writable(output, MODELS, [path for path in inputs if path], INT8_SHARE)
    _check_include_code(output, options.include_code)
    if not options.output and not options.json:
        console.print(f"no --output: the model goes to {output}", highlight=False, markup=False)
    try:
        compiled = quantize_and_compile(
            options.model,
            open_samples(options),
            **option_values(options, QUANTIZE),
        )
    except AccuracyDropError as error:
        if isinstance(error.best, CompiledModel | FallbackModel):
            save(error.best, output, options.include_code, console)
        raise
    saved = save(compiled, output, options.include_code)
    if not options.json:
        console.print(saved, highlight=False, markup=False)
    show(compiled.report, options, output, console)


def show(report: Report, options: argparse.Namespace, output: str, console: Console) -> None:
    """Print the report of a model that was saved, and the command to try next."""
    step = next_command(report, options, output)
    if options.json:
        summary = report.summary(step)
        facts = {"output": output, "nbytes": os.path.getsize(output), "report": report.to_json()}
        facts |= {"summary": summary.to_json() if summary else None}
        console.file.write(json.dumps(facts) + "\n")
        return
    console.print(ReportView(report, options.all_layers, step), highlight=False, crop=False)


def next_command(report: Report, options: argparse.Namespace, output: str) -> str:
    """The command that measures a good model, or looks into another one."""
    is_file = os.path.basename(options.model) != "stdin.onnx"
    onnx = ["--onnx", options.model, *step_words(options)]
    beside = [*onnx, "--compare", "onnxruntime"] if is_file else []
    flags = ["--input-shapes", *options.input_shapes] if options.input_shapes else []
    saved = Path(output).suffix == SAVED
    good = ["quantglow", "bench", output, *(beside if saved else flags)]
    return next_step(report, options, output, good)


def compile_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    steps_arguments(parser)
    option_flags(parser, MACHINE)
    output_argument(parser, f"model to write: {SAVED}, or .onnx as optimized")
    include_code_argument(parser)


def compile(options: argparse.Namespace, console: Console) -> None:
    """Compile a model without quantization and save it."""
    refuse_shapes_of_saved(options)
    check_writable(options.output, MODELS, (options.model,), FLOAT_SHARE)
    _check_include_code(options.output, options.include_code)
    compiled = open_model(options)
    console.print(compiled.report, crop=False)
    save(compiled, options.output, options.include_code, console)


def run_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    steps_arguments(parser)
    option_flags(parser, MACHINE)
    option_flags(parser, ["code", "tune"], LoadArguments)
    option_flags(parser, ["while_compiling"])
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
    compiled = open_model(options)
    outputs = compiled.run(None, feeds)
    named = dict(zip((info.name for info in compiled.get_outputs()), outputs, strict=True))
    console.print(_outputs_table(named).rich())
    if any(calls.onnxruntime for calls in compiled.answers):
        console.print(MEANWHILE)
    if options.output:
        write_arrays(options.output, named)


# -- helpers


def _check_include_code(output: str, targets: Sequence[str]) -> None:
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


def _extremes(array: Array) -> tuple[str, str, str]:
    """Smallest, largest, and index of the largest; blank for outputs that are empty or texts."""
    if not array.size or array.dtype.kind not in "biuf":
        return "", "", ""
    return f"{array.min():.6g}", f"{array.max():.6g}", str(int(array.argmax()))


def _outputs_table(outputs: Mapping[str, Array]) -> ReportTable:
    rows = [
        (name, f"{array.dtype}{list(array.shape)}", *_extremes(array))
        for name, array in outputs.items()
    ]
    numbers = ("smallest", "largest", "index of largest")
    return ReportTable("Outputs", ("name", "type", *numbers), rows, frozenset(numbers))


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
    return [*words, *step_words(options)]
