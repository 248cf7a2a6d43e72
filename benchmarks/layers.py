"""Time of each kernel call beside its limit: the list that tells where the time goes."""

from __future__ import annotations

from rich.console import Console

import quantglow as qg
from benchmarks import models, ours
from quantglow.report.call_report import profile_calls

WIDTH = 160


def compiled(name: str, precision: str, threads: int, batch: int, samples: int) -> qg.CompiledModel:
    """The network as the latency benchmark runs it."""
    maker = {"int8": ours.int8_model, "float": ours.float_model}[precision]
    return maker(models.network(name), threads, batch, samples)


def run(name: str, precision: str, threads: int, batch: int, samples: int, repeats: int) -> int:
    """Print the times on a real sample."""
    model = compiled(name, precision, threads, batch, samples)
    (feeds,) = models.network(name).feeds(1, seed=1, batch=batch)
    report = profile_calls(model.build, feeds, repeats)
    console = Console(width=None if Console().is_terminal else WIDTH)
    console.print(f"{name} {precision}, batch {batch}", highlight=False)
    console.print(report.by_call().rich(), report.by_kernel().rich())
    return 0
