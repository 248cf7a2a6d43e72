"""Samples with their places and labels, and the tensors of other libraries as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.foreign_types import Array, array_of_tensor, is_torch_tensor

Feeds = dict[str, Array]

LABELS = ("labels", "label")
"""Names under which a sample has its labels, beside its inputs."""


class Located(Feeds):
    """Feeds, and their ``place`` in the user's data: "sample 3", or "row 2 of 'rows.csv'"."""

    def __init__(self, feeds: Mapping[str, Any], place: str) -> None:
        super().__init__(feeds)
        self.place = place


@dataclass(frozen=True)
class Unnamed:
    """A sample without names, its ``place``, and its labels."""

    values: Any
    place: str
    labels: Any = None


def as_array(value: Any) -> Array:
    """An array of what has ``__array__`` or ``numpy()``, as tensors do, or of nested lists.

    Raises ``ValueError`` and ``TypeError``, such as for ragged lists.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("it is masked, and hidden values would count; give its filled(number)")
    if isinstance(value, np.ndarray):
        return value
    if is_torch_tensor(value):
        return array_of_tensor(value)
    if hasattr(value, "numpy") and not hasattr(value, "__array__"):
        value = value.numpy()
    return np.asarray(value)


def without_labels(sample: Any, names: Sequence[str]) -> tuple[Any, Any]:
    """A sample without its labels, and these; None if it has none.

    Labels are an entry ``LABELS`` of a dict that is no input, or integers behind the arrays of all
    inputs in a tuple or list, as a DataLoader gives them.
    """
    if isinstance(sample, Unnamed):
        return sample, sample.labels
    if isinstance(sample, Mapping):
        found = next((n for n in LABELS if n in sample and n not in names), None)
        if found is None:
            return sample, None
        rest = {name: value for name, value in sample.items() if name != found}
        own = Located(rest, sample.place) if isinstance(sample, Located) else rest
        return own, sample[found]
    is_longer = isinstance(sample, tuple | list) and len(sample) == len(names) + 1
    return (sample[:-1], sample[-1]) if is_longer and are_labels(sample[-1]) else (sample, None)


def are_labels(value: Any) -> bool:
    """Whether a value is one integer, or a vector of them."""
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return array.dtype.kind in "iu" and array.ndim <= 1
