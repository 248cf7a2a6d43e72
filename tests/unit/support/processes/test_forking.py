"""Objects that threads share are renewed in a forked child, as long as they are in use."""

from __future__ import annotations

import gc
import weakref

from quantglow.support.processes.threads import renew_after_fork
from tests.unit.forking import exit_code_of_child

renewed: list[str] = []


class Shared:
    """An object that notes its renewal."""

    def __init__(self, name: str, last: bool = False) -> None:
        self.name = name
        renew_after_fork(self, last=last)

    def forget_threads(self) -> None:
        renewed.append(self.name)


def test_the_last_ones_are_renewed_after_all_others() -> None:
    items = [Shared("queue", last=True), Shared("model"), Shared("state")]
    assert exit_code_of_child(lambda: renewed == ["model", "state", "queue"]) == 0
    assert (len(items), renewed) == (3, [])


def test_they_are_kept_by_nobody() -> None:
    item = Shared("unused")
    known = weakref.ref(item)
    del item
    gc.collect()
    assert known() is None
    assert exit_code_of_child(lambda: "unused" not in renewed) == 0
