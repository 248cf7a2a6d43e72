"""Objects that are known for as long as somebody else uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

Item = TypeVar("Item")

FEW = 64
"""Number of references that are kept without a look at which are dead."""


class Alive(Generic[Item]):
    """A set of weak references.  Thread-safe.

    A ``WeakSet`` runs Python code where an object dies.  Python drops an exception there, so that a
    Ctrl-C that comes just then would be lost.
    """

    def __init__(self) -> None:
        self._known: dict[int, ref[Item]] = {}
        self._room = FEW

    def add(self, item: Item) -> None:
        """Know an object."""
        found = ref(item)
        self._known[id(found)] = found
        if len(self._known) > self._room:
            for key, each in list(self._known.items()):
                if each() is None:
                    self._known.pop(key, None)
            self._room = max(FEW, 2 * len(self._known))

    def __iter__(self) -> Iterator[Item]:
        """The objects that are alive, in the order in which they came."""
        for each in list(self._known.values()):
            if (item := each()) is not None:
                yield item

    def clear(self) -> None:
        """Forget all objects."""
        self._known.clear()
