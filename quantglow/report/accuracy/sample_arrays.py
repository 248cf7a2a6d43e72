"""Samples as a plain list of arrays, for child processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quantglow.foreign_types import Array


def arrays_of(samples: Sequence[Mapping[str, Array]], names: Sequence[str]) -> list[Array]:
    """The arrays of each sample in turn, in the order of ``names``."""
    return [np.asarray(feeds[name]) for feeds in samples for name in names]


def feeds_from(arrays: Sequence[Array], names: Sequence[str]) -> list[dict[str, Array]]:
    """The samples of which ``arrays_of`` made a list."""
    starts = range(0, len(arrays), len(names))
    return [dict(zip(names, arrays[s : s + len(names)], strict=True)) for s in starts]
