"""Weights of inputs that are 0 in all samples, far larger than those of the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.profiling import profile
from quantglow.quantization.quantizer import quantize
from quantglow.quantization.rounding import layerwise
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    samples_for,
    sqnr,
)

DEAD = [1, 4, 7]


def network(ratio: float, kernel: int = 1, group: int = 1) -> Graph:
    """Conv -> Relu -> Conv.  Weights that read the dead channels are so many times larger."""
    x = image(8, 6)
    first = conv("first", x, 8, low=0.0)
    assert first.b is not None
    bias = np.where(np.isin(np.arange(8), DEAD), -100.0, first.b.evaluate())
    first = replace(first, b=constant("first_b", bias))
    last = conv("last", first, 4, kernel=kernel)
    w = last.w.evaluate()[:, :, : 8 // group].copy()
    for channel in DEAD:
        part, row = divmod(channel, 8 // group)
        w[:, :, row, part * 4 // group : (part + 1) * 4 // group] *= ratio
    return graph_of(replace(last, w=constant("last_w", w), group=group), inputs=(x,))


def quantized_graph(graph: Graph) -> Graph:
    data = samples_for(graph, 12)
    return quantize(graph, profile(graph, data, progress=False), data=data)


@pytest.mark.parametrize(("kernel", "group"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_they_leave_the_others_their_steps(kernel: int, group: int) -> None:
    graph = network(1e4, kernel, group)
    assert sqnr(graph, quantized_graph(graph)) > 30


def test_they_keep_the_largest_integers() -> None:
    int8 = quantized_graph(network(1e4))
    (weights,) = (n for n in int8.nodes if isinstance(n, Constant) and n.name == "last:w:q")
    integers = np.abs(weights.evaluate()[0, 0].astype(int))
    live = [channel for channel in range(8) if channel not in DEAD]
    assert integers[live].max() > 100
    assert integers[DEAD].max() <= 127


def test_weights_of_usual_size_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(8.0)
    actual = quantized_graph(graph)
    monkeypatch.setattr(layerwise, "limit_dead_inputs", lambda layer: layer)
    assert str(actual) == str(quantized_graph(graph))
