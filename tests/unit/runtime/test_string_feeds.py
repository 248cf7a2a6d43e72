"""Models that take strings are fed as onnxruntime is, and calibrated on lists or arrays of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.profiling.samples.feeds import hash_feeds
from quantglow.support.errors import CalibrationError, InputError
from tests.support.late_models import VOCABULARY, LateModel, words_first

WORDS = ["The", *(word.title() for word in VOCABULARY[:5]), "Of", "A"]


@cache
def words() -> LateModel:
    return words_first()


@cache
def compiled() -> qg.CompiledModel:
    model = qg.compile(words().model)
    assert isinstance(model, qg.CompiledModel)
    return model


@pytest.mark.parametrize("feed", [WORDS, np.array(WORDS), np.array(WORDS, object)], ids=type)
def test_strings_may_be_lists_and_arrays_of_either_kind(feed: Any) -> None:
    expected = compiled().run(None, {"words": np.array(WORDS, object)})
    for one, other in zip(compiled().run(None, {"words": feed}), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_types_of_inputs_are_named_as_onnxruntime_does() -> None:
    assert [info.type for info in compiled().get_inputs()] == ["tensor(string)"]


def test_numbers_in_the_place_of_strings_are_refused() -> None:
    with pytest.raises(InputError, match="give an array of strings"):
        compiled().run(None, {"words": np.arange(8)})


@pytest.mark.parametrize("kind", [list, np.array])
def test_samples_may_be_lists_and_arrays(kind: Any) -> None:
    samples = [{"words": kind(feeds["words"].tolist())} for feeds in words().samples(3)]
    model = qg.quantize_and_compile(words().model, samples, progress=False, effort="fast")
    assert isinstance(model, qg.CompiledModel)
    assert model.report.int8_share is not None and model.report.int8_share.share > 0.9


def test_numbers_are_no_samples_of_strings() -> None:
    with pytest.raises(CalibrationError, match="give an array of strings"):
        qg.quantize_and_compile(words().model, [{"words": np.arange(8)}], progress=False)


def test_equal_texts_alone_have_equal_hashes() -> None:
    texts = [["ab", "c"], ["a", "bc"], ["ab", "d"], ["abc", ""]]
    hashes = {hash_feeds({"words": np.array(each, object)}) for each in (*texts, *texts)}
    assert len(hashes) == len(texts)


def test_latency_is_measured_on_strings() -> None:
    model = qg.quantize_and_compile(
        words().model, words().samples(3), progress=False, effort="fast", measure_latency=True
    )
    assert not any("latency" in note for note in model.report.notes)
