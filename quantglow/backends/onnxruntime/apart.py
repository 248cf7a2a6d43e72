"""A model run by onnxruntime in a process of its own, see ``quantglow.processes.isolation``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.backends.onnxruntime.session import Session
from quantglow.foreign_types import Array


def outputs(
    arrays: Sequence[Array],
    *,
    path: str | None,
    names: Sequence[str],
    optimize: bool,
    exact_sums: bool = True,
    wanted: Sequence[str] | None = None,
) -> list[Array]:
    """The ``wanted`` outputs of a model (None: all) for each sample in turn, one after the other.

    ``arrays``: the inputs of the samples likewise, each sample in the order of ``names``; first
    comes the model itself, as bytes, if there is no ``path``.
    """
    given = list(arrays)
    model = given.pop(0).tobytes() if path is None else path
    session = Session(model, optimize=optimize, exact_sums=exact_sums)
    found: list[Array] = []
    for start in range(0, len(given), len(names)):
        feeds = dict(zip(names, given[start : start + len(names)], strict=True))
        found += map(np.asarray, session.run(feeds, None if wanted is None else list(wanted)))
    return found
