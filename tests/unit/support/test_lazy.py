"""Attributes computed on first use."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from quantglow.support.classes import cached_property

SECONDS = 60


@dataclass(frozen=True)
class Square:
    side: int
    computed: list[int] = field(default_factory=list)
    proceed: threading.Event | None = None

    @cached_property
    def area(self) -> list[int]:
        """The side times itself."""
        self.computed.append(self.side)
        if self.proceed is not None:
            assert self.proceed.wait(SECONDS)
        return [self.side**2]


def test_a_value_is_computed_once() -> None:
    square = Square(3)
    assert square.area is square.area
    assert (square.area, square.computed) == ([9], [3])


def test_another_object_does_not_wait() -> None:
    slow = Square(2, proceed=threading.Event())
    thread = threading.Thread(target=lambda: slow.area)
    thread.start()
    assert Square(5).area == [25]
    assert slow.proceed is not None
    slow.proceed.set()
    thread.join()


def test_threads_that_compute_at_once_get_the_same_value() -> None:
    square = Square(2, proceed=threading.Event())
    collected: list[list[int]] = []
    threads = [threading.Thread(target=lambda: collected.append(square.area)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert square.proceed is not None
    square.proceed.set()
    for thread in threads:
        thread.join()
    assert len({id(value) for value in collected}) == 1


def test_the_class_has_the_description() -> None:
    assert Square.area.__doc__ == "The side times itself."
