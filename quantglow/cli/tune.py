"""``quantglow tune``: measure this machine's core, or the kernels of a model."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console

from quantglow.cli.arguments import MACHINE, option_flags, steps_arguments
from quantglow.cli.bench import draw_feeds
from quantglow.cli.files import open_model
from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.machine import core_to_json
from quantglow.evaluation.latencies import busy_note, medians
from quantglow.report.tables import ReportTable
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.programs.build import Compiler
from quantglow.support.errors import OptionError
from quantglow.support.extras import dask
from quantglow.support.progress import step
from quantglow.tuning.core_fit import CoreFit, measure_core, store
from quantglow.tuning.networks import MAX_MINUTES, Tuning, tune_network
from quantglow.tuning.records import Record, check_minutes
from quantglow.tuning.tuner import DEFAULT_SEARCHER, SEARCHERS

CONNECT_SECONDS = 10.0
COMPARED_SECONDS = 2.0
"""Time to reach a scheduler, and of the comparison of the network before and after, in seconds."""

KEPT = (
    "`quantglow run` and `quantglow bench` use these choices with --tune records, Python with "
    "tune='records'."
)
NO_GAIN = "Nothing was gained: the choices of the cost model stay."
MIN_SHARE = 0.25
"""Minimum share of the time that kernels get, however long the model compiles."""
MEASURED_BEFORE = "All kernels were measured before. "
LOST = (
    "These choices are lost, because the cache cannot be written. Remedy: set QUANTGLOW_CACHE_DIR "
    "to a folder that you may write."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="ONNX or .qgm model, or - for stdin")
    option_flags(parser, ["input_shapes"])
    steps_arguments(parser)
    option_flags(parser, MACHINE)
    parser.add_argument(
        "--machine",
        action="store_true",
        help="measure the costs of this processor's core for about a minute; every compilation "
        "after it chooses tiles, forms and order by them",
    )
    parser.add_argument(
        "--max-minutes",
        type=float,
        default=MAX_MINUTES,
        help="time for a model, its compilation included (default: %(default)s)",
    )
    parser.add_argument(
        "--searcher",
        choices=list(SEARCHERS),
        default=DEFAULT_SEARCHER,
        help="which kernels are measured next (default: in the order of the cost model)",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask cluster, as tcp://host:8786: its machines measure, each on one core",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(options: argparse.Namespace, console: Console) -> None:
    """Measure, store and show.  Raises ``OptionError`` if there is nothing to tune, or no time."""
    if not options.machine and options.model is None:
        raise OptionError("there is nothing to tune. Remedy: name a model, or give --machine.")
    minutes = check_minutes(options.max_minutes, "measure")
    if (busy := busy_note()) and not options.json:
        console.print(f"warning: {busy}", highlight=False)
    facts: dict[str, Any] = {}
    if options.machine:
        fit = store(measure_core(lambda done: tell(f"{done} tiles timed")))
        facts["machine"] = _machine_json(fit)
        if not options.json:
            console.print(summary(fit), highlight=False, markup=False)
            console.print(_costs_table(fit).rich())
    if options.model is not None:
        facts |= _tune_model(options, minutes, console)
    if options.json:
        console.file.write(json.dumps(facts) + "\n")


def _tune_model(
    options: argparse.Namespace, minutes: float | None, console: Console
) -> dict[str, Any]:
    """Measure the kernels of a model, and the whole model before and after."""
    start = time.monotonic()
    compiled = open_model(options)
    compiler = Compiler.of(options.target, options.num_threads, schedule=options.schedule)
    around = (time.monotonic() - start + 2 * COMPARED_SECONDS) / 60
    with _open_client(options.scheduler) as client, step("kernels are measured"):
        time_left = time_for_kernels(minutes, around)
        tuning = tune_network(compiled, compiler, time_left, options.searcher, tell, client)
    assert isinstance(compiled, CompiledModel)
    tuned = compiled.specialisations.with_compiler(tuning.compiler).first.build.executable
    plain, feeds = compiled.build.executable, draw_feeds(compiled, {})
    times = medians(
        {"before": lambda: plain.run(feeds), "after": lambda: tuned.run(feeds)}, COMPARED_SECONDS
    )
    if not options.json:
        faster = sum(record.choice is not None for record in tuning.records)
        console.print(
            f"{len(tuning.records)} kernels measured, {faster} of them are faster now. One call "
            f"takes {times['after'] * 1e3:.3f} ms, before {times['before'] * 1e3:.3f} ms. "
            + _advice(tuning, faster),
            highlight=False,
        )
        if faster:
            console.print(_choices_table(tuning).rich())
    records = [json.loads(record.line()) for record in tuning.records]
    return {"records": records, "seconds": times, "kept": tuning.is_kept}


def time_for_kernels(minutes: float | None, around: float) -> float | None:
    """The minutes in which kernels are measured; ``around``: those of everything else."""
    return None if minutes is None else max(minutes - around, MIN_SHARE * minutes)


def _advice(tuning: Tuning, faster: int) -> str:
    """The use of a tuning with so many faster kernels."""
    if not tuning.records:
        return MEASURED_BEFORE + KEPT
    if not faster:
        return NO_GAIN
    return KEPT if tuning.is_kept else LOST


@contextmanager
def _open_client(address: str | None) -> Iterator[Any]:
    """A client of the Dask scheduler at an address; None where none is given.  Raises
    ``OptionError``."""
    if address is None:
        yield None
        return
    distributed = dask("distributed")
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except Exception as error:
        raise OptionError(
            f"scheduler: cannot reach {address!r}: {error}. Remedy: give the address that "
            "`dask scheduler` prints."
        ) from error
    with client:
        yield client


def tell(line: str) -> None:
    """Say on stderr how far the work is."""
    print(line, file=sys.stderr, flush=True)


def _choices_table(tuning: Tuning) -> ReportTable:
    """The choices that are faster than the default, the best first."""
    better = [record for record in tuning.records if record.choice is not None]
    better.sort(key=ratio)
    rows = [
        (
            # A task of another processor is not known here.
            tuning.shapes.get(record.task, record.task[:8]),
            str(record.choice),
            f"{ratio(record):.2f}",
            str(record.tried),
        )
        for record in better
    ]
    columns = ("kernel", "choice", "time / default", "tried")
    return ReportTable("Faster choices", columns, rows, frozenset(columns[2:]))


def ratio(record: Record) -> float:
    """The median of a choice's time over that of the default."""
    return float(np.median(np.divide(record.seconds, record.default_seconds)))


