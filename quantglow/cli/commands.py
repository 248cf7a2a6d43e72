"""The commands but ``demo``.  Each has a function for its arguments and one that runs it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from quantglow.cli.arguments import (
    calibration_arguments,
    config_of,
    control_arguments,
    machine_arguments,
    model_argument,
    output_argument,
    quantization_arguments,
    quantization_options,
    shapes_of,
)
from quantglow.cli.files import (
    ARRAYS,
    MODELS,
    SAVED,
    arrays_in,
    check_onnx,
    check_writable,
    is_saved,
    write_arrays,
)
from quantglow.cli.timing import medians
from quantglow.driver import compilation, main_job, stages
from quantglow.driver.loading import load
from quantglow.driver.models import is_quantized
from quantglow.errors import AccuracyDropError, OptionError
from quantglow.report import Report
from quantglow.report.call_report import CallReport, profile_calls
from quantglow.report.tables import Table
from quantglow.runtime import saving
from quantglow.runtime.build import plan_program
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.delegated import DelegatedModel
from quantglow.types import Array

STAGES = ("imported", "optimized", "int8", "lowered", "program", "memory", "report")


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True, or_profile=False)
    output_argument(parser, "profile to write (.npz)")


def profile(options: argparse.Namespace, console: Console) -> None:
    """Record a profile."""
    check_onnx(options.model)
    check_writable(options.output, ARRAYS, (options.model, options.calibration_data))
    found = stages.profile(
        options.model,
        options.calibration_data,
        subset_size=options.subset_size,
        input_shapes=shapes_of(options),
    )
    found.save(options.output)
    console.print(
        f"{options.output}: {len(found.histograms)} tensors over {found.samples} batches",
        highlight=False,
        markup=False,
    )


def quantize_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True)
    quantization_arguments(parser)
    control_arguments(parser)
    machine_arguments(parser)
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare with onnxruntime on calibration samples, for the report",
    )
    parser.add_argument(
        "--measure-speed",
        action="store_true",
        help="keep layers float that int8 makes slower on this machine",
    )
    output_argument(parser, f"model to write: {SAVED}, or .onnx for QDQ", required=False)


def quantize(options: argparse.Namespace, console: Console) -> None:
    """Quantize, compile, check, report and save; the best model too where a contract broke."""
    check_onnx(options.model)
    if options.output:
        check_writable(options.output, MODELS, (options.model, options.calibration_data))
    try:
        compiled = main_job.quantize_and_compile(
            options.model,
            options.calibration_data,
            **quantization_options(options),
            subset_size=options.subset_size,
            max_drop=options.max_drop,
            max_minutes=options.max_minutes,
            target=options.target,
            num_threads=options.num_threads,
            verify=options.verify,
            input_shapes=shapes_of(options),
            measure_speed=options.measure_speed,
        )
    except AccuracyDropError as error:
        if isinstance(error.best, CompiledModel | DelegatedModel):
            save(error.best, options.output, console)
        raise
    console.print(compiled.report)
    save(compiled, options.output, console)


def compile_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    machine_arguments(parser)
    output_argument(parser, f"model to write: {SAVED}, or .onnx as optimized")


def compile(options: argparse.Namespace, console: Console) -> None:
    """Compile a model as it is and save it."""
    check_writable(options.output, MODELS, (options.model,))
    compiled = opened(options)
    console.print(compiled.report)
    save(compiled, options.output, console)


def run_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    machine_arguments(parser)
    parser.add_argument(
        "--inputs", required=True, metavar="FILE", help=".npz with an array for each input"
    )
    output_argument(parser, ".npz file to write, with an array for each output", required=False)


def run(options: argparse.Namespace, console: Console) -> None:
    """Run once; show and save the outputs."""
    if options.output:
        check_writable(options.output, ARRAYS, (options.model, options.inputs))
    feeds = arrays_in(options.inputs)
    compiled = opened(options)
    outputs = compiled.run(None, feeds)
    named = dict(zip((info.name for info in compiled.get_outputs()), outputs, strict=True))
    console.print(outputs_table(named).rich())
    if options.output:
        write_arrays(options.output, named)


def bench_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    machine_arguments(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="about how long to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--layers", action="store_true", help="also the time of every kernel beside its limit"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def bench(options: argparse.Namespace, console: Console) -> None:
    """Median latency on random inputs."""
    if not options.seconds > 0:
        raise OptionError(f"seconds must be positive, got {options.seconds}")
    compiled = opened(options)
    feeds = drawn_feeds(compiled)
    times = medians({"latency": lambda: compiled.run(None, feeds)}, options.seconds)
    spent = times["latency"]
    calls = kernel_times(compiled, feeds) if options.layers else None
    if options.json:
        found = {"median_seconds": spent, **({"layers": calls.to_json()} if calls else {})}
        console.file.write(json.dumps(found) + "\n")
        return
    console.print(repr(compiled), highlight=False, markup=False)
    console.print(f"median {spent * 1e3:.3f} ms, {1 / spent:.0f} runs/s", highlight=False)
    if calls:
        console.print(calls.by_call().rich(), calls.by_kernel().rich())


def kernel_times(
    compiled: CompiledModel | DelegatedModel, feeds: Mapping[str, Array]
) -> CallReport:
    """The time of every kernel.  Raises ``OptionError`` where there are none."""
    if isinstance(compiled, DelegatedModel) or compiled.build.segments or compiled.build.rest:
        raise OptionError(
            "layers: this model is no single program of quantglow. Remedy: omit the flag."
        )
    return profile_calls(compiled.build, feeds)


def inspect_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    calibration_arguments(parser, required=False)
    quantization_arguments(parser)
    parser.add_argument("--stage", choices=STAGES, default="optimized", help="default: %(default)s")


def inspect(options: argparse.Namespace, console: Console) -> None:
    """Print one stage.  With calibration data the stages after ``optimized`` are the int8 ones."""
    console.file.write(stage_text(options).rstrip("\n") + "\n")


def stage_text(options: argparse.Namespace) -> str:
    """The text of the stage that ``options`` ask for."""
    if options.stage == "report":
        return str(report_of(options))
    if is_saved(options.model):
        graph = saving.load(options.model).graph
    else:
        graph = stages.import_model(options.model, shapes_of(options))
        if options.stage == "imported":
            return str(graph)
        if options.calibration_data or not is_quantized(graph):
            graph = stages.float_graph_of(graph)
    if options.stage != "optimized" and options.calibration_data:
        config = config_of(options)
        profile = stages.profile_of(graph, options.calibration_data, options.subset_size)
        graph = stages.quantize(graph, profile, config)
    if options.stage == "int8" and not is_quantized(graph):
        raise OptionError("stage int8 needs --calibration-data FILE")
    if options.stage in ("imported", "optimized", "int8"):
        return str(graph)
    planned = plan_program(graph)
    texts = {"lowered": planned.lowered, "program": planned.program, "memory": planned.plan}
    return str(texts[options.stage])


def report_of(options: argparse.Namespace) -> object:
    """The report saved with a model, or that of quantizing or compiling one now."""
    if is_saved(options.model):
        return Report.from_json(saving.load(options.model).report)
    if not options.calibration_data:
        return compilation.compile(options.model, input_shapes=shapes_of(options)).report
    return main_job.quantize_and_compile(
        options.model,
        options.calibration_data,
        **quantization_options(options),
        subset_size=options.subset_size,
        input_shapes=shapes_of(options),
    ).report


# -- helpers


def opened(options: argparse.Namespace) -> CompiledModel | DelegatedModel:
    """The compiled model that ``options`` name: a saved one, or an ONNX file."""
    if is_saved(options.model):
        return load(options.model, options.target, options.num_threads)
    shapes = shapes_of(options)
    return compilation.compile(
        options.model, options.target, options.num_threads, input_shapes=shapes
    )


def save(compiled: CompiledModel | DelegatedModel, output: str | None, console: Console) -> None:
    if output:
        write = compiled.export_onnx if Path(output).suffix == ".onnx" else compiled.save
        write(output)
        saved = f"saved {output} ({os.path.getsize(output)} bytes)"
        console.print(saved, highlight=False, markup=False)


def drawn_feeds(compiled: CompiledModel | DelegatedModel) -> dict[str, Array]:
    """Random values in the type of each input; free dimensions are 1."""
    rng = np.random.default_rng(0)
    feeds = {}
    for info in compiled.get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in info.shape]
        feeds[info.name] = rng.standard_normal(shape).astype(info.dtype)
    return feeds


def extremes(array: Array) -> tuple[str, str, str]:
    """Smallest, largest, and where that is; blank where a run gave no elements, or texts."""
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
