"""Independent work on several threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from quantglow.ir.ops.windows import Images, conv2d
from quantglow.support.processes import workers
from quantglow.support.processes.workers import at_once, each, later, side_by_side
from tests.unit.forking import exit_code_of_child


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    with threadpool_limits(count, user_api="blas"):
        yield


def threads_of_blas() -> set[int]:
    return {
        lib["num_threads"] for lib in ThreadpoolController().info() if lib["user_api"] == "blas"
    }


def thread_of(_: int) -> str:
    return threading.current_thread().name


def test_blas_has_one_thread_inside_and_its_own_again_behind() -> None:
    with blas_threads(2):
        with side_by_side(), side_by_side():
            assert threads_of_blas() == {1}
        assert threads_of_blas() == {2}


class AnyThreadsBlas:
    """BLAS whose number of threads every thread may set for all, as MKL; two limits meet in it."""

    def __init__(self) -> None:
        self.threads, self.limited = 2, list[str]()
        self.limiting, self.one_left = threading.Lock(), threading.Event()
        self.both = threading.Barrier(2)

    def select(self, user_api: str) -> AnyThreadsBlas:
        return self

    def info(self) -> list[dict[str, int]]:
        return [{"num_threads": self.threads}]

    @contextmanager
    def limit(self, limits: int) -> Iterator[None]:
        with suppress(threading.BrokenBarrierError):
            self.both.wait(0.5)
        with self.limiting:
            before, self.threads = self.threads, limits
            self.limited.append(thread_of(0))
        yield
        self.threads = before


def test_blas_has_its_own_threads_again_behind_blocks_that_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blas, both_inside = AnyThreadsBlas(), threading.Barrier(2, timeout=30)

    def overlapping() -> None:
        with side_by_side():
            both_inside.wait()
            if blas.limited[0] != thread_of(0):
                assert blas.one_left.wait(30)
        blas.one_left.set()

    monkeypatch.setattr(workers, "ThreadpoolController", lambda: blas)
    threads = [threading.Thread(target=overlapping) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert blas.threads == 2


def test_two_items_are_worked_on_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)
    with blas_threads(2), side_by_side():
        names = each(lambda item: (both.wait(), thread_of(item))[1], range(2))
    assert len(set(names)) == 2


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_results_are_in_the_order_of_the_items(threads: int, count: int) -> None:
    with blas_threads(threads), side_by_side():
        assert each(lambda item: item * item, range(count)) == [i * i for i in range(count)]


def test_without_side_by_side_or_with_one_thread_the_caller_does_all() -> None:
    assert set(each(thread_of, range(9))) == {threading.current_thread().name}
    with blas_threads(1), side_by_side():
        assert set(each(thread_of, range(9))) == {threading.current_thread().name}
        assert later(thread_of, 0)() == threading.current_thread().name


def test_the_error_is_that_of_the_first_item_that_has_one() -> None:
    def fail(item: int) -> int:
        if item > 2:
            raise ValueError(f"item {item}")
        return item

    for _ in range(50):
        with blas_threads(2), side_by_side(), pytest.raises(ValueError, match="item 3"):
            each(fail, range(20))


def test_nobody_waits_for_a_helper_that_never_began() -> None:
    held, began = threading.Event(), threading.Event()

    def hold(_: int) -> bool:
        began.set()
        return held.wait(30)

    with blas_threads(2), side_by_side():
        busy = later(hold, 0)
        assert began.wait(30)
        assert each(abs, [-1, -2, -3]) == [1, 2, 3]
        assert not held.is_set()
        held.set()
        assert busy()


def test_an_interrupt_ends_the_work() -> None:
    done: list[int] = []

    def interrupted(item: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        done.append(item)

    with blas_threads(2), side_by_side(), pytest.raises(KeyboardInterrupt):
        each(interrupted, range(10**6))
    assert len(done) < 10**6


def test_an_item_that_has_items_of_its_own_works_alone() -> None:
    def nested(item: int) -> bool:
        here = thread_of(item)
        return set(each(thread_of, range(5))) == {here}

    with blas_threads(2), side_by_side():
        assert all(each(nested, range(20)))
        assert later(nested, 0)()


def test_threads_see_the_error_state_of_their_caller() -> None:
    with blas_threads(2), side_by_side(), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = each(lambda item: np.float32(item) / np.zeros(3, np.float32), range(40))
    assert np.isnan(actual[0]).all() and np.isinf(actual[1:]).all()


def test_a_deferred_result_is_there_when_it_is_asked_for() -> None:
    with blas_threads(2), side_by_side():
        waiting = [later(lambda item: item + 1, item) for item in range(20)]
        assert [result() for result in waiting] == list(range(1, 21))
        with pytest.raises(ZeroDivisionError):
            later(lambda item: 1 // item, 0)()
    assert later(lambda _: threading.get_ident(), None)() == threading.get_ident()


@pytest.mark.parametrize("group", [1, 4, 64])
def test_a_convolution_in_parts_does_not_depend_on_the_threads(group: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 58, 58, 64)).astype(np.float32)
    w = rng.standard_normal((3, 3, 64 // group, 64)).astype(np.float32)
    collected = []
    for threads in (1, 2, 3):
        with blas_threads(threads), side_by_side():
            collected.append(conv2d(Images.of(x), w, (1, 1), (1, 1), group))
    assert all(np.array_equal(collected[0], other) for other in collected[1:])
    exact = conv2d(Images.of(x.astype(np.float64)), w.astype(np.float64), (1, 1), (1, 1), group)
    np.testing.assert_allclose(collected[0], exact, rtol=0, atol=1e-3)


def test_as_much_is_done_at_once_as_blas_had_threads() -> None:
    with blas_threads(3):
        assert at_once() == 1
        with side_by_side():
            assert at_once() == 3
            assert each(lambda _: at_once(), range(4)) == [1] * 4
        assert at_once() == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_inside_works_alone() -> None:
    with blas_threads(2), side_by_side():
        assert at_once() == 2
        each(thread_of, range(9))
        assert exit_code_of_child(lambda: each(abs, range(9)) == list(range(9))) == 0
        assert exit_code_of_child(lambda: (at_once(), later(abs, -3)()) == (1, 3)) == 0
