"""``quantglow bundle``: a model as an object, a header and weights, for a C program."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from quantglow.api.compile import compile as compile_model
from quantglow.api.load import load
from quantglow.api.quantize_and_compile import quantize_and_compile
from quantglow.cli.arguments import (
    CONTROL,
    MODEL,
    QUANTIZATION_CALL,
    calibration_arguments,
    model_argument,
    open_samples,
    option_flags,
    option_values,
    parse_shapes,
    quantization_arguments,
    refuse_without_data,
    schedule_argument,
    steps_arguments,
)
from quantglow.cli.commands import next_step
from quantglow.cli.files import SAVED, check_folder, check_onnx, is_saved, refuse_steps
from quantglow.codegen.llvm.targets import CHOICES, LEVELS
from quantglow.export.bundle import Library
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.exporter import BundleOptions
from quantglow.export.bundle.object_tables import MOST_VLEN
from quantglow.report.report import ReportView
from quantglow.report.tables import ReportTable, Tabular, nbytes_text, number
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    calibration_arguments(parser, required=False)
    steps_arguments(parser)
    quantization_arguments(parser)
    option_flags(parser, CONTROL)
    parser.add_argument(
        "--target",
        default="native",
        help=f"native: this processor; {' or '.join(CHOICES)}: all levels of one, chosen at run "
        f"time; or {', '.join(LEVELS)}",
    )
    parser.add_argument("--name", default="model", help="beginning of files and symbols")
    parser.add_argument(
        "--weights",
        choices=list(map(str, Placement)),
        default="object",
        help="place of the constants: the object, a C file, or a file that the program loads",
    )
    parser.add_argument(
        "--quantize-input", action="store_true", help="inputs are integers, which the caller rounds"
    )
    parser.add_argument(
        "--library",
        choices=list(map(str, Library)),
        default="object",
        help="shared: also a library for loaders, as that of ctypes; for wasm32 a module with its "
        "loader for Node and browsers",
    )
    schedule_argument(parser)
    parser.add_argument(
        "--threads", action="store_true", help="also a pool of threads that share a run, for Linux"
    )
    parser.add_argument(
        "--partition",
        action="store_true",
        help="operators that onnxruntime computes are left to the caller, between functions",
    )
    for kind, parts in (("flash", "code and weights"), ("ram", "arena and stack")):
        parser.add_argument(
            f"--max-{kind}", type=int, metavar="BYTES", help=f"most that {parts} may take"
        )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder of the files")


def run(options: argparse.Namespace, console: Console) -> None:
    """Write the bundle; print its flash and RAM, its files, its inputs and outputs."""
    check_folder(options.output)
    settings = {field.name: getattr(options, field.name) for field in fields(BundleOptions)}
    BundleOptions(**settings).check(options.output)
    compiled = _open_model(options)
    shapes = parse_shapes(options) if is_saved(options.model) else {}
    compiled.export_bundle(options.output, input_shapes=shapes or None, **settings)
    file = Path(options.output) / f"{options.name}.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    report, shown_report = compiled.report, None
    if options.calibration_data:
        words = next_step(report, options, options.output, _building(options, facts))
        shown_report = ReportView(report, next_step=words)
    shown = BundleReport(options.output, file.name, facts, shown_report)
    console.print(shown, highlight=False, crop=False)


@dataclass(frozen=True)
class BundleReport(Tabular):
    """Memory and files of a bundle, and the report of its model if it was quantized for it."""

    folder: str
    manifest: str
    facts: Mapping[str, Any]
    report: ReportView | None

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The notes of the report."""
        return self.report.notes if self.report else ()

    def opening(self) -> Iterator[str]:
        """Files, flash and RAM; accuracy, size and speed."""
        yield from verdict(self.folder, self.facts).splitlines()
        yield from self.report.opening() if self.report else ()

    def heading(self) -> Iterator[str]:
        """The warnings."""
        yield from self.report.heading() if self.report else ()

    def tables(self) -> Iterator[ReportTable]:
        """Files, inputs and outputs; the tables of the report."""
        yield from _tables(self.manifest, self.facts)
        yield from self.report.tables() if self.report else ()

    def closing(self) -> Iterator[str]:
        """The next step."""
        yield from self.report.closing() if self.report else ()


