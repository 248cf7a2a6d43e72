"""Objects that threads share are renewed in a forked child, as long as they are in use."""

from __future__ import annotations

import gc
import threading
import weakref

from quantglow.support.processes.threads import ForkSafeLock, renew_after_fork
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


def test_a_lock_that_another_thread_held_is_free_in_the_child() -> None:
    lock, ready, done = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        assert exit_code_of_child(lambda: is_free(lock)) == 0
        assert not is_free(lock)
    finally:
        done.set()
        thread.join()
    assert is_free(lock)


def test_a_thread_that_forks_may_hold_the_lock() -> None:
    lock = ForkSafeLock()
    with lock:
        assert exit_code_of_child(lambda: is_free(lock)) == 0
        assert not is_free(lock)
    assert is_free(lock)


def test_the_child_leaves_the_block_of_the_lock() -> None:
    lock = ForkSafeLock()

    def leave() -> bool:
        with lock:
            lock.forget_threads()  # as a fork inside of the block does in the child
        return is_free(lock)

    assert leave()


def is_free(lock: ForkSafeLock) -> bool:
    """Whether a thread gets the lock at once."""
    answers = list[bool]()

    def take() -> None:
        with lock:
            answers.append(True)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(0.5)
    return bool(answers)
