"""``quantglow bench``: the latency of a model, and the time of each kernel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console

from quantglow.cli.arguments import machine_arguments, model_argument, shapes_of
from quantglow.cli.files import SAVED
from quantglow.cli.models import opened
from quantglow.cli.timing import medians
from quantglow.errors import InputError, OptionError
from quantglow.report.call_report import CallReport, profile_calls
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.types import Array


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace, console: Console) -> None:
    """Median latency on random inputs.

    They have ``input_shapes``, else the shapes that the model was compiled for first, with 1 for
    free dimensions.
    """
    if not options.seconds > 0:
        raise OptionError(f"seconds must be positive, got {options.seconds}")
    compiled = opened(options)
    feeds = drawn_feeds(compiled, shapes_of(options))
    try:
        times = medians({"latency": lambda: compiled.run(None, feeds)}, options.seconds)
    except InputError as error:
        raise OptionError(
            f"the model does not run on the shapes that bench chose: {error} Or give them with "
            "--input-shapes NAME:D,D,…"
        ) from error
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


def kernel_times(compiled: CompiledModel | FallbackModel, feeds: Mapping[str, Array]) -> CallReport:
    """The time of every kernel.  Raises ``OptionError`` if the model has no kernels."""
    if isinstance(compiled, FallbackModel) or compiled.build.segments or compiled.build.rest:
        raise OptionError(
            "layers: this model is no single program of quantglow. Remedy: omit the flag."
        )
    return profile_calls(compiled.build, feeds)


def drawn_feeds(
    compiled: CompiledModel | FallbackModel, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Array]:
    """Random values in the type of each input.

    They have ``shapes``, else the shapes that were compiled first, with 1 for free dimensions.
    """
    rng = np.random.default_rng(0)
    infos = compiled.get_inputs()
    if unknown := sorted(shapes.keys() - {info.name for info in infos}):
        raise OptionError(f"input_shapes names {unknown}; the inputs are {[i.name for i in infos]}")
    part = compiled.head if isinstance(compiled, PartlyCompiledModel) else compiled
    known = dict(shapes)
    if isinstance(part, CompiledModel) and not part.specialisations.is_empty:
        known = {**{node.name: node.type.shape for node in part.graph.inputs}, **known}
    feeds = {}
    for info in infos:
        shape = known.get(info.name, [d if isinstance(d, int) else 1 for d in info.shape])
        feeds[info.name] = rng.standard_normal(shape).astype(info.dtype)
    return feeds
