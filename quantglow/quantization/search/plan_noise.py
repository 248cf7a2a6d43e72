"""The output noise of a plan on calibration samples: the objective of the search."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.processes.workers import each
from quantglow.profiling.data import Feeds
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.checkpoints import Checkpoints, RunCheckpoints
from quantglow.quantization.search.fake_quantization import execution, rounded_weights
from quantglow.quantization.search.output_noise import compared_nodes, noise_to_signal
from quantglow.types import Array


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

    def run(sample: tuple[Feeds, RunCheckpoints]) -> list[Array]:
        feeds, kept = sample
        running = execution(plan, feeds, weights, kept.resumed(ends))
        for _ in running:
            kept.add(running)
        return [value.real for value in running.run()]

    started = (checkpoints or Checkpoints()).started(plan, len(samples))
    found = each(run, zip(samples, started, strict=True))
    return noise_to_signal(plan.graph, found, wanted)
