"""Samples held out of calibration: the same in every order, batch split and form of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.api.pipeline.samples import EVERY, FEWEST_SAMPLES, HeldOut, hash_feeds
from quantglow.evaluation.accuracy import SAME, UNSEEN, VALIDATION
from quantglow.profiling.samples.feeds import Located
from tests.support.free_network import free_model
from tests.support.small_network import small_model, small_samples

FAST: dict[str, Any] = {"progress": False, "num_threads": 1, "calibrate_method": "minmax"}


def located(values: Sequence[int]) -> list[Located]:
    return [Located({"x": np.int64([value])}, f"sample {i}") for i, value in enumerate(values)]


def split(
    values: Sequence[int], subset: int = 1000, capacity: int = 60
) -> tuple[Counter[int], set[int]]:
    """Values that are calibrated on, and those that are held out."""
    held, samples = HeldOut(capacity), iter(located(values))
    used = Counter[int]()
    for feeds in [next(samples) for _ in range(min(subset, len(values)))]:
        used.update(int(item["x"][0]) for item in held.offer(feeds))
    used.update(int(item["x"][0]) for item in held.end(list(samples)[:capacity]))
    return used, {int(item["x"][0]) for item in held.samples}


@given(st.lists(st.integers(0, 60), max_size=80), st.randoms(), st.integers(1, 60))
def test_the_split_depends_on_the_contents_alone(
    values: list[int], random: Any, capacity: int
) -> None:
    used, held = split(values, capacity=capacity)
    mixed = list(values)
    random.shuffle(mixed)
    assert split(mixed, capacity=capacity) == (used, held)
    assert not used.keys() & held
    distinct = len(set(values))
    expected = distinct // EVERY if distinct >= FEWEST_SAMPLES else 0
    assert len(held) == min(expected, capacity)
    assert used == Counter(value for value in values if value not in held)


@given(st.integers(1, 90), st.integers(1, 60))
def test_samples_beyond_the_subset_come_first(count: int, subset: int) -> None:
    used, held = split(range(count), subset, capacity=10)
    beyond = set(range(subset, min(count, subset + 10)))
    assert beyond <= held
    assert used.keys() == set(range(min(count, subset))) - held
    total = min(count, subset + 10)
    share = total // EVERY if total >= FEWEST_SAMPLES else 0
    assert len(held) == max(len(beyond), min(share, 10))


def forms() -> dict[str, Any]:
    data = small_samples(20)

    class Reader:
        def __init__(self) -> None:
            self.remaining: Iterator[Any] = iter(data)

        def get_next(self) -> Any:
            first = next(self.remaining, None)
            return None if first is None else {"x": first}

    return {
        "list": data,
        "generator": iter(data),
        "backwards": data[::-1],
        "one array": np.concatenate(data),
        "uneven": [np.concatenate(data[:3]), data[3], np.concatenate(data[4:])],
        "reader": Reader(),
    }


@pytest.mark.slow
def test_every_form_and_order_gives_the_same_model() -> None:
    built = {name: qg.quantize_and_compile(small_model(), d, **FAST) for name, d in forms().items()}
    graphs = {str(model.profile.histograms["x"]) for model in built.values()}
    checks = {(m.report.samples, m.report.origin, m.report.outputs) for m in built.values()}
    assert len(graphs) == 1
    assert len({(samples, origin) for samples, origin, _ in checks}) == 1
    assert next(iter(checks))[:2] == (4, UNSEEN)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("count", "subset", "calibrated", "checked", "origin"),
    [(9, 300, 9, 8, SAME), (10, 300, 8, 2, UNSEEN), (20, 8, 8, 12, UNSEEN), (5, 4, 4, 1, UNSEEN)],
)
def test_the_report_says_what_was_checked_on(
    count: int, subset: int, calibrated: int, checked: int, origin: str
) -> None:
    compiled = qg.quantize_and_compile(
        small_model(), small_samples(count), subset_size=subset, **FAST
    )
    report = compiled.report
    assert (compiled.profile.samples, report.samples, report.origin) == (
        calibrated,
        checked,
        origin,
    )
    assert origin in report.headline
    assert f"sample(s) {origin}" in next(report.tables()).title


def test_without_a_check_all_samples_are_calibrated_on() -> None:
    compiled = qg.quantize_and_compile(small_model(), small_samples(20), verify=False, **FAST)
    assert compiled.profile.samples == 20


@pytest.mark.slow
def test_a_stream_is_read_as_far_as_the_check_needs() -> None:
    samples = iter(small_samples(200))
    qg.quantize_and_compile(small_model(), samples, subset_size=5, **FAST)
    assert len(list(samples)) == 200 - 5 - 60


@pytest.mark.slow
def test_samples_of_other_shapes_are_not_checked_on() -> None:
    rng = np.random.default_rng(0)
    shapes = [(1, 3, 8, 8)] * 30 + [(1, 3, 8, 16)] * 2
    data = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    compiled = qg.quantize_and_compile(free_model(), data, **FAST)
    assert compiled.report.origin == UNSEEN
    assert 4 <= compiled.report.samples <= 6


def test_repeated_samples_are_held_out_with_their_copies() -> None:
    held = HeldOut(60)
    twice = located([*range(20)]) + located([*range(20)])
    used = [item for feeds in twice for item in held.offer(feeds)]
    used += held.end([])
    assert not {hash_feeds(item) for item in used} & {hash_feeds(item) for item in held.samples}


LABELS = np.arange(12) % 3


def validation(**arrays: Any) -> dict[str, Any]:
    return {"x": np.concatenate(small_samples(12, seed=5)), **arrays}


@pytest.mark.slow
def test_labels_give_the_right_answers_of_both() -> None:
    compiled = qg.quantize_and_compile(
        small_model(), small_samples(), validation_data=validation(labels=LABELS), **FAST
    )
    results = [compiled.run(None, {"x": x})[0].argmax() for x in small_samples(12, seed=5)]
    right = compiled.report.right
    assert right.labels == 12
    assert right.int8_share == np.mean(np.array(results) == LABELS)
    assert f"int8 {right.int8_share:.2%}" in str(compiled.report)
    assert compiled.report.origin == VALIDATION
    assert qg.Report.from_json(compiled.report.to_json()) == compiled.report


@pytest.mark.slow
def test_labels_may_come_with_each_sample() -> None:
    each = [
        {"x": x, "labels": label}
        for x, label in zip(small_samples(12, seed=5), LABELS, strict=True)
    ]
    one, other = (
        qg.quantize_and_compile(small_model(), small_samples(), validation_data=data, **FAST)
        for data in (iter(each), validation(labels=LABELS))
    )
    assert one.report.right == other.report.right
    assert one.report.outputs == other.report.outputs


@pytest.mark.slow
def test_validation_data_without_labels_is_checked_on() -> None:
    compiled = qg.quantize_and_compile(
        small_model(), small_samples(20), validation_data=small_samples(5, seed=9), **FAST
    )
    assert (compiled.profile.samples, compiled.report.samples) == (20, 5)
    assert compiled.report.right is None


@pytest.mark.slow
def test_validation_data_serves_a_profile() -> None:
    profile = qg.profile(small_model(), small_samples())
    compiled = qg.quantize_and_compile(small_model(), profile, validation_data=validation(), **FAST)
    assert compiled.report.samples == 12


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (validation(labels=LABELS[:5]), "labels of sample 0 of validation_data"),
        (validation(labels=LABELS / 2), "float64"),
        (validation(labels=LABELS + 1), "sample 2 of validation_data has the label 3"),
        (
            validation(labels=LABELS - 1),
            "the label -1, but output 'scores' has scores of 3",
        ),
        (validation(labels=np.ones((12, 2), int)), "one row of class scores"),
        (
            [{"x": x, **({"labels": 1} if i else {})} for i, x in enumerate(small_samples())],
            "sample 0 of validation_data has no 'labels'",
        ),
        ([], "no samples"),
        (validation(other=LABELS), "has inputs"),
    ],
)
def test_wrong_labels_are_refused(data: Any, message: str) -> None:
    with pytest.raises(qg.CalibrationError, match=message):
        qg.quantize_and_compile(small_model(), small_samples(), validation_data=data, **FAST)
