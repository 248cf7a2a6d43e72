"""Objects whose locks and threads are renewed in a forked child.

A child has none of its parent's threads: a lock that one of them held would stay locked, and work
that one of them did would never end.
"""

from __future__ import annotations

from typing import Protocol

from quantglow.alive import Alive
from quantglow.processes.system import at_fork


class HasThreads(Protocol):
    """An object that threads share."""

    def forget_threads(self) -> None:
        """Renew its locks, in a forked child, and forget what threads of the parent were doing."""


_known, _last = Alive[HasThreads](), Alive[HasThreads]()


def renewed_after_fork(item: HasThreads, *, last: bool = False) -> None:
    """Call ``item.forget_threads()`` in each forked child, as long as the object is in use.

    ``last``: after all others, because it calls functions of users, which may use these.
    """
    (_last if last else _known).add(item)


def _forget_threads() -> None:
    for items in (_known, _last):
        for item in items:
            item.forget_threads()


at_fork(child=_forget_threads)
