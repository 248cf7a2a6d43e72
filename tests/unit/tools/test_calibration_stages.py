"""Stages of a calibration: equal on one machine, and named where they differ."""

from __future__ import annotations

import pytest

from tools.calibration_stages import differences, stages


@pytest.mark.slow
def test_a_calibration_repeats_itself() -> None:
    first, second = dict(stages("mnist")), dict(stages("mnist"))
    assert first == second and len(first["values of a sample"]) > 3


def test_different_and_missing_entries_are_named() -> None:
    before, after = {"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}
    assert differences(before, after) == ["b: 2 | 3", "c: none | 4"]
