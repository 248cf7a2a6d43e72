"""Entries of the caches that saved models carry: what they hold is not compiled again.

Entries are named as those on disk are, by all that they depend on, so one that does not fit this
processor or this version is never asked for.  They are found as long as a model that brought them
is in use.  Whoever loads them trusts their file: they are run.
"""

from __future__ import annotations

from collections.abc import Mapping

from quantglow.alive import Alive

Data = bytes | memoryview


class Carried:
    """Entries of one file, by their names."""

    def __init__(self, entries: Mapping[str, Data]) -> None:
        self.entries = dict(entries)
        _carried.add(self)

    def drop(self, name: str) -> None:
        """Give an entry back that is kept elsewhere by now."""
        self.entries.pop(name, None)


_carried = Alive[Carried]()


def carried_entry(name: str) -> Data | None:
    """The entry of this name that a file brought, if there is one."""
    found = (each.entries.get(name) for each in _carried)
    return next((entry for entry in found if entry is not None), None)


def drop_carried(name: str) -> None:
    """Give back all entries of this name."""
    for each in _carried:
        each.drop(name)
