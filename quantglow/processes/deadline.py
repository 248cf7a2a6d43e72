"""The deadline of a search: when ``max_minutes`` are over, or at Ctrl-C."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from quantglow.processes.interrupts import ended, is_first, is_interrupted, say

INTERRUPTED, LATE = "Ctrl-C", "max_minutes"

BEST_KEPT = "the best found until then is kept"


class TimeUp(Exception):
    """No time is left: the best result so far counts.  This never reaches the user."""


@dataclass(frozen=True)
class Deadline:
    """A moment of ``time.monotonic``, in seconds; Ctrl-C comes before it."""

    at: float = math.inf

    @staticmethod
    def after(minutes: float | None) -> Deadline:
        """The deadline that many minutes from now; None: there is none."""
        return NEVER if minutes is None else Deadline(time.monotonic() + 60 * minutes)

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return is_interrupted() or time.monotonic() >= self.at

    @property
    def reason(self) -> str:
        """The cause that ended the time; empty as long as some is left."""
        if is_interrupted():
            return INTERRUPTED
        return LATE if self.is_over else ""

    @property
    def minutes_left(self) -> float | None:
        """The time that a search which follows may take; None: any."""
        return None if self.at == math.inf else max(self.at - time.monotonic(), 0.0) / 60

    @property
    def halfway(self) -> Deadline:
        """The deadline after half of the time that is left."""
        return self.part(0.5)

    def part(self, share: float) -> Deadline:
        """The deadline after a share of the time that is left."""
        now = time.monotonic()
        return Deadline(now + share * (self.at - now))

    def check(self) -> None:
        """Raise ``TimeUp`` if there is no time left."""
        if self.is_over:
            raise TimeUp

    def note(self, stage: str, kept: str = BEST_KEPT) -> str:
        """A note that ``stage`` is cut short, if no time is left; empty if there is some."""
        if not (reason := self.reason):
            return ""
        if is_first(stage) and reason == LATE:  # Ctrl-C was answered when it came.
            say(f"{LATE} are over: keeping the best so far ({stage})")
        return f"{reason} ended {stage} early: {kept}"

    def ends(self, stage: str) -> bool:
        """Whether no time is left; if so, the report will say that ``stage`` was cut short."""
        if note := self.note(stage):
            ended(stage, note)
        return bool(note)


NEVER = Deadline()
