"""The interface of all runtimes under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray

from benchmarks.networks.network import Feeds, Network, with_input_shape
from tools.downloads.model_cache import cached, content_key

PRECISIONS = ("float", "int8")


def outputs_of(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]]:
    """All outputs of a session whose outputs are arrays."""
    results: list[Any] = list(session.run(None, dict(feeds)))
    return results


@dataclass(frozen=True)
class Runtime:
    """A model prepared by one runtime; ``run`` takes feeds and returns the outputs in order.

    ``compile_seconds`` is the part of preparation that compiling took, if it is known.  ``save``
    writes the model to a file that ``quantglow.load`` reads; None if the runtime cannot.
    """

    name: str
    run: Callable[[Feeds], list[NDArray[Any]]]
    compile_seconds: float = 0.0
    save: Callable[[Path], object] | None = None


Maker = Callable[[Network, int, int, int], Runtime]
"""(network, threads, batch, calibration samples) -> Runtime."""


def shaped(network: Network, batch: int) -> Path:
    """The ONNX file with a fixed input shape, which every runtime can specialise to."""
    source = network.path(batch)
    model = onnx.load(source)
    fixed = with_input_shape(model, network.input_shape(batch))
    if fixed is model:
        return source
    name = f"{network.name}-b{batch}-{content_key(source)}.onnx"
    return cached(name, lambda path: onnx.save(fixed, path))
