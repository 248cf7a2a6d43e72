"""Accuracy control on models that are just their number of steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.errors import AccuracyDropError, OptionError
from quantglow.quantization.accuracy_control import Contract, Search

STEPS = [f"step{i}" for i in range(20)]


def search(needed: int, max_minutes: float | None = None, pause: float = 0.0) -> Search[int, str]:
    """Each step wins back one point; ``needed`` points were lost."""

    def build(names: Sequence[str]) -> int:
        time.sleep(pause)
        return len(names)

    contract = Contract[int](0.0, lambda kept: min(kept - needed, 0), max_minutes=max_minutes)
    return Search(contract, 0.0, lambda: STEPS, build)


@given(needed=st.integers(0, len(STEPS)))
def test_the_fewest_steps_are_taken(needed: int) -> None:
    assert search(needed).run().count == needed


@given(needed=st.integers(0, len(STEPS)))
def test_the_validation_function_is_called_seldom(needed: int) -> None:
    job = search(needed)
    job.run()
    assert len(job.trials) <= 10


def test_a_broken_contract_raises_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="every operator in float") as caught:
        search(len(STEPS) + 3).run()
    assert caught.value.best == len(STEPS)


def test_time_ends_the_search_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="time is up") as caught:
        search(len(STEPS), max_minutes=1e-4, pause=0.02).run()
    assert caught.value.best in range(len(STEPS))


def interrupted(needed: int, allowed: int) -> Search[int, str]:
    """A search that ends with Ctrl-C after ``allowed`` trials."""
    job = search(needed)
    build = job.build

    def once_more(steps: Sequence[str]) -> int:
        if len(job.trials) == allowed:
            raise KeyboardInterrupt
        return build(steps)

    job.build = once_more
    return job


def test_ctrl_c_keeps_the_best_that_satisfies_the_contract() -> None:
    assert interrupted(5, allowed=5).run().count == 8


def test_ctrl_c_before_that_raises_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="interrupted") as caught:
        interrupted(5, allowed=4).run()
    assert caught.value.best == 4


def test_ctrl_c_before_anything_was_tried_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(5, allowed=0).run()


def test_nothing_is_ranked_where_the_first_trial_satisfies_the_contract() -> None:
    job = search(0)
    job.rank = lambda: pytest.fail("ranked")
    assert not job.steps_of(job.run())


@pytest.mark.parametrize("wrong", [{"max_drop": -1.0}, {"drop_type": "none"}, {"max_minutes": 0.0}])
def test_wrong_options_are_refused(wrong: dict[str, float | str]) -> None:
    options = {"max_drop": 0.1, **wrong}
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Contract(metric=float, **options)  # type: ignore[arg-type]


def test_a_relative_drop_is_a_share_of_the_float_figure() -> None:
    contract = Contract[float](0.1, float, drop_type="relative")
    drops = [contract.drop(80.0, figure) for figure in (80.0, 72.0)]
    assert drops == [0.0, pytest.approx(0.1)]
    assert all(a <= b for a, b in itertools.pairwise(drops))
