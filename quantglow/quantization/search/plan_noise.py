"""The output noise of a plan on calibration samples: the objective of the search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from quantglow.foreign_types import Array
from quantglow.interpreter.executor import peak_nbytes
from quantglow.interpreter.stacks import in_groups
from quantglow.processes.workers import at_once, each
from quantglow.profiling.data import Feeds
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.checkpoints import Checkpoints, RunCheckpoints
from quantglow.quantization.search.fake_quantization import execution, rounded_weights
from quantglow.quantization.search.output_noise import compared_nodes, noise_to_signal


def relative_noise(
    plan: Plan,
    samples: Sequence[Feeds],
    wanted: Sequence[Sequence[Array]],
    exact_weights: bool,
    checkpoints: Checkpoints | None = None,
) -> float:
    """Energy of the error over energy of the signal, of the worst output, over all samples.

    ``wanted``: for each sample the exact values of the ``compared_nodes``.  ``checkpoints``: of an
    earlier plan, from which the runs go on where they can.
    """
    weights = {} if exact_weights else rounded_weights(plan)
    ends = compared_nodes(plan.graph)

    def run(group: tuple[Sequence[Feeds], RunCheckpoints]) -> list[list[Array]]:
        some, kept = group
        running = execution(plan, some, weights, kept.resumed(ends))
        for _ in running:
            kept.add(running)
        values = [value.real for value in running.run()]
        return [[value.of(index) for value in values] for index in range(len(some))]

    groups = in_groups(samples, peak_nbytes(plan.graph), at_once())
    started = (checkpoints or Checkpoints()).started(plan, len(groups))
    found = each(run, zip(groups, started, strict=True))
    return noise_to_signal(plan.graph, list(chain.from_iterable(found)), wanted)
