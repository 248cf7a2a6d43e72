"""Tuning of whole networks, on this machine or on those of a Dask cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantglow.ir.graph.graph import Graph
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.programs.build import Compiler, ProgramBackend
from quantglow.support.errors import OptionError
from quantglow.support.processes.interrupts import Deadline
from quantglow.tuning.records import (
    MEASURE,
    Record,
    hints,
    keep_records,
    of_machine,
    read_records,
    tune_target,
)
from quantglow.tuning.tuner import DEFAULT_SEARCHER, Say, Tuner, quiet

LEAVE_OUT = "Remedy: leave tune out."
MAX_MINUTES = 5.0
"""Time of a tuning if none is given."""


@dataclass(frozen=True)
class Tuning:
    """A compiler with the choices of this machine.

    records  those that are new
    shapes   task -> its work in one line
    is_kept  whether later processes find the records
    """

    compiler: Compiler
    records: tuple[Record, ...]
    shapes: Mapping[str, str]
    is_kept: bool


def tune_network(
    model: object,
    compiler: Compiler,
    max_minutes: float | None = None,
    searcher: str = DEFAULT_SEARCHER,
    say: Say = quiet,
    client: Any = None,
) -> Tuning:
    """Measure the kernels of a compiled model that have no record on this machine, and keep the
    records.

    ``client``: of a Dask cluster, whose machines measure instead; the records name them.

    Raises ``OptionError`` for a model that onnxruntime runs in parts, ``BackendError`` if nothing
    could be measured.
    """
    if not isinstance(model, CompiledModel):
        raise OptionError(f"tune={MEASURE!r}: onnxruntime runs a part of this model. {LEAVE_OUT}")
    if model.specialisations.is_empty:
        raise OptionError(
            f"tune={MEASURE!r}: the model leaves dimensions free. Remedy: give input_shapes."
        )
    graphs, target = compiled_graphs(model), compiler.target
    if target is None or not graphs:
        raise OptionError(f"tune={MEASURE!r}: quantglow compiles nothing of it. {LEAVE_OUT}")
    deadline = Deadline.after(MAX_MINUTES if max_minutes is None else max_minutes)
    earlier = read_records()
    tuner = Tuner(graphs, target, compiler.num_threads, deadline, searcher, say=say)
    if client is None:
        records = tuner.run(of_machine(earlier, tuner.host), hints(earlier, tuner.host))
    else:
        # Only here: most programs are tuned without a cluster.
        from quantglow.tuning.cluster import tune_on_cluster

        records = tune_on_cluster(client, tuner, earlier)
    is_kept = keep_records(records)
    tuned = replace(compiler, target=tune_target(target, [*earlier, *records]))
    shapes = {task.key: task.shape for task in tuner.planned[0]}
    return Tuning(tuned, tuple(records), shapes, is_kept)


def compiled_graphs(model: CompiledModel) -> list[Graph]:
    """The graphs of the programs that quantglow compiled: the whole, or segments of it; sizes that
    results decide are free in these."""
    build = model.build
    if not build.segments:
        return [model.graph]
    return [s.graph for s in build.segments if isinstance(s.backend, ProgramBackend)]
