"""Float results of samples, computed by onnxruntime in a child process.

onnxruntime is foreign code with a graph optimizer that has crashed on valid models; in a child it
ends that child only.  Samples go there as a plain list of arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from quantglow.support.arrays import Array
from quantglow.support.processes.isolation import ChildDied, call_isolated, start

PLACE = "quantglow.ort.session:outputs"
"""Name of the function that the child calls."""

MAX_SECONDS = 300.0
"""Time limit of a child, in seconds."""

Outputs = list[list[Array]]
"""All outputs of each sample, in order."""

Answer = Callable[[], tuple[Outputs, tuple[str, ...]]]
"""Function that waits for the outputs; its notes tell of an unusual way to compute them."""


@contextmanager
def running(
    model: Any, samples: Sequence[Mapping[str, Array]], output_names: Sequence[str] | None = None
) -> Iterator[Answer]:
    """Let onnxruntime compute the samples while the block runs, and later if the result is wanted.

    The model is a path, bytes or ModelProto; ``_output_names`` are names of its outputs (None:
    all). Asking for the result raises ``IsolationError``.
    """
    path, first = _locate_model(model)
    names = list(samples[0])
    arrays = [*first, *flatten_samples(samples, names)]
    facts = {"path": path, "names": names, "optimize": True, "output_names": output_names}
    with start(PLACE, arrays, facts, seconds=MAX_SECONDS) as call:

        def answer() -> tuple[Outputs, tuple[str, ...]]:
            try:
                return group_outputs(call.result(), len(samples)), ()
            except ChildDied as error:
                plain = {**facts, "optimize": False}
                results = call_isolated(PLACE, arrays, plain, seconds=MAX_SECONDS)
                note = f"onnxruntime ran without its graph optimizations: with them {error}"
                return group_outputs(results, len(samples)), (note,)

        yield answer


def _locate_model(model: Any) -> tuple[str | None, list[Array]]:
    """A model as a path (weights may lie beside the file), or as an array of its bytes."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model), []
    is_proto = hasattr(model, "SerializeToString")
    content = model.SerializeToString() if is_proto else model
    return None, [np.frombuffer(content, np.uint8)]


def group_outputs(arrays: Sequence[Array], samples: int) -> Outputs:
    """The outputs by sample."""
    count = len(arrays) // samples
    return [list(arrays[i * count : (i + 1) * count]) for i in range(samples)]


def flatten_samples(samples: Sequence[Mapping[str, Array]], names: Sequence[str]) -> list[Array]:
    """The arrays of each sample in turn, in the order of ``names``."""
    return [np.asarray(feeds[name]) for feeds in samples for name in names]


def feeds_from(arrays: Sequence[Array], names: Sequence[str]) -> list[dict[str, Array]]:
    """The samples of which ``arrays_of`` made a list."""
    starts = range(0, len(arrays), len(names))
    return [dict(zip(names, arrays[s : s + len(names)], strict=True)) for s in starts]
