"""``quantglow tune``: measure this machine's core."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from quantglow.backends.llvm.isa.costs import Core
from quantglow.backends.llvm.jit.machine import core_to_json
from quantglow.errors import OptionError
from quantglow.report.busy import busy_note
from quantglow.report.tables import Table
from quantglow.tuning.core_fit import CoreFit, measure_core, stored


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--machine",
        action="store_true",
        help="measure the costs of this processor's core for about a minute; every compilation "
        "after it chooses tiles, forms and order by them",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(options: argparse.Namespace, console: Console) -> None:
    """Measure, store and show."""
    if not options.machine:
        raise OptionError("there is nothing to tune. Remedy: --machine")
    if busy := busy_note():
        console.print(f"warning: {busy}", highlight=False)
    found = stored(measure_core())
    if options.json:
        console.file.write(json.dumps(to_json(found)) + "\n")
        return
    console.print(table_of(found).rich())
    console.print(summary(found), highlight=False, markup=False)


def to_json(found: CoreFit) -> dict[str, object]:
    """The figures in types that ``json`` writes."""
    return {
        "path": str(found.path),
        "points": found.points,
        "listed_loss": found.listed_loss,
        "fitted_loss": found.fitted_loss,
        "core": core_to_json(found.core),
    }


def table_of(found: CoreFit) -> Table:
    """The costs, before and now."""
    before, now = map(texts_of, (found.listed, found.core))
    rows = [(name, before[name], now[name]) for name in before]
    columns = ("cost", "before", "now")
    return Table(f"Core of this machine ({found.target.name})", columns, rows)


def texts_of(core: Core) -> dict[str, str]:
    """Each cost as text."""
    return {name: str(value) for name, value in core_to_json(core).items()}


def summary(found: CoreFit) -> str:
    """The time that chosen tiles lose, before and now."""
    kept = "now used" if found.is_kept else "not better, so the costs before stay"
    return (
        f"On shapes that had no part in the fit, chosen tiles take {found.listed_loss:.1%} longer "
        f"than the best one with the costs before, {found.fitted_loss:.1%} with those measured "
        f"({kept}; {found.points} tiles timed).\n{found.path}"
    )
