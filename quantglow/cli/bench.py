"""``quantglow bench``: latency and throughput of a model, and the time of each kernel."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from quantglow.api.load import LoadArguments
from quantglow.api.models.families import with_steps
from quantglow.cli.arguments import (
    MACHINE,
    STEPS,
    model_argument,
    option_flags,
    option_values,
    parse_shapes,
    steps_arguments,
    trace_argument,
)
from quantglow.cli.files import SAVED, is_saved, open_model
from quantglow.cli.steps import step_words
from quantglow.evaluation.baselines.latency import PEERS, Contender, compare_latency
from quantglow.evaluation.call_times import CallReport, profile_calls
from quantglow.evaluation.latencies import busy_note, call_latencies, measure_loaded
from quantglow.report.speed import LatencyComparison, calls_table, kernels_table
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.serving.infer_queue import AUTO, InferQueue
from quantglow.support.arguments import integer
from quantglow.support.arrays import Array
from quantglow.support.errors import InputError, OptionError

MODES = ("latency", "throughput")
IN_FLIGHT = 2
"""Calls for each stream while throughput is measured: one runs, one waits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser, f"ONNX or {SAVED} model")
    steps_arguments(parser)
    option_flags(parser, MACHINE)
    option_flags(parser, ["code", "tune"], LoadArguments)
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="about how long to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default=MODES[0],
        help="latency: one call after the other; throughput: as many at once as there are streams",
    )
    parser.add_argument(
        "--streams",
        type=_stream_argument,
        default=AUTO,
        help="inferences at once in throughput mode (default: one for each thread)",
    )
    parser.add_argument(
        "--batch-sizes",
        nargs="+",
        type=int,
        default=[None],
        metavar="N",
        help="samples along axis 0 of each input, measured one after the other",
    )
    parser.add_argument(
        "--compare",
        nargs="+",
        default=(),
        choices=PEERS,
        metavar="RUNTIME",
        help=f"also the latency in other runtimes: {', '.join(PEERS)}",
    )
    parser.add_argument(
        "--onnx",
        metavar="FILE",
        help="the model that they run, with the same steps (default: MODEL if it is ONNX)",
    )
    parser.add_argument(
        "--layers", action="store_true", help="also the time of every kernel beside its limit"
    )
    trace_argument(parser, "one call more", dest="timeline")
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def run(options: argparse.Namespace, console: Console) -> None:
    """Latency or throughput on random inputs, for each batch size.

    They have ``input_shapes``, else the shapes that the model was compiled for first, with 1 for
    free dimensions.
    """
    if not options.seconds > 0:
        raise OptionError(f"seconds must be positive, got {options.seconds}")
    source = _compare_file(options)
    busy = busy_note()
    compiled = open_model(options)
    feeds = draw_feeds(compiled, parse_shapes(options))
    sizes = [None if n is None else integer("batch_sizes", n, 1) for n in options.batch_sizes]
    try:
        beside = _beside_others(compiled, feeds, source, options) if source else None
        rows = list(
            _measure_rows(compiled, [_with_batch(feeds, n) for n in sizes], options, beside)
        )
    except InputError as error:
        raise OptionError(
            f"the model does not run on the shapes that bench chose: {error} Or give them with "
            "--input-shapes NAME:D,D,…"
        ) from error
    calls = _kernel_times(compiled, feeds) if options.layers else None
    if options.timeline:
        compiled.trace(_with_batch(feeds, sizes[0]), options.timeline)
    if options.json:
        facts = {**rows[0].to_json(), "batches": [r.to_json() for r in rows], "busy": busy}
        facts |= {"layers": calls.to_json()} if calls else {}
        facts |= {"compared": beside.to_json()} if beside else {}
        console.file.write(json.dumps(facts) + "\n")
        return
    console.print(repr(compiled), highlight=False, markup=False)
    if busy:
        console.print(f"warning: {busy}", highlight=False)
    for each in rows:
        console.print(str(each), highlight=False)
    if beside:
        console.print(f"{beside.verdict} here, on {compiled.num_threads} thread(s)")
        console.print(beside.table().rich())
    if calls:
        console.print(calls_table(calls).rich(), kernels_table(calls).rich())


def _compare_file(options: argparse.Namespace) -> str:
    """The ONNX file that other runtimes run; empty if none is asked for.  Raises
    ``OptionError``."""
    if not options.compare:
        if options.onnx:
            raise OptionError("--onnx is the model of --compare. Remedy: give both, or neither.")
        return ""
    if options.onnx is None and is_saved(options.model):
        raise OptionError(
            f"other runtimes do not read {SAVED} files. Remedy: give the ONNX model by --onnx."
        )
    return os.path.abspath(str(options.onnx or options.model))


def _beside_others(
    compiled: CompiledModel | FallbackModel,
    feeds: Mapping[str, Array],
    source: str,
    options: argparse.Namespace,
) -> LatencyComparison:
    """Latencies beside other runtimes, on the first batch size."""
    batch = _with_batch(feeds, options.batch_sizes[0])
    with _file_with_steps(source, options) as path:
        latencies = compare_latency(
            lambda arrays: compiled.run(None, arrays),
            batch,
            [Contender(name, name, path) for name in options.compare],
            compiled.num_threads,
            options.seconds,
        )
    return LatencyComparison(latencies)


