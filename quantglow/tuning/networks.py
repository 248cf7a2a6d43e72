"""Tuning of whole networks, on this machine or on those of a Dask cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.programs.build import Compiler
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

    Raises ``OptionError`` for a model that is no single program, ``BackendError`` if nothing could
    be measured.
    """
    if not isinstance(model, CompiledModel):
        raise OptionError(f"tune={MEASURE!r}: onnxruntime runs a part of this model. {LEAVE_OUT}")
    if model.specialisations.is_empty:
        raise OptionError(
            f"tune={MEASURE!r}: the model leaves dimensions free. Remedy: give input_shapes."
        )
    graph, target = model.graph, compiler.target
    if target is None or not compiler.is_one_program(graph):
        raise OptionError(f"tune={MEASURE!r}: this model is no single program. {LEAVE_OUT}")
    deadline = Deadline.after(MAX_MINUTES if max_minutes is None else max_minutes)
    earlier = read_records()
    tuner = Tuner(graph, target, compiler.num_threads, deadline, searcher, say=say)
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