def _machine_json(core_fit: CoreFit) -> dict[str, object]:
    """The figures in types that ``json`` writes."""
    return {
        "path": str(core_fit.path),
        "points": core_fit.points,
        "listed_loss": core_fit.listed_loss,
        "fitted_loss": core_fit.fitted_loss,
        "core": core_to_json(core_fit.core),
    }


def _costs_table(core_fit: CoreFit) -> ReportTable:
    """The costs, before and now."""
    before, now = map(_cost_texts, (core_fit.listed, core_fit.core))
    rows = [(name, before[name], now[name]) for name in before]
    columns = ("cost", "before", "now")
    return ReportTable(f"Core of this machine ({core_fit.target.name})", columns, rows)


def _cost_texts(core: Core) -> dict[str, str]:
    """Each cost as text."""
    return {name: str(value) for name, value in core_to_json(core).items()}


def summary(core_fit: CoreFit) -> str:
    """The time that chosen tiles lose, before and now."""
    outcome = "now used" if core_fit.is_kept else "not better, so the costs before stay"
    return (
        "On shapes that had no part in the fit, chosen tiles take "
        f"{core_fit.listed_loss:.1%} longer than the best one with the costs before, "
        f"{core_fit.fitted_loss:.1%} with those measured "
        f"({outcome}; {core_fit.points} tiles timed).\n{core_fit.path}"
    )