@contextmanager
def _file_with_steps(source: str, options: argparse.Namespace) -> Iterator[str]:
    """An ONNX file with the steps that the options name: ``source`` itself if there are none."""
    if not step_words(options):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(with_steps(source, **option_values(options, STEPS)).SerializeToString())
        yield str(path)


def _stream_argument(text: str) -> int | str:
    """A number of streams, or "auto"."""
    return text if text == AUTO else int(text)


@dataclass(frozen=True)
class Row:
    """The figures of one batch size, with the ``shapes`` of the inputs: seconds from submitting to
    the result, by percentile."""

    shapes: Mapping[str, Sequence[int]]
    median: float
    p90: float
    p99: float
    per_second: float

    @staticmethod
    def of(feeds: Mapping[str, Array], latencies: Sequence[float], seconds: float) -> Row:
        """The figures of calls with ``feeds`` that took ``seconds`` together."""
        median, p90, p99 = (float(v) for v in np.percentile(latencies, [50, 90, 99]))
        shapes = {name: array.shape for name, array in feeds.items()}
        return Row(shapes, median, p90, p99, _batch_size(feeds) * len(latencies) / seconds)

    @property
    def batch(self) -> int:
        """The number of samples of a call."""
        return max((shape[0] for shape in self.shapes.values() if shape), default=1)

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return {
            "batch": self.batch,
            "shapes": {name: [*shape] for name, shape in self.shapes.items()},
            "median_seconds": self.median,
            "p90_seconds": self.p90,
            "p99_seconds": self.p99,
            "samples_per_second": self.per_second,
        }

    def __str__(self) -> str:
        times = (
            f"median {self.median * 1e3:.3f} ms, p90 {self.p90 * 1e3:.3f}, p99 {self.p99 * 1e3:.3f}"
        )
        sizes = ("×".join(map(str, shape)) or "scalar" for shape in self.shapes.values())
        inputs = ", ".join(map(" ".join, zip(self.shapes, sizes, strict=True)))
        return f"batch {self.batch} ({inputs}): {times}; {self.per_second:.0f} samples/s"


def _measure_rows(
    compiled: CompiledModel | FallbackModel,
    batches: Sequence[Mapping[str, Array]],
    options: argparse.Namespace,
    beside: LatencyComparison | None,
) -> Iterator[Row]:
    """The figures of each batch size; latencies of the first are those beside other runtimes."""
    is_measured = beside is not None and options.mode == "latency"
    if beside is not None and is_measured:
        times = beside.latencies[0].seconds
        yield Row.of(batches[0], times, sum(times))
    yield from (_row(compiled, feeds, options) for feeds in batches[is_measured:])


def _batch_size(feeds: Mapping[str, Array]) -> int:
    """The number of samples in feeds."""
    return max((len(a) for a in feeds.values() if a.ndim), default=1)


def _row(
    compiled: CompiledModel | FallbackModel, feeds: Mapping[str, Array], options: argparse.Namespace
) -> Row:
    """The figures of one batch size."""
    compiled.run(None, feeds)
    if options.mode == "latency":
        times = call_latencies(lambda: compiled.run(None, feeds), options.seconds)
        return Row.of(feeds, times, sum(times))
    with InferQueue(compiled, options.streams) as queue:
        queue.run(None, feeds)
        times, seconds = measure_loaded(
            lambda: queue.submit(feeds), IN_FLIGHT * queue.streams, options.seconds
        )
    return Row.of(feeds, times, seconds)


def _with_batch(feeds: Mapping[str, Array], size: int | None) -> dict[str, Array]:
    """The feeds with so many samples along axis 0 of each array; None: as they are."""
    if size is None:
        return dict(feeds)
    try:
        return {n: np.resize(a, (size, *a.shape[1:])) if a.ndim else a for n, a in feeds.items()}
    except (MemoryError, ValueError) as error:
        raise OptionError(
            f"batch_sizes: {size} samples do not fit the memory. Remedy: fewer."
        ) from error


def _kernel_times(
    compiled: CompiledModel | FallbackModel, feeds: Mapping[str, Array]
) -> CallReport:
    """The time of every kernel.  Raises ``OptionError`` if the model has no kernels."""
    if isinstance(compiled, FallbackModel) or compiled.build.segments or compiled.build.is_part:
        raise OptionError(
            "layers: this model is no single program of quantglow. Remedy: omit the flag."
        )
    return profile_calls(compiled.build, feeds)


def draw_feeds(
    compiled: CompiledModel | FallbackModel, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Array]:
    """Random values in the type of each input.

    They have ``shapes``, else the shapes that were compiled first, with 1 for free dimensions.
    """
    rng = np.random.default_rng(0)
    infos = compiled.get_inputs()
    if unknown := sorted(shapes.keys() - {info.name for info in infos}):
        raise OptionError(f"input_shapes names {unknown}; the inputs are {[i.name for i in infos]}")
    shape_of = dict(shapes)
    if isinstance(compiled, CompiledModel) and not compiled.specialisations.is_empty:
        shapes_of_graph = {node.name: node.type.fixed_shape for node in compiled.graph.inputs}
        shape_of = {**shapes_of_graph, **shape_of}
    feeds = {}
    for info in infos:
        shape = shape_of.get(info.name, [d if isinstance(d, int) else 1 for d in info.shape])
        feeds[info.name] = rng.standard_normal(shape).astype(info.dtype)
    return feeds
