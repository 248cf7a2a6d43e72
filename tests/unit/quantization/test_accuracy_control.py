"""Accuracy control on models that are just their number of steps."""

from __future__ import annotations

import gc
import itertools
import signal
import time
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.quantization.accuracy_control import (
    INTERRUPTED,
    LATE,
    MAX_OMISSIONS,
    AccuracySearch,
    Contract,
)
from quantglow.support.errors import AccuracyDropError, OptionError
from quantglow.support.processes.interrupts import Deadline, keeping_best

OVER = Deadline(0.0)
STEPS = [f"step{i}" for i in range(20)]


def search(
    needed: int, max_minutes: float | None = None, pause: float = 0.0
) -> AccuracySearch[int, str]:
    """Each step wins back one point; ``needed`` points were lost."""

    def build(names: Sequence[str]) -> int:
        time.sleep(pause)
        return len(names)

    contract = Contract[int](0.0, lambda kept: min(kept - needed, 0), max_minutes=max_minutes)
    return AccuracySearch(contract, 0.0, lambda _: STEPS, build)


@given(needed=st.integers(0, len(STEPS)))
def test_the_fewest_steps_are_taken(needed: int) -> None:
    assert search(needed).run().count == needed


@given(needed=st.integers(0, len(STEPS)))
def test_the_validation_function_is_called_seldom(needed: int) -> None:
    job = search(needed)
    job.run()
    assert len(job.trials) <= 10 + 2 * needed


def test_a_broken_contract_raises_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="every operator in float") as caught:
        search(len(STEPS) + 3).run()
    assert caught.value.best == len(STEPS)


def test_time_ends_the_search_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="time is up") as caught:
        search(len(STEPS), max_minutes=1e-4, pause=0.02).run()
    assert caught.value.best in range(len(STEPS))


def interrupted(needed: int, allowed: int) -> AccuracySearch[int, str]:
    """A search with Ctrl-C during the last of ``allowed`` trials."""
    job = search(needed)
    build = job.build

    def once_more(steps: Sequence[str]) -> int:
        if len(job.trials) == allowed - 1:
            signal.raise_signal(signal.SIGINT)
        return build(steps)

    job.build = once_more
    return job


def test_ctrl_c_keeps_the_best_that_satisfies_the_contract() -> None:
    with keeping_best():
        assert interrupted(5, allowed=5).run().count == 8


def test_ctrl_c_before_that_raises_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="interrupted") as caught, keeping_best():
        interrupted(5, allowed=4).run()
    assert caught.value.best == 4


def test_ctrl_c_without_the_handler_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(5, allowed=1).run()


def test_nothing_is_ranked_where_the_first_trial_satisfies_the_contract() -> None:
    job = search(0)
    job.rank = lambda _: pytest.fail("ranked")
    assert job.run().steps == ()


def weighted(gains: Sequence[int], needed: int) -> AccuracySearch[int, int]:
    """Step ``i`` wins back ``gains[i]`` points; ``needed`` points were lost."""
    contract = Contract[int](0.0, lambda won: min(won - needed, 0))
    return AccuracySearch(
        contract, 0.0, lambda _: range(len(gains)), lambda s: sum(gains[i] for i in s)
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=24), st.data())
def test_no_step_can_be_left_out(gains: list[int], data: st.DataObject) -> None:
    needed = data.draw(st.integers(0, sum(gains)))
    steps = weighted(gains, needed).run().steps
    assert sum(gains[i] for i in steps) >= needed
    assert all(sum(gains[i] for i in steps if i != out) < needed for out in steps)


def test_steps_before_the_one_that_decides_are_left_out() -> None:
    job = weighted([1] * 117 + [200], 200)
    assert job.run().steps == (117,)
    assert len(job.trials) < 40


def test_the_least_valuable_steps_are_left_out_first() -> None:
    assert weighted([2, 2, 2, 3], 7).run().steps == (0, 1, 3)


def test_no_model_is_made_twice() -> None:
    job = weighted([1, 0, 2, 0, 0, 3, 1, 0, 0, 4] * 4, 30)
    job.run()
    tried = [trial.steps for trial in job.trials]
    assert len(tried) == len(set(tried))


