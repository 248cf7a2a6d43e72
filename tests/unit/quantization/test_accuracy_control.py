"""Accuracy control on models that are just their number of float layers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.errors import AccuracyDropError, OptionError
from quantglow.quantization.accuracy_control import Contract, Search

LAYERS = [f"layer{i}" for i in range(20)]


def search(needed: int, max_minutes: float | None = None, pause: float = 0.0) -> Search[int]:
    """Each layer in float wins back one point; ``needed`` points were lost."""

    def build(names: Sequence[str]) -> int:
        time.sleep(pause)
        return len(names)

    contract = Contract[int](0.0, lambda kept: min(kept - needed, 0), max_minutes=max_minutes)
    return Search(contract, 0.0, LAYERS, build)


@given(needed=st.integers(0, len(LAYERS)))
def test_the_fewest_float_layers_are_kept(needed: int) -> None:
    assert search(needed).run().kept == needed


@given(needed=st.integers(0, len(LAYERS)))
def test_the_validation_function_is_called_seldom(needed: int) -> None:
    job = search(needed)
    job.run()
    assert len(job.trials) <= 10


def test_a_broken_contract_raises_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="every layer in float") as caught:
        search(len(LAYERS) + 3).run()
    assert caught.value.best == len(LAYERS)


def test_time_ends_the_search_with_the_best_model() -> None:
    with pytest.raises(AccuracyDropError, match="time is up") as caught:
        search(len(LAYERS), max_minutes=1e-4, pause=0.02).run()
    assert caught.value.best in range(len(LAYERS))


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
