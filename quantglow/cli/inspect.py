"""``quantglow inspect``: a model at one stage of the compiler.

``--layer PATTERN`` prints the lines of a graph or a program that are about some layers.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from rich.console import Console

from quantglow.api.compile import compile as compile_model
from quantglow.api.import_model import import_model, open_float_graph
from quantglow.api.models.families import is_quantized, with_steps
from quantglow.api.pipeline.calibration import calibrate
from quantglow.api.pipeline.quantization import prepare_quantization, quantize_cases
from quantglow.api.pipeline.request import QuantizationRequest, import_request
from quantglow.api.quantize_and_compile import quantize_and_compile
from quantglow.cli.arguments import (
    MODEL,
    QUANTIZATION,
    STEPS,
    calibration_arguments,
    model_argument,
    open_samples,
    option_values,
    parse_config,
    parse_shapes,
    quantization_arguments,
    schedule_argument,
    steps_arguments,
)
from quantglow.cli.commands import next_step, source_words
from quantglow.cli.files import (
    SAVED,
    check_writable,
    is_saved,
    refuse_shapes_of_saved,
    refuse_steps,
)
from quantglow.codegen.llvm.targets import LEVELS
from quantglow.evaluation.footprint import Footprint
from quantglow.evaluation.report import Report
from quantglow.export.bundle.exporter import bundle_target, schedule_for
from quantglow.ir.graph.graph import Graph
from quantglow.memory.planning import plan_program
from quantglow.report.memory import MemoryPicture
from quantglow.report.report import ReportView
from quantglow.runtime.saved import saving
from quantglow.support.errors import OptionError
from quantglow.support.files import writing

NAMES = re.compile(r"^'([^']+)':|%([^\[\]{},:= ]+(?::[^\[\]{},:= ]+)*)|name='([^']+)'")
"""Names in a line: of the node that it makes, of buffers, and of an instruction."""

NUMBERS = re.compile(r"\(([^(),]+, [^(),]+), (?:[^(),]+, ){6,}[^(),]+\)")
"""A tuple of more than eight numbers, such as the scales of channels."""

SUGGESTIONS = 3

STAGES = ("imported", "optimized", "int8", "lowered", "program", "memory", "report")

PICTURES = (".svg",)
WITHOUT_LINES = ("memory", "report")
"""Stages that are tables."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    calibration_arguments(parser, required=False)
    steps_arguments(parser)
    quantization_arguments(parser)
    parser.add_argument(
        "--target",
        default="native",
        help=f"of the program and its memory: native, this processor; or {', '.join(LEVELS)}",
    )
    schedule_argument(parser)
    parser.add_argument("--stage", choices=STAGES, default="optimized", help="default: %(default)s")
    parser.add_argument(
        "--layer",
        metavar="PATTERN",
        help="only lines about layers whose names fit, as 'conv1' or '*relu*'; long tuples are cut",
    )
    parser.add_argument(
        "--output", metavar="FILE.svg", help="the arena over time as a picture (--stage memory)"
    )


def run(options: argparse.Namespace, console: Console) -> None:
    """Print one stage.

    With calibration data the stages after ``optimized`` are those of ``quantize`` with the same
    options.
    """
    if options.layer is not None and options.stage in WITHOUT_LINES:
        raise OptionError(
            f"--layer is for graphs and programs. Remedy: omit it for --stage {options.stage}."
        )
    if options.output is not None:
        _draw(options)
        return
    text = _stage_text(options)
    shown = text if options.layer is None else lines_about(text, options.layer)
    console.file.write(shown.rstrip("\n") + "\n")


def _draw(options: argparse.Namespace) -> None:
    """Write the arena over time as a picture.  Raises ``OptionError`` for other stages."""
    if options.stage != "memory":
        raise OptionError("output: only --stage memory has a picture. Remedy: omit the flag.")
    read = [file for file in (options.model, options.calibration_data) if file is not None]
    check_writable(options.output, PICTURES, read)
    refuse_shapes_of_saved(options)
    footprint = Footprint.of(_open_graph(options), options.target, options.schedule)
    with writing(options.output) as file:
        file.write_text(str(MemoryPicture(footprint.map)), encoding="utf-8")