def test_leaving_out_ends_after_some_models() -> None:
    job = weighted([1] * 500, 499)
    assert job.run().count == 499
    assert len(job.trials) <= MAX_OMISSIONS + 20


def test_a_step_of_which_the_metric_does_not_tell_is_left_out() -> None:
    """Leaving one out may even help: the metric need not be monotone."""
    contract = Contract[frozenset[int]](0.0, lambda s: -float(5 not in s) - 0.1 * (2 in s))
    job = AccuracySearch(contract, -0.1, lambda _: range(8), frozenset)
    assert job.run().steps == (5,)


def test_ctrl_c_while_leaving_out_keeps_the_fewest_so_far() -> None:
    job = weighted([1] * 7 + [50], 50)
    build, built = job.build, list[Sequence[int]]()

    def once_more(steps: Sequence[int]) -> int:
        if 0 < len(steps) < 8 and 7 in steps:
            built.append(steps)
            signal.raise_signal(signal.SIGINT)
        return build(steps)

    job.build = once_more
    with keeping_best():
        assert job.run().steps == built[0]
    assert len(built) == 1
    assert job.cut_short == INTERRUPTED


def test_time_ends_leaving_out_with_the_fewest_so_far() -> None:
    job = weighted([1] * 7 + [50], 50)
    build = job.build

    def then_late(steps: Sequence[int]) -> int:
        job.deadline = OVER if len(steps) == 8 else job.deadline
        return build(steps)

    job.build = then_late
    assert job.run().count == 8
    assert job.cut_short == LATE


def test_time_that_ends_the_ranking_leaves_plain_int8() -> None:
    job = search(5)

    def late(deadline: Deadline) -> Sequence[str]:
        OVER.check()
        return STEPS

    job.rank = late
    with pytest.raises(AccuracyDropError, match="time is up") as caught:
        job.run()
    assert caught.value.best == 0


def test_the_ranking_knows_the_deadline() -> None:
    job, observed = search(5, max_minutes=60), list[Deadline]()

    def ranked(deadline: Deadline) -> Sequence[str]:
        observed.append(deadline)
        return STEPS

    job.rank = ranked
    job.run()
    assert 0 < observed[0].at - time.monotonic() < 3600
    assert not job.cut_short


def test_models_that_are_not_best_are_not_kept() -> None:
    recorded: list[weakref.ref[Kept]] = []

    def build(steps: Sequence[int]) -> Kept:
        recorded.append(weakref.ref(model := Kept(len(steps))))
        return model

    contract = Contract[Kept](0.0, lambda model: model.count - 99)
    with pytest.raises(AccuracyDropError) as caught:
        AccuracySearch(contract, 0.0, lambda _: range(20), build).run()
    gc.collect()
    assert [ref() for ref in recorded if ref() is not None] == [caught.value.best]


class Kept:
    """A model that tells whether it is still there."""

    def __init__(self, count: int) -> None:
        self.count = count


WRONG = [
    {"max_drop": -1.0},
    {"max_drop": "little"},
    {"drop_type": "none"},
    {"max_minutes": 0.0},
    {"max_minutes": "few"},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_options_are_refused(wrong: dict[str, float | str]) -> None:
    options = {"max_drop": 0.1, **wrong}
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Contract(metric=float, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), None, "good"])
def test_a_figure_must_be_a_finite_number(figure: object) -> None:
    contract = Contract[int](0.1, lambda kept: figure)  # type: ignore[arg-type, return-value]
    with pytest.raises(OptionError, match="validation_fn gave"):
        contract.figure(3)


def test_the_metric_must_be_a_function() -> None:
    with pytest.raises(OptionError, match="validation_fn must be a function"):
        Contract(0.1, 3)  # type: ignore[arg-type]


def test_a_relative_drop_is_a_share_of_the_float_figure() -> None:
    contract = Contract[float](0.1, float, drop_type="relative")
    drops = [contract.drop(80.0, figure) for figure in (80.0, 72.0)]
    assert drops == [0.0, pytest.approx(0.1)]
    assert all(a <= b for a, b in itertools.pairwise(drops))
