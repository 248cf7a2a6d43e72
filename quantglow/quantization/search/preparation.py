"""Preparation: the search for equalization and ranges, before any value is rounded.

Every lever is tried and kept only if it lowers the noise of the network's outputs on samples that
were held back: first for the whole network, then for each stretch of it alone.  The plain graph
with min-max ranges is the first candidate, so that the result is never worse there.

Decisions are keyed by value names, so that they hold for the same model at another shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from quantglow.graph.graph import Graph
from quantglow.options import QuantizationConfig
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.processes.interrupts import Interrupted
from quantglow.processes.workers import side_by_side
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.equalize.float_runs import FloatRuns
from quantglow.quantization.search.candidate import Candidate
from quantglow.quantization.search.levers import exact_levers, tried_levers
from quantglow.quantization.search.trials import Trials, split

STAGE = "choosing ranges and scales"


def prepare(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    progress: bool | str = False,
    deadline: Deadline = NEVER,
    runs: FloatRuns | None = None,
) -> Candidate:
    """The best candidate found until all are tried, until ``deadline`` or Ctrl-C.

    ``runs``: of ``graph``, with the values of samples that ran before.
    Raises ``ProfileMismatchError`` for the profile of another model.
    """
    profile.check(graph)
    start = Candidate(graph, profile)
    if not samples or not (config.equalization or config.calibrate_method == "auto"):
        return start
    parts = split(samples, config.seed)
    trials = Trials(start, config, *parts, runs or FloatRuns(graph), deadline)
    with suppress(Interrupted), side_by_side():  # The best so far is whole.
        for _ in shown(steps(trials), STAGE.capitalize(), progress):
            if deadline.is_over:
                break
        else:
            return trials.best
    deadline.ends(STAGE)
    return trials.best


def steps(trials: Trials) -> Iterator[None]:
    """One proposal after the other."""
    for lever in exact_levers():
        for candidate in lever.proposals(trials):
            trials.begin(candidate)
        yield
    trials.leave_out_unlike()
    if not trials.is_search:
        return
    trials.run_float()
    for lever in tried_levers(trials.config.effort):
        for candidate in lever.proposals(trials):
            trials.judge(candidate)
            yield
