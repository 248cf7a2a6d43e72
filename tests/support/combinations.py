"""Combinations of parameters: a few run by default, all of them with the slow tests."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import pytest


def mark_slow(values: Iterable[Any], quick: Container[Any]) -> list[Any]:
    """All values; all are slow but the quick ones."""
    return [pytest.param(v, marks=() if v in quick else pytest.mark.slow) for v in values]


def covering(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of the axes; all are slow but a few that have each value at least once."""
    longest = max(map(len, axes))
    quick = {tuple(k % len(axis) for axis in axes) for k in range(longest)}
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, chosen, strict=True)),
            marks=() if chosen in quick else pytest.mark.slow,
        )
        for chosen in itertools.product(*map(range, map(len, axes)))
    ]