def _open_model(options: argparse.Namespace) -> CompiledModel | FallbackModel:
    """The compiled model of ``options``."""
    if not options.calibration_data:
        refuse_without_data(options, "quantize_output")
        if is_saved(options.model):
            refuse_steps(options)
            return load(options.model)
        return compile_model(options.model, **option_values(options, MODEL))
    check_onnx(options.model)
    return quantize_and_compile(
        options.model,
        open_samples(options),
        **option_values(options, QUANTIZATION_CALL),
    )


def _building(options: argparse.Namespace, facts: Mapping[str, Any]) -> list[str]:
    """The command that prepares a build of the bundle, or measures its model."""
    if "CMakeLists.txt" in facts["files"]:
        return ["cmake", "-S", options.output, "-B", str(Path(options.output) / "build")]
    return ["quantglow", "bench", options.model]


def verdict(folder: str, facts: Mapping[str, Any]) -> str:
    """The files, and the memory that they need."""
    functions = _functions(facts)
    code = sum(function["code_nbytes"] for function in functions)
    weights = sum(function["weights"]["nbytes"] for function in functions)
    arena = max(function["arena"]["nbytes"] for function in functions)
    stack = max(function["stack_nbytes"] for function in functions)
    flash = (
        f"{nbytes_text(code + weights)} ({code} code + {weights} weights), {facts['flash_counted']}"
    )
    widest = f" with vector registers of {MOST_VLEN:,} bits" if facts["stack"]["registers"] else ""
    ram = f"{nbytes_text(arena + stack)} ({arena} arena + {stack} stack{widest})"
    files = f"{folder}: {facts['name']} for {facts['target']['name']}"
    return f"{files}, {len(facts['files']) + 1} files\nflash {flash}\nRAM {ram}"


def _tables(manifest: str, facts: Mapping[str, Any]) -> Iterator[ReportTable]:
    """The files with their sizes, then inputs and outputs."""
    rows = [(file, str(listed["nbytes"])) for file, listed in facts["files"].items()]
    yield ReportTable("Files", ("file", "bytes"), [*rows, (manifest, "")], frozenset({"bytes"}))
    columns = ("", "name", "type", "shape", "scale", "zero point")
    functions = _functions(facts)
    for function in functions:
        ends = [
            _tensor_row(f"{word} {index}", tensor)
            for word in ("input", "output")
            for index, tensor in enumerate(function[f"{word}s"])
        ]
        title = "Inputs and outputs" + (f" of {function['name']}" if len(functions) > 1 else "")
        yield ReportTable(title, columns, ends, frozenset({"scale", "zero point"}))
    for part in facts.get("segments", ()):
        if "operators" in part:
            yield from _caller_tables(part, columns)


def _functions(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The facts of each function."""
    return [part for part in facts.get("segments", [facts]) if "arena" in part]


def _caller_tables(part: Mapping[str, Any], columns: tuple[str, ...]) -> Iterator[ReportTable]:
    """Operators that are left to the caller, and the values that these read and give."""
    rows = [(each["name"], each["op"], each["reason"]) for each in part["operators"]]
    yield ReportTable("Left to the caller", ("name", "operator", "reason"), rows)
    words = {"reads": "reads", "results": "gives"}
    values = [_tensor_row(words[key], value) for key in words for value in part[key]]
    yield ReportTable("Values of the caller", columns, values, frozenset({"scale", "zero point"}))


def _tensor_row(place: str, tensor: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        place,
        tensor["name"],
        tensor["c_type"],
        "×".join(map(str, tensor["shape"])),
        number(tensor["scale"], "{:.6g}"),
        number(tensor["zero_point"], "{}"),
    )
