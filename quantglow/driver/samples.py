"""Calibration data as the user gives it: samples, or a profile."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from quantglow.driver.held_out import HeldOut, digest_of
from quantglow.errors import QuantglowError
from quantglow.graph.case import Case
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.interpreter import Listener
from quantglow.interpreter.stacks import MOST
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds, Located, feeds_of
from quantglow.profiling.recording import MOST_AT_ONCE, interpreted
from quantglow.profiling.storage import is_profile
from quantglow.quantization.equalize.float_runs import FloatRuns
from quantglow.quantization.recovery import MAX_NBYTES, Reservoir, capacity, sample_nbytes
from quantglow.quantization.shape_variants import ShapeVariant, are_alike, sharing
from quantglow.report.accuracy.verification import MAX_SAMPLES
from quantglow.report.samples.data_warnings import Seen

ENOUGH = 4
"""Minimum number of samples of the main shapes that decide without samples of other shapes
(``benchmarks/notes/2026-11-sample-shapes.md``)."""

OTHER_CASES = 16
"""Maximum number of other cases whose samples help to decide: each is imported once more."""


def profile_in(data: Any) -> Profile | None:
    """The profile that calibration data is, or names; None for samples."""
    if isinstance(data, Profile):
        return data
    if isinstance(data, str | os.PathLike) and is_profile(data):
        return Profile.load(data)
    return None


@dataclass
class Samples:
    """Calibration data as feeds; some are kept for accuracy recovery, the first for the check.

    With ``holds_out`` others are kept for the check, which are not among these feeds, and all that
    are there are calibrated on: ``subset_size`` at most.
    """

    data: Any
    family: Family
    subset_size: int = sys.maxsize
    holds_out: bool = False
    kept: list[Feeds] = field(default_factory=list)
    drawn: Reservoir | None = None
    seed: int = 0
    recent: deque[Located] = field(default_factory=lambda: deque(maxlen=MOST_AT_ONCE * MOST))
    runs: FloatRuns | None = None
    held: HeldOut | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: Seen = field(default_factory=Seen)

    def __iter__(self) -> Iterator[Located]:
        for own in self._split() if self.holds_out else self._read():
            if len(self.kept) < MAX_SAMPLES:
                self.kept.append(own)
            if self.drawn is None:
                self.drawn = Reservoir(self._capacity(own), self.seed)
            self.drawn.add(own)
            self.recent.append(own)
            yield own

    def _read(self) -> Iterator[Located]:
        for feeds in feeds_of(self.data, self.family.signature):
            self.seen.add(feeds, digest_of(feeds))
            yield feeds

    def _split(self) -> Iterator[Located]:
        """The samples that are not held out."""
        samples = self._read()
        for feeds in islice(samples, self.subset_size):
            self.held = self.held or HeldOut.fitting(feeds)
            yield from self.held.offer(feeds)
        if self.held is not None:
            yield from self.held.end(list(islice(samples, self.held.capacity)))

    def unseen(self, case: Case) -> list[Feeds]:
        """The samples of a case that are held out."""
        held = self.held.samples if self.held else []
        return [s for s in held if Case.fitting(s, self.family.deciding) == case]

    def run(self, graph: Graph, batches: Sequence[Located], listeners: Sequence[Listener]) -> None:
        """Run some of these samples; what comes next finds the values of a few in ``runs``."""
        with self.lock:  # Several groups may run side by side.
            self.runs = self.runs or FloatRuns(graph)
        if self.runs.graph is graph:
            own = {sample.place: sample for sample in self.recent}
            self.runs.run([own.get(feeds.place, feeds) for feeds in batches], listeners)
        else:
            interpreted(graph, batches, listeners)

    def taken_runs(self, graph: Graph) -> FloatRuns | None:
        """The runs of ``graph``, if it is theirs; who takes them is to let go of them."""
        runs, self.runs = self.runs, None
        return runs if runs is not None and runs.graph is graph else None

    def _capacity(self, feeds: Feeds) -> int:
        try:
            return capacity(self.family.fitting(feeds))
        except QuantglowError:
            return 1  # The profiler, which comes next, says what is wrong with the shapes.

    def fitting(self, case: Case) -> tuple[list[Feeds], list[Feeds]]:
        """The samples of a case, for the check and for recovery."""

        def fits(feeds: Feeds) -> bool:
            return Case.fitting(feeds, self.family.deciding) == case

        drawn = list(filter(fits, self.drawn_samples))
        kept = list(filter(fits, self.kept))
        return max(kept, drawn[:MAX_SAMPLES], key=len), drawn or kept

    def deciding(self, case: Case, graph: Graph) -> tuple[list[Feeds], list[Feeds]]:
        """The samples of a case for the check, and those for all that is decided: where they are
        few, of other shapes, too.
        """
        kept, data = self.fitting(case)
        return kept, data if len(data) >= ENOUGH else [*data, *self.elsewhere(case, graph)]

    def elsewhere(self, case: Case, graph: Graph) -> list[Feeds]:
        """Samples of other shapes, with their graphs, that decide as ``case`` does and whose graphs
        are like its ``graph``; no more than memory has room for, of ``OTHER_CASES`` at most.
        """
        cases = [Case.fitting(feeds, self.family.deciding) for feeds in self.drawn_samples]
        others = Counter(other for other in cases if other.values == case.values)
        left = MAX_NBYTES - others.pop(case, 0) * sample_nbytes(graph)
        found: list[Feeds] = []
        for other, _ in others.most_common(OTHER_CASES):
            own = self.family.at(other.shape_map, other.value_map)
            if not are_alike(graph, own):
                continue
            own, nbytes = sharing(own, graph), sample_nbytes(own)
            for feeds, its in zip(self.drawn_samples, cases, strict=True):
                if its == other and left > nbytes:
                    found.append(ShapeVariant(feeds, own))
                    left -= nbytes
        return found

    @property
    def drawn_samples(self) -> list[Feeds]:
        """The samples that are kept for accuracy recovery."""
        return self.drawn.kept if self.drawn else []