def _stage_text(options: argparse.Namespace) -> str:
    """The text of the stage that ``options`` ask for."""
    refuse_shapes_of_saved(options)
    if options.stage == "report":
        return _report_text(_open_report(options), options)
    graph = _open_graph(options)
    if options.stage == "int8" and not is_quantized(graph):
        raise OptionError("stage int8 needs --calibration-data FILE")
    if options.stage in ("imported", "optimized", "int8"):
        return str(graph)
    if options.stage == "memory":
        return str(Footprint.of(graph, options.target, options.schedule))
    target = bundle_target(options.target)
    planned = plan_program(graph, target, schedule=schedule_for(target, options.schedule))
    return str(planned.lowered if options.stage == "lowered" else planned.program)


def _report_text(report: Report, options: argparse.Namespace) -> str:
    """Every table of a report, and the command to try next."""
    is_new = bool(options.calibration_data)
    good = ["quantize", *source_words(options)] if is_new else ["bench", options.model]
    step = next_step(report, options, options.model, ["quantglow", *good])
    return str(ReportView(report, all_layers=True, next_step=step))


def _open_graph(options: argparse.Namespace) -> Graph:
    """The graph of the stage, or the graph that its program is made of."""
    if is_saved(options.model):
        refuse_steps(options)
        return _saved_graph(options.model)
    if options.calibration_data and options.stage not in ("imported", "optimized"):
        request = QuantizationRequest(
            config=parse_config(options),
            subset_size=options.subset_size,
            verify=False,
            holds_out=True,
        )
        model = with_steps(options.model, **option_values(options, STEPS))
        source = import_request(model, open_samples(options), parse_shapes(options))
        return quantize_cases(prepare_quantization(calibrate(source, request), request)).main.graph
    graph = import_model(options.model, **option_values(options, MODEL))
    if options.stage == "imported" or is_quantized(graph):
        return graph
    return open_float_graph(graph)


def _saved_graph(path: str) -> Graph:
    """The graph of a saved model.  Raises ``OptionError`` if it is empty: a model whose shapes are
    free has none before its first call.
    """
    graph = saving.load(path).graph
    if not graph.outputs:
        raise OptionError(
            f"{path} holds no program: its shapes were free when it was saved. "
            "Remedy: inspect the ONNX file with --input-shapes NAME:D,D,…"
        )
    return graph


def _open_report(options: argparse.Namespace) -> Report:
    """The report saved with a model, or a new one from quantizing or compiling it."""
    if is_saved(options.model):
        refuse_steps(options)
        return Report.from_json(saving.load(options.model).report)
    if not options.calibration_data:
        return compile_model(options.model, **option_values(options, MODEL)).report
    return quantize_and_compile(
        options.model,
        open_samples(options),
        **option_values(options, [*QUANTIZATION, "subset_size", *MODEL]),
    ).report


def lines_about(text: str, pattern: str) -> str:
    """The lines about layers whose names fit a shell pattern, long tuples shortened.

    Constants and helpers of a layer are named ``layer:what`` and belong to it.  Raises
    ``OptionError`` if no name fits.
    """
    lines = text.splitlines()
    matching = [line for line in lines if any(_fits(name, pattern) for name in names_in(line))]
    if not matching:
        raise OptionError(_no_layer(pattern, [n for line in lines for n in names_in(line)]))
    return "\n".join(map(shorten, matching))


def names_in(line: str) -> list[str]:
    """The names of layers and buffers that a line is about."""
    return [next(filter(None, groups)) for groups in NAMES.findall(line)]


def _fits(name: str, pattern: str) -> bool:
    """Whether a name fits, or that of the layer which it belongs to."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}:*")


def shorten(line: str) -> str:
    """The line with the first two numbers of long tuples, and how many there are."""

    def cut(match: re.Match[str]) -> str:
        return f"({match[1]}, … {match[0].count(',') + 1} in all)"

    return NUMBERS.sub(cut, line)


def _no_layer(pattern: str, names: Sequence[str]) -> str:
    """The message for a pattern that fits nothing, with the nearest names."""
    near = get_close_matches(pattern, sorted(set(names)), SUGGESTIONS, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "'*' fits any part of a name."
    return f"no layer fits {pattern!r} at this stage; {hint}"
