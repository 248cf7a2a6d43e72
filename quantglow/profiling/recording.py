"""Run a model on calibration data and record every float tensor."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from quantglow.arguments import count
from quantglow.errors import (
    CalibrationError,
    InputError,
    ModelError,
    UnsupportedOpError,
)
from quantglow.graph.case import Case
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import Listener, interpret
from quantglow.interpreter.choices import taken_only
from quantglow.profiling.data import Feeds, feeds_of
from quantglow.profiling.histogram import Histogram
from quantglow.profiling.profiles import Profile
from quantglow.profiling.progress import shown
from quantglow.types import Array
from quantglow.workers import later, side_by_side

MOST_WAITING = 4
"""Values that are kept to be counted, while a run goes on."""

Runner = Callable[[Graph, Mapping[str, Array], Sequence[Listener]], object]
"""Runs a graph and shows every value to the listeners, as ``interpret`` does."""


def profile(
    graph: Graph | Family,
    data: Any,
    *,
    subset_size: int = 300,
    progress: bool | str = "auto",
    run: Runner = interpret,
) -> Profile:
    """Histograms of every float value of ``graph`` over the first ``subset_size`` batches.

    Of a family, each batch is run by the graph for its shapes; values of one name share one
    histogram.
    ``data`` is what ``data.feeds_of`` takes.  ``progress``: a bar on stderr; "auto" shows it on a
    terminal only.  Raises ``CalibrationError`` for data that does not fit the model, holds NaN or
    Inf, or leads to NaN or Inf in any tensor (named in the message).
    """
    subset_size = count("subset_size", subset_size)
    recorded: dict[str, Histogram] = {}
    cases: Counter[Case] = Counter()
    family = Family.of(graph)
    batches = islice(feeds_of(data, family.signature), subset_size)
    for index, feeds in enumerate(_shown(batches, data, progress)):
        with np.errstate(all="ignore"), side_by_side():
            fitting = _graph_for(feeds, family, index)
            recorder = _Recorder(recorded, index)
            run(fitting, feeds, [taken_only(fitting, recorder)])
            recorder.finish()
        cases[Case.fitting(feeds, family.deciding)] += 1
    if not cases:
        raise CalibrationError(
            "calibration data holds no samples. Remedy: pass at least one; an iterator or a "
            "CalibrationDataReader that was used before is empty."
        )
    return Profile(family.source_hash, recorded, cases.total(), cases)


def _graph_for(feeds: Feeds, family: Family, index: int) -> Graph:
    try:
        return family.fitting(feeds)
    except (InputError, ModelError, UnsupportedOpError) as error:
        raise CalibrationError(
            f"batch {index} has shapes that the model does not take: {error}. Remedy: feed shapes "
            "that its operators agree with, or leave the sample out."
        ) from error


@dataclass
class _Recorder:
    """A listener that merges each float value into ``recorded`` and refuses NaN and Inf.

    Values are counted while the next ones are computed.
    """

    recorded: dict[str, Histogram]
    sample: int
    waiting: deque[tuple[Node, Callable[[], Histogram]]] = field(default_factory=deque)

    def __call__(self, node: Node, value: Array) -> None:
        if isinstance(node, Constant) or not node.type.dtype.is_float:
            return
        self.waiting.append((node, later(Histogram.of, value)))
        if len(self.waiting) > MOST_WAITING:
            self._merge_next()

    def finish(self) -> None:
        """Merge what is still being counted."""
        while self.waiting:
            self._merge_next()

    def _merge_next(self) -> None:
        node, counted = self.waiting.popleft()
        seen = counted()
        if seen.nans or seen.infinities:
            raise CalibrationError(
                f"batch {self.sample} leads to {seen.nans} NaN and {seen.infinities} Inf value(s) "
                f"in {node.name!r} ({node.op}). Remedy: check the preprocessing (scale, channel "
                "order), or the model itself in float."
            )
        before = self.recorded.get(node.name)
        self.recorded[node.name] = seen if before is None else before.merge(seen)


def _shown(feeds: Iterable[Feeds], data: Any, progress: bool | str) -> Iterator[Feeds]:
    """The feeds, with a progress bar around them if wanted."""
    total = float(len(data)) if hasattr(data, "__len__") and not isinstance(data, str) else None
    return shown(feeds, "Profiling", progress, total)
