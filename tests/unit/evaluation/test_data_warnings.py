"""Warnings about calibration data: they come where it is wrong, and not where it is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import quantglow as qg
from quantglow.api.import_model import open_float_graph
from quantglow.api.pipeline.samples import hash_feeds
from quantglow.cli.demo import EXAMPLES, Example, mnist
from quantglow.evaluation.accuracy import UNSEEN, OutputAccuracy
from quantglow.evaluation.sample_checks import SampleChecks, unlike_training
from quantglow.report.accuracy import closeness, headline
from quantglow.support.arrays import Array

BYTES: dict[str, Callable[[Array], Array]] = {
    "image": lambda x: x * 255,
    "x": lambda x: (x * 0.5 + 0.5) * 255,
}
"""The inputs of the embedded networks as they were before preprocessing."""


def first_layers(example: Example, change: Callable[[Array], Array]) -> list[str]:
    shape = (1, *example.calibration.shape[1:])
    graph = qg.import_model(example.model, {example.input_name: shape})
    samples = [{example.input_name: change(x[None])} for x in example.calibration[:8]]
    return unlike_training(graph, samples)


def warnings_about(images: Array) -> list[str]:
    checks = SampleChecks()
    for image in images:
        feeds = {"x": image, "mask": np.float32(1)}
        checks.add(feeds, hash_feeds(feeds))
    return checks.warnings()


@pytest.mark.parametrize("make", EXAMPLES)
def test_right_data_gives_no_warning(make: Callable[[], Example]) -> None:
    example = make()
    assert not first_layers(example, lambda x: x)
    assert not warnings_about(example.calibration[:50])


@pytest.mark.parametrize("make", EXAMPLES)
def test_bytes_that_were_not_scaled_give_a_warning(make: Callable[[], Example]) -> None:
    example = make()
    (warning,) = first_layers(example, BYTES[example.input_name])
    assert "unlike those of training" in warning


def test_inputs_divided_twice_give_a_warning() -> None:
    assert first_layers(mnist(), lambda x: x / 255)


def test_a_model_without_statistics_gives_no_warning() -> None:
    example = mnist()
    graph = qg.import_model(example.model)
    folded = open_float_graph(graph)
    samples = [{example.input_name: 255 * example.calibration[:1]}]
    assert not unlike_training(folded, samples)


IMAGES = np.random.default_rng(0).random((40, 2, 2)).astype(np.float32)
ODD: dict[str, tuple[Array, str]] = {
    "constant": (np.broadcast_to(IMAGES[:, :1, :1], (40, 2, 2)), "40 of 40 samples are constant"),
    "repeated": (IMAGES[np.arange(40) % 12], "only 12 of 40 samples are different"),
    "few": (IMAGES[:9], "9 different sample"),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_samples_give_a_warning(case: str) -> None:
    images, message = ODD[case]
    (warning,) = warnings_about(images)
    assert warning.startswith(message)


def test_a_few_constant_or_repeated_samples_are_normal() -> None:
    images = IMAGES.copy()
    images[:3] = 0.5
    assert not warnings_about(images)


def test_the_headline_says_how_close_int8_is() -> None:
    outputs = [OutputAccuracy("y", 48.04, 1.0, 0.1, 1.0), OutputAccuracy("z", 50.0, 1.0, 0.1)]
    text = headline(outputs, 40, UNSEEN, None, False)
    assert text == (
        "int8 is very close to float: 48.0 dB, 100.0% equal answers on 40 sample(s) that "
        "calibration did not see."
    )
    assert headline(outputs, 40, UNSEEN, None, True).endswith("But see the warnings.")


@pytest.mark.parametrize(
    ("sqnr_db", "agreement", "words"),
    [(48, 1.0, "very close"), (48, 0.98, "close"), (25, 1.0, "visibly off"), (9, 1.0, "far from")],
)
def test_the_words_follow_the_worse_of_both(sqnr_db: float, agreement: float, words: str) -> None:
    assert closeness(sqnr_db, agreement).startswith(words)


def test_constant_images_do_not_flatter() -> None:
    example = mnist()
    images = np.full_like(example.calibration[:12], 0.5)
    report = qg.quantize_and_compile(example.model, images, progress=False, num_threads=1).report
    assert report.headline.endswith(
        "used, too (none is held out of fewer than 10 different ones). But see the warnings."
    )
    assert "Warning: 12 of 12 samples are constant" in str(report)
    assert "<p>Warning: 12 of 12" in report._repr_html_()
