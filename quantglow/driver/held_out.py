"""Samples held out of calibration, on which the result is checked.

Samples beyond ``subset_size`` are never calibrated on.  Where they are fewer than one in
``EVERY``, others join them: those whose contents have the lowest digests, so that neither the order
of the data nor its batches matter.  A sample that occurs twice is held out with all its copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from quantglow.profiling.data import Feeds, Located
from quantglow.report.accuracy.headline import EVERY, FEWEST_SAMPLES

HELD_OUT_SAMPLES, HELD_OUT_NBYTES = 60, 2**28
"""Maximum number of samples held out: one in ``EVERY`` of the default subset; and their size."""


@dataclass
class HeldOut:
    """Splits a stream of samples.  ``waiting`` are the candidates, by digest: as many as could be
    held out of a longer stream.  Each is calibrated on later if others have lower digests.
    """

    capacity: int
    waiting: dict[bytes, list[Located]] = field(default_factory=dict)
    beyond: list[Located] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)

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
        digest = digest_of(feeds)
        if digest in self.waiting:
            self.waiting[digest].append(self.waiting[digest][0])
        elif digest in self.seen:
            yield feeds
        else:
            self.seen.add(digest)
            self.waiting[digest] = [feeds]
            yield from self._released(self.capacity)

    def end(self, beyond: Iterable[Located]) -> Iterator[Located]:
        """Give the rest to calibrate on; ``beyond``: samples that are not to be calibrated on."""
        for feeds in beyond:
            if (digest := digest_of(feeds)) not in self.seen:
                self.seen.add(digest)
                self.beyond.append(feeds)
        wanted = len(self.seen) // EVERY if len(self.seen) >= FEWEST_SAMPLES else 0
        yield from self._released(max(0, min(wanted, self.capacity) - len(self.beyond)))

    def _released(self, room: int) -> Iterator[Located]:
        """All but the ``room`` samples with the lowest digests, in the order of the data."""
        if len(self.waiting) <= room:
            return
        kept = set(sorted(self.waiting)[:room])
        for copies in [self.waiting.pop(d) for d in list(self.waiting) if d not in kept]:
            yield from copies


def digest_of(feeds: Feeds) -> bytes:
    """A digest of names, types and contents."""
    found = hashlib.blake2b(b"held out", digest_size=16)
    for name, array in sorted(feeds.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return found.digest()
