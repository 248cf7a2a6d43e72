"""Calibration data as the user gives it, samples or a profile, and samples held out for the check.

Samples beyond ``subset_size`` are never calibrated on.  Where they are fewer than one in
``EVERY``, others join them: those whose contents have the lowest digests, so that neither the order
of the data nor its batches matter.  A sample that occurs twice is held out with all its copies.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from quantglow.evaluation.accuracy import EVERY, FEWEST_SAMPLES
from quantglow.evaluation.layers import MAX_SAMPLES
from quantglow.evaluation.sample_checks import SampleChecks
from quantglow.interpreter import Listener
from quantglow.interpreter.stacks import MOST
from quantglow.ir.graph.family import Case, Family
from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Profile
from quantglow.profiling.profiles import is_profile
from quantglow.profiling.recording import MOST_AT_ONCE, run_interpreter
from quantglow.profiling.samples.feeds import Feeds, Located, hash_feeds, read_feeds
from quantglow.quantization.equalize.sample_statistics import FloatRuns
from quantglow.quantization.rounding import MAX_NBYTES, Reservoir, capacity, sample_nbytes
from quantglow.quantization.shape_variants import ShapeVariant, are_alike, share_constants
from quantglow.support.errors import QuantglowError

HELD_OUT_SAMPLES, HELD_OUT_NBYTES = 60, 2**28
"""Maximum number of samples held out: one in ``EVERY`` of the default subset; and their size."""

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
    first: list[Feeds] = field(default_factory=list)
    drawn: Reservoir | None = None
    seed: int = 0
    recent: deque[Located] = field(default_factory=lambda: deque(maxlen=MOST_AT_ONCE * MOST))
    runs: FloatRuns | None = None
    held: HeldOut | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    checks: SampleChecks = field(default_factory=SampleChecks)

    def __iter__(self) -> Iterator[Located]:
        for feeds in self._split() if self.holds_out else self._read():
            if len(self.first) < MAX_SAMPLES:
                self.first.append(feeds)
            if self.drawn is None:
                self.drawn = Reservoir(self._capacity(feeds), self.seed)
            self.drawn.add(feeds)
            self.recent.append(feeds)
            yield feeds

    def _read(self) -> Iterator[Located]:
        for feeds in read_feeds(self.data, self.family.signature):
            self.checks.add(feeds, hash_feeds(feeds))
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
        """The samples for the check of a case that are held out."""
        held = self.held.samples if self.held else []
        return [s for s in (check_sample(s, case, self.family) for s in held) if s is not None]

    def run(self, graph: Graph, batches: Sequence[Located], listeners: Sequence[Listener]) -> None:
        """Run some of these samples; what comes next finds the values of a few in ``runs``."""
        with self.lock:  # Several groups may run side by side.
            self.runs = self.runs or FloatRuns(graph)
        if self.runs.graph is graph:
            by_place = {sample.place: sample for sample in self.recent}
            self.runs.run([by_place.get(feeds.place, feeds) for feeds in batches], listeners)
        else:
            run_interpreter(graph, batches, listeners)

    def take_runs(self, graph: Graph) -> FloatRuns | None:
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
            return self.family.case_of(feeds) == case

        drawn = list(filter(fits, self.drawn_samples))
        first = list(filter(fits, self.first))
        return max(first, drawn[:MAX_SAMPLES], key=len), drawn or first

    def checking(self, case: Case) -> list[Feeds]:
        """The samples for the check of a case, those that lead to other late sizes included."""
        first = (check_sample(feeds, case, self.family) for feeds in self.first)
        return [feeds for feeds in first if feeds is not None]

    def deciding(self, case: Case, graph: Graph) -> tuple[list[Feeds], list[Feeds]]:
        """The samples of a case for the check, and those for all that is decided: also those that
        lead to other late sizes, and where they are few, of other shapes.
        """
        first, data = self.fitting(case)
        if case.late or len(data) < ENOUGH:
            data = [*data, *self.elsewhere(case, graph, 0 if len(data) >= ENOUGH else OTHER_CASES)]
        return first, data

    def elsewhere(self, case: Case, graph: Graph, most: int) -> list[Feeds]:
        """Samples of other sizes, with their graphs, that decide as ``case`` does and whose graphs
        are like its ``graph``; no more than memory has room for.

        They are of ``most`` other input shapes; late sizes may be any, as those of a sample are set
        into a graph that is there.
        """
        cases = [self.family.case_of(feeds) for feeds in self.drawn_samples]
        others = Counter(other for other in cases if other.values == case.values)
        left = MAX_NBYTES - others.pop(case, 0) * sample_nbytes(graph)
        near = [other for other, _ in others.most_common() if other.shapes == case.shapes]
        far = [other for other, _ in others.most_common() if other.shapes != case.shapes]
        fitting: list[Feeds] = []
        for other in (*near, *far[:most]):
            member = self.family.graph_at(other)
            if not are_alike(graph, member):
                continue
            member, nbytes = share_constants(member, graph), sample_nbytes(member)
            for feeds, its in zip(self.drawn_samples, cases, strict=True):
                if its == other and left > nbytes:
                    fitting.append(ShapeVariant(feeds, member))
                    left -= nbytes
        return fitting

    @property
    def drawn_samples(self) -> list[Feeds]:
        """The samples that are kept for accuracy recovery."""
        return self.drawn.samples if self.drawn else []


def check_sample(feeds: Feeds, case: Case, family: Family) -> Feeds | None:
    """A sample for the check of a case, with a graph of its own where it leads to other late sizes;
    None for one of other input shapes."""
    try:
        actual = family.case_of(feeds)
        if actual == case:
            return feeds
        if actual.late and replace(actual, late=case.late) == case:
            return ShapeVariant(feeds, family.graph_at(actual))
    except QuantglowError:
        pass  # It has shapes that the model does not take.
    return None


@dataclass
class HeldOut:
    """Splits a stream of samples.  ``waiting`` are the candidates, by digest: as many as could be
    held out of a longer stream.  Each is calibrated on later if others have lower digests.
    """

    capacity: int
    waiting: dict[bytes, list[Located]] = field(default_factory=dict)
    beyond: list[Located] = field(default_factory=list)
    digests: set[bytes] = field(default_factory=set)

    @staticmethod
    def fitting(feeds: Feeds) -> HeldOut:
        """With room for samples of this size."""
        nbytes = sum(array.nbytes for array in feeds.values())
        return HeldOut(min(HELD_OUT_SAMPLES, HELD_OUT_NBYTES // max(nbytes, 1)))

    @property
    def samples(self) -> list[Located]:
        """The samples that are held out, each once."""
        return [*self.beyond, *(copies[0] for copies in self.waiting.values())]

    def offer(self, feeds: Located) -> Iterator[Located]:
        """Take a sample in, and give those to calibrate on now."""
        digest = hash_feeds(feeds)
        if digest in self.waiting:
            self.waiting[digest].append(self.waiting[digest][0])
        elif digest in self.digests:
            yield feeds
        else:
            self.digests.add(digest)
            self.waiting[digest] = [feeds]
            yield from self._release(self.capacity)

    def end(self, beyond: Iterable[Located]) -> Iterator[Located]:
        """Give the rest to calibrate on; ``beyond``: samples that are not to be calibrated on."""
        for feeds in beyond:
            if (digest := hash_feeds(feeds)) not in self.digests:
                self.digests.add(digest)
                self.beyond.append(feeds)
        count = len(self.digests) // EVERY if len(self.digests) >= FEWEST_SAMPLES else 0
        yield from self._release(max(0, min(count, self.capacity) - len(self.beyond)))

    def _release(self, room: int) -> Iterator[Located]:
        """All but the ``room`` samples with the lowest digests, in the order of the data."""
        if len(self.waiting) <= room:
            return
        lowest = set(sorted(self.waiting)[:room])
        for copies in [self.waiting.pop(d) for d in list(self.waiting) if d not in lowest]:
            yield from copies
