"""Objects that are known for as long as somebody else uses them."""

from __future__ import annotations

import gc
import weakref

from quantglow.support.processes.threads import FEW, Alive


class Thing:
    """An object that others may use."""


def test_objects_are_known_while_they_are_used() -> None:
    known, used = Alive[Thing](), [Thing() for _ in range(3)]
    for thing in used:
        known.add(thing)
    assert list(known) == used
    del used[1], thing
    gc.collect()
    assert list(known) == used and used[0] in known and Thing() not in known
    known.clear()
    assert not list(known)


def test_references_to_dead_objects_are_few() -> None:
    known, kept = Alive[Thing](), Thing()
    known.add(kept)
    before = references()
    for _ in range(20 * FEW):
        known.add(Thing())
    assert references() <= before + 2 * FEW
    assert list(known) == [kept]


def references() -> int:
    return sum(isinstance(value, weakref.ref) for value in gc.get_objects())


def test_code_does_not_run_where_an_object_dies() -> None:
    known, thing = Alive[Thing](), Thing()
    known.add(thing)
    (reference,) = weakref.getweakrefs(thing)
    assert reference.__callback__ is None and list(known) == [thing]
