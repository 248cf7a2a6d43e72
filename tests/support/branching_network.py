"""An ONNX network with branches, whose depth-first orders need more memory than its best one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import onnx

from tools.small_networks import Builder

CONVOLUTIONS, SEED = 14, 5
"""The arena of the best depth-first order is 1.96 times that of the best order."""


def branching_model(shape: Sequence[Any] = (1, 8, 12, 12)) -> onnx.ModelProto:
    """Pointwise convolutions of drawn widths and sources, many of them joined by Concat."""
    net, drawn = Builder(shape, 3), random.Random(SEED)
    values, read = [("x", 8)], set[str]()
    for _ in range(CONVOLUTIONS):
        sources = drawn.sample(values[-5:], min(len(values), drawn.choice([1, 1, 2, 3])))
        read.update(name for name, _ in sources)
        x, channels = joined(net, sources)
        width = drawn.choice([2, 4, 8, 16, 24])
        values.append((net.op("Relu", net.conv(x, channels, width, 1)), width))
    x, channels = joined(net, [value for value in values if value[0] not in read])
    return net.model(net.conv(x, channels, 4, 1))


def joined(net: Builder, sources: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """A Concat of values, and its channels."""
    names, widths = zip(*sources, strict=True)
    x = net.op("Concat", *names, axis=1) if len(names) > 1 else names[0]
    return x, sum(widths)
