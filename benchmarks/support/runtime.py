"""What every runtime under test has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from benchmarks.networks.network import Feeds, Network, with_input_shape
from tools.downloads.model_cache import cached, content_key

PRECISIONS = ("float", "int8")


@dataclass(frozen=True)
class Runtime:
    """A model made ready by one runtime; ``run`` takes feeds and returns the outputs in order.

    ``compile_seconds``: of the time to make it ready, what compiling took, where that is known.
    ``save`` writes the model to a file that ``quantglow.load`` reads; None: it cannot.
    """

    name: str
    run: Callable[[Feeds], list[NDArray[Any]]]
    compile_seconds: float = 0.0
    save: Callable[[Path], object] | None = None


Maker = Callable[[Network, int, int, int], Runtime]
"""(network, threads, batch, calibration samples) -> Runtime."""


def shaped(network: Network, batch: int) -> Path:
    """The ONNX file with a fixed input shape, which lets every runtime specialise to it."""
    source = network.path(batch)
    model = onnx.load(source)
    fixed = with_input_shape(model, network.input_shape(batch))
    if fixed is model:
        return source
    name = f"{network.name}-b{batch}-{content_key(source)}.onnx"
    return cached(name, lambda path: onnx.save(fixed, path))
