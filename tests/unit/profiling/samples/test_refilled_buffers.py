"""Iterators may fill one array again for each sample; wrong samples keep their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.api.compare import SampleSplit
from quantglow.api.models.families import open_float_family
from quantglow.api.pipeline.calibration import Validation
from quantglow.profiling.samples.feeds import read_feeds
from quantglow.quantization.quantizer import draw_samples
from tests.support.free_network import free_model
from tests.support.small_network import SHAPE, small_model, small_samples

SAMPLES = small_samples(8)
MODEL = small_model()
FAMILY = open_float_family(MODEL)


class Reader:
    """A CalibrationDataReader that fills one array again and again."""

    def __init__(self, samples: list[np.ndarray]) -> None:
        self.samples = refilled(samples)

    def get_next(self) -> Any:
        return next(self.samples, None)


def refilled(samples: list[np.ndarray]) -> Iterator[np.ndarray]:
    """The samples, each in the same array."""
    buffer = np.empty_like(samples[0])
    for sample in samples:
        buffer[...] = sample
        yield buffer


def plain(data: Any) -> list[Any]:
    """Feeds as lists of numbers."""
    return [{name: array.tolist() for name, array in feeds.items()} for feeds in data]


READS: dict[str, Callable[[Any], Any]] = {
    "feeds": lambda data: plain(list(read_feeds(data, FAMILY.signature))),
    "profile": lambda data: qg.profile(MODEL, data),
    "recovery": lambda data: plain(draw_samples(data, FAMILY.default or FAMILY.at({"x": SHAPE}))),
    "validation": lambda data: plain(Validation.of(data, FAMILY.signature).samples),
    "split": lambda data: [
        plain(part)
        for part in (lambda s: (s.calibration, s.checked))(SampleSplit.of(data, FAMILY, 9, 0))
    ],
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("inputs", [refilled, Reader])
def test_a_refilled_array_gives_what_a_list_gives(name: str, inputs: Callable[[Any], Any]) -> None:
    assert READS[name](inputs(SAMPLES)) == READS[name](SAMPLES)


def test_refilled_labels_give_what_a_list_gives() -> None:
    def labeled() -> Iterator[Any]:
        label = np.zeros(1, np.int64)
        for index, sample in enumerate(refilled(SAMPLES)):
            label[0] = index % 3
            yield sample, label

    expected = [(sample, np.array([index % 3])) for index, sample in enumerate(SAMPLES)]
    actual, listed = (Validation.of(data, FAMILY.signature) for data in (labeled(), expected))
    assert plain(actual.samples) == plain(listed.samples)
    assert actual.labels is not None and listed.labels is not None
    assert list(map(list, actual.labels)) == list(map(list, listed.labels))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("inputs", [iter, Reader, list])
def test_a_wrong_sample_keeps_its_place(place: int, inputs: Callable[[Any], Any]) -> None:
    samples = [np.ones((1, 3, 4, 4), np.float32) for _ in range(3)]
    samples[place] = samples[place] * np.float32("nan")
    for read in (qg.profile, qg.quantize_and_compile):
        with pytest.raises(qg.CalibrationError, match=f"sample {place} has 48 NaN"):
            read(free_model(), inputs(samples))


@pytest.mark.parametrize("labels", [[[1, 2], [3]], "one", [0.5], [], [1, 2, 3]])
def test_labels_that_are_no_classes_are_refused(labels: Any) -> None:
    with pytest.raises(qg.CalibrationError, match="the labels of sample 0"):
        Validation.of([{"x": np.stack(SAMPLES[:2])[:, 0], "labels": labels}], FAMILY.signature)
