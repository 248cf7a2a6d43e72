"""How long a search may take (``max_minutes``)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


class TimeUp(Exception):
    """There is no time left: what was found so far counts.  It never reaches the user."""


@dataclass(frozen=True)
class Deadline:
    """A moment of ``time.monotonic``, in seconds."""

    at: float = math.inf

    @staticmethod
    def after(minutes: float | None) -> Deadline:
        """So many minutes from now; None: as long as it takes."""
        return NEVER if minutes is None else Deadline(time.monotonic() + 60 * minutes)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.at

    @property
    def halfway(self) -> Deadline:
        """When half of the time that is left will have passed."""
        now = time.monotonic()
        return Deadline(now + (self.at - now) / 2)

    def check(self) -> None:
        """Raise ``TimeUp`` if it is."""
        if self.is_over:
            raise TimeUp


NEVER = Deadline()
