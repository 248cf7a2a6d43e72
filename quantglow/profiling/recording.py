"""Run a model on calibration data and record every float tensor."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from operator import length_hint
from typing import Any

import numpy as np

from quantglow.interpreter import Listener, interpret
from quantglow.interpreter.branches import listen_to_taken
from quantglow.interpreter.executor import peak_nbytes
from quantglow.interpreter.stacks import MOST, in_groups, interpret_together, runs_together
from quantglow.ir.graph.family import Case, Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.profiling.histogram import Histogram
from quantglow.profiling.profiles import Profile
from quantglow.profiling.samples.feeds import Located, read_feeds
from quantglow.profiling.specials import ABSENT, Specials, brought, describe_specials, node_specials
from quantglow.support.arguments import count
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, InputError, ModelError, UnsupportedOpError
from quantglow.support.processes.interrupts import end, is_interrupted
from quantglow.support.processes.workers import at_once, each, later, side_by_side
from quantglow.support.progress import show

TOGETHER_NBYTES = 2**27
"""Maximum size of the values of batches that run side by side, in bytes."""

MOST_AT_ONCE = 4
"""Maximum number of groups of batches that run side by side."""

MOST_WAITING = 4
"""Maximum number of values that are held for counting while a run continues."""

AVOID = (
    "look at the model in float, whose result is no number there; a mask of finite numbers such as "
    "-1e4 avoids inf - inf and 0 * inf."
)
REPLACE = (
    "look at the model in float, whose result is no number there; a finite number in its place "
    "(Where) before it is computed with avoids that."
)

NO_SAMPLES = (
    "calibration data holds no samples. Remedy: pass at least one; an iterator or a "
    "CalibrationDataReader that was used before is empty."
)

Group = tuple[Sequence[Located], Graph]
"""Batches to run together, and the graph for their shapes."""

Runner = Callable[[Graph, Sequence[Located], Sequence[Listener]], object]
"""Function that runs a graph on several batches and shows every value to the listeners, as
``interpret_together`` does; a single one as ``interpret``."""


def run_interpreter(
    graph: Graph, batches: Sequence[Located], listeners: Sequence[Listener]
) -> None:
    """A ``Runner`` that keeps nothing."""
    if len(batches) == 1:
        interpret(graph, batches[0], listeners)
    else:
        interpret_together(graph, batches, listeners)


def profile(
    graph: Graph | Family,
    data: Any,
    *,
    subset_size: int = 300,
    progress: bool | str = "auto",
    run: Runner = run_interpreter,
) -> Profile:
    """Histograms of every float value of ``graph`` over the first ``subset_size`` batches.

    If ``graph`` is a family, the graph for its shapes runs each batch; values of one name share one
    histogram.  ``data`` is as for ``read_feeds``.  ``progress`` is a bar on stderr; "auto" shows
    it on a terminal only.  Ctrl-C inside ``interrupts.keeping_best`` ends it after a batch.

    Raises ``CalibrationError`` for data that does not fit the model, holds NaN or Inf, or leads to
    NaN or Inf in a tensor, which the message names.  Infinities of the model itself, as in masks,
    and NaN of its constants that is only moved, are counted.
    """
    subset_size = count("subset_size", subset_size)
    recorded: dict[str, Histogram] = {}
    cases: Counter[Case] = Counter()
    family = Family.of(graph)
    batches = show_progress(islice(read_feeds(data, family.signature), subset_size), data, progress)
    with side_by_side():
        for groups in _together(batches, family):
            for histograms in each(partial(_record, run), groups):
                _merge(recorded, histograms)
            for feeds in chain.from_iterable(group for group, _ in groups):
                cases[family.case_of(feeds)] += 1
            if is_interrupted():
                note_early_end(cases.total())
                break
    if not cases:
        raise CalibrationError(NO_SAMPLES)
    return Profile(family.source_hash, recorded, cases.total(), cases)


def _together(batches: Iterable[Located], family: Family) -> Iterator[list[Group]]:
    """Groups of batches to run side by side: few, so that their values fit memory."""
    waiting: list[tuple[Located, Graph]] = []
    sizes: dict[Graph, int] = {}
    for feeds in batches:
        graph = graph_for(feeds, family)
        waiting.append((feeds, graph))
        if graph not in sizes:
            sizes[graph] = peak_nbytes(graph)
        is_full = len(waiting) * sizes[graph] >= TOGETHER_NBYTES or len(waiting) == _at_most()
        if is_full or is_interrupted():  # After Ctrl-C no more samples are waited for.
            yield _groups(waiting, sizes)
            waiting = []
    if waiting:
        yield _groups(waiting, sizes)


def _at_most() -> int:
    """Maximum number of batches that run at a time."""
    return min(at_once(), MOST_AT_ONCE) * MOST


def _groups(batches: Sequence[tuple[Located, Graph]], sizes: Mapping[Graph, int]) -> list[Group]:
    """The batches in groups, a group for each thread if there are enough."""
    by_graph: dict[Graph, list[Located]] = {}
    for feeds, graph in batches:
        by_graph.setdefault(graph, []).append(feeds)
    return [
        (group, graph)
        for graph, alike in by_graph.items()
        for group in (
            in_groups(alike, sizes[graph], at_once())
            if runs_together(graph)
            else [[feeds] for feeds in alike]
        )
    ]


def _record(run: Runner, group: Group) -> dict[str, Histogram]:
    """The histograms of one group."""
    batches, graph = group
    recorder = _Recorder(batches[0].place)
    try:
        with np.errstate(all="ignore"):
            run(graph, batches, [listen_to_taken(graph, recorder)])
        recorder.finish()
    except CalibrationError:
        if len(batches) > 1:  # One of them alone tells its place.
            for feeds in batches:
                _record(run, ([feeds], graph))
        raise
    return recorder.recorded


def _merge(recorded: dict[str, Histogram], histograms: Mapping[str, Histogram]) -> None:
    for name, histogram in histograms.items():
        before = recorded.get(name)
        recorded[name] = histogram if before is None else before.merge(histogram)


def note_early_end(batches: int) -> None:
    """Keep for the report that Ctrl-C ended profiling."""
    extent = f"calibrated on {batches} batch(es)"
    end("profiling", f"Ctrl-C ended profiling early: {extent}")


def graph_for(feeds: Located, family: Family) -> Graph:
    """The graph for the shapes of one sample.  Raises ``CalibrationError``."""
    try:
        return family.fitting(feeds)
    except (InputError, ModelError, UnsupportedOpError) as error:
        raise CalibrationError(
            f"{feeds.place} has shapes that the model does not take: {error}. Remedy: feed shapes "
            "that its operators agree with, or leave the sample out."
        ) from error


@dataclass
class _Recorder:
    """A listener that counts each float value of one batch into ``recorded``.

    It refuses NaN and Inf that the model does not bring itself (see ``specials``).  Values are
    counted while the next ones are computed, where a batch runs alone.
    """

    place: str
    recorded: dict[str, Histogram] = field(default_factory=dict)
    waiting: deque[tuple[Node, Callable[[], Histogram]]] = field(default_factory=deque)

    def __call__(self, node: Node, value: Array) -> None:
        if isinstance(node, Constant) or not node.type.dtype.is_float:
            return
        self.waiting.append((node, later(Histogram.of, value)))
        if len(self.waiting) > MOST_WAITING:
            self._merge_next()

    def finish(self) -> None:
        """Merge the values that are still being counted."""
        while self.waiting:
            self._merge_next()

    def _merge_next(self) -> None:
        node, counted = self.waiting.popleft()
        histogram = counted()
        is_computed = histogram.nans and not node.has(Trait.MOVES)
        if is_computed or not histogram.specials <= node_specials(node, self._specials):
            raise CalibrationError(
                f"{self.place} leads to {histogram.nans} NaN and {histogram.infinities} Inf "
                f"value(s) in {node.name!r} ({node.op}). {self._remedy(node, histogram)}"
            )
        _merge(self.recorded, {node.name: histogram})

    def _specials(self, value: Node) -> Specials:
        histogram = None if isinstance(value, Constant) else self.recorded.get(value.name)
        return brought(value) if histogram is None else histogram.specials

    def _remedy(self, node: Node, histogram: Histogram) -> str:
        for operand in node.operands if histogram.nans else ():
            if operand.type.dtype.is_float and (specials := self._specials(operand)):
                return (
                    f"Its operand {operand.name!r} holds the model's own "
                    f"{describe_specials(specials)}. "
                    f"Remedy: {REPLACE if specials & ABSENT else AVOID}"
                )
        return (
            "Finite numbers led to them. Remedy: check the preprocessing (scale, channel order), "
            "or the model itself in float."
        )


def show_progress(feeds: Iterable[Located], data: Any, progress: bool | str) -> Iterator[Located]:
    """The feeds, with a progress bar around them if wanted."""
    count = 0 if isinstance(data, str) else length_hint(data)
    return show(feeds, "Profiling", progress, float(count) if count else None)
