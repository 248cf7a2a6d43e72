"""Time of each kernel call beside its limit: the list that tells where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

import quantglow as qg
from benchmarks import models, ours
from benchmarks.peak import native_peak
from quantglow.backends.llvm.call_times import CallTime
from quantglow.backends.llvm.executable import LlvmExecutable
from quantglow.backends.llvm.peak import Peak

COLUMNS = ("value", "op", "kernel", "µs", "% of all", "MMAC", "kB", "GMAC/s", "limit µs", "share")


def compiled(name: str, precision: str, threads: int, batch: int, samples: int) -> qg.CompiledModel:
    """The network as the latency benchmark runs it."""
    maker = {"int8": ours.int8_model, "float": ours.float_model}[precision]
    return maker(models.network(name), threads, batch, samples)


def profiled(name: str, model: qg.CompiledModel, batch: int, repeats: int) -> list[CallTime]:
    """Median time of every kernel call on a real sample."""
    executable = model.build.executable
    assert isinstance(executable, LlvmExecutable)
    (feeds,) = models.network(name).feeds(1, seed=1, batch=batch)
    return executable.profile_calls(dict(feeds), repeats)


def limit_of(call: CallTime, peak: Peak) -> float:
    """Seconds that the processor needs for the products, or to read the bytes from cache."""
    return call.limit_seconds(peak.macs(call.is_integer), peak.cached_nbytes)


def layer_table(title: str, calls: Sequence[CallTime], peak: Peak) -> Table:
    """One row for each call, and the sum."""
    table = Table(*COLUMNS, title=title, title_justify="left")
    for column in table.columns[3:]:
        column.justify = "right"
    total = sum(call.seconds for call in calls)
    for call in calls:
        table.add_row(call.name, call.op, call.label, *figures(call, total, limit_of(call, peak)))
    table.add_section()
    macs, nbytes = sum(call.macs for call in calls), sum(call.nbytes for call in calls)
    limit = sum(limit_of(call, peak) for call in calls)
    whole = CallTime("", "", "", total, 0.0, macs, nbytes, is_integer=True)
    table.add_row("all", "", f"{len(calls)} calls", *figures(whole, total, limit))
    return table


def figures(call: CallTime, total: float, limit: float) -> list[str]:
    """The columns from the time on."""
    rate = f"{call.macs / call.seconds / 1e9:.0f}" if call.macs and call.seconds else ""
    return [
        f"{call.seconds * 1e6:.1f}",
        f"{100 * call.seconds / total:.1f}",
        f"{call.macs / 1e6:.2f}" if call.macs else "",
        f"{call.nbytes / 1e3:.0f}",
        rate,
        f"{limit * 1e6:.1f}",
        f"{100 * limit / call.seconds:.0f} %" if call.seconds else "",
    ]


def run(name: str, precision: str, threads: int, batch: int, samples: int, repeats: int) -> int:
    """Print the table."""
    model = compiled(name, precision, threads, batch, samples)
    calls = profiled(name, model, batch, repeats)
    peak = native_peak(threads)
    title = (
        f"{name} {precision}, batch {batch}, {threads} thread(s); limit: "
        f"{peak.integer_macs / 1e9:.0f} int8 and {peak.float_macs / 1e9:.0f} float GMAC/s, "
        f"{peak.cached_nbytes / 1e9:.0f} GB/s"
    )
    Console(width=None if Console().is_terminal else 160).print(layer_table(title, calls, peak))
    return 0
