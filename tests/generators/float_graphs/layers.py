"""Layers that extend a float network, each on a value and the values before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import (
    Abs,
    Add,
    Clip,
    Concat,
    Div,
    Gemm,
    HardSigmoid,
    HardSwish,
    LayerNormalization,
    LeakyRelu,
    Max,
    Mul,
    Pad,
    PRelu,
    Relu,
    Sigmoid,
    Slice,
    Softmax,
    Sub,
)
from tests.generators.values import LOWS
from tests.support.builder import Builder

Step = Callable[[Builder, Node, list[Node]], Node]
"""A step that adds one layer on the image x, given all values so far."""


def residual(b: Builder, x: Node, values: list[Node]) -> Node:
    """A sum of x and an earlier value of its shape."""
    same = [v for v in values if v.type == x.type]
    return b.make(Add, x=x, y=same[b.random.integers(len(same))])


def joined(b: Builder, x: Node, values: list[Node]) -> Node:
    """A concatenation of x and an earlier value of its size, channel by channel."""
    n, _, h, w = x.type.shape
    fit = [v for v in values if v.type.shape[0] == n and v.type.shape[2:] == (h, w)]
    return b.make(Concat, parts=(x, fit[b.random.integers(len(fit))]), axis=1)


def shuffled(b: Builder, x: Node, values: list[Node]) -> Node:
    """The channel shuffle."""
    n, c, h, w = x.type.shape
    g = 2 if c % 2 == 0 else 1
    split = b.transpose(b.reshape(x, n, g, c // g, h, w), 0, 2, 1, 3, 4)
    return b.reshape(split, n, c, h, w)


def squeeze_excite(b: Builder, x: Node, values: list[Node]) -> Node:
    c = x.type.shape[1]
    inner = b.make(Relu, x=b.conv(b.global_mean(x), 3))
    return b.make(Mul, x=x, y=b.make(HardSigmoid, x=b.conv(inner, c), alpha=1 / 6))


def squeeze_excite_gemm(b: Builder, x: Node, values: list[Node]) -> Node:
    n, c = x.type.shape[:2]
    inner = b.make(Relu, x=b.gemm(b.global_mean(x, keepdims=False), 3))
    gate = b.make(Sigmoid, x=b.gemm(inner, c))
    return b.make(Mul, x=b.reshape(gate, n, c, 1, 1), y=x)


def hard_swish(b: Builder, x: Node, values: list[Node]) -> Node:
    shifted = b.make(Add, x=x, y=b.constant(3.0))
    product = b.make(Mul, x=x, y=b.make(Clip, x=shifted, low=0.0, high=6.0))
    return b.make(Div, x=product, y=b.constant(6.0))


def scaled_hard_swish(b: Builder, x: Node, values: list[Node]) -> Node:
    """A learned scalar factor and offset behind it, as in PP-LCNetV3."""
    activated = b.make(HardSwish, x=b.conv(x, 4, kernel=3))
    return b.make(Add, x=b.make(Mul, x=activated, y=b.constant(1.3)), y=b.constant(-0.2))


def half(b: Builder, x: Node, values: list[Node]) -> Node:
    """The first channels."""
    n, c, h, w = x.type.shape
    return b.make(
        Slice, x=x, starts=(0, 0, 0, 0), sizes=(n, (c + 1) // 2, h, w), steps=(1, 1, 1, 1)
    )


def padded(b: Builder, x: Node, values: list[Node]) -> Node:
    return b.make(Pad, x=x, before=(0, 0, 1, 0), after=(0, 0, 0, 1))


def framed(b: Builder, x: Node, values: list[Node]) -> Node:
    """A frame of a mask's number before a maximum over windows, each of which reaches inside."""
    low = float(b.random.choice(LOWS))
    wide = b.make(Pad, x=x, before=(0, 0, 1, 1), after=(0, 0, 0, 0), value=low)
    return b.max_pool(wide)


def masked(b: Builder, x: Node, values: list[Node]) -> Node:
    """A mask of some columns, never the first, before a Softmax over the rest."""
    hidden = b.random.random(x.type.shape[-1]) < 0.4
    hidden[0] = False
    bias = b.constant(np.where(hidden, b.random.choice(LOWS), 0.5))
    return b.make(Softmax, x=b.make(Add, x=x, y=bias))


def swapped(b: Builder, x: Node, values: list[Node]) -> Node:
    """An exchange of H and W."""
    return b.transpose(x, 0, 1, 3, 2)


BOUNDS = ((-np.inf, np.inf), (0.0, np.inf), (0.0, 1.5), (-1.0, 1.0))
"""Bounds of layers that have taken a Relu or a Clip along."""


def bounded(b: Builder, x: Node, group: int = 1, **fields: Any) -> Node:
    """A convolution that keeps the channels and clips its results."""
    low, high = b.choose(*BOUNDS)
    c = b.channels(x)
    return b.conv(x, c, kernel=3, group=group, low=low, high=high, **fields)


def gated(b: Builder, x: Node, values: list[Node]) -> Node:
    """A product of x and a function of its means."""
    return b.make(Mul, x=x, y=b.make(HardSigmoid, x=b.global_mean(x)))


def normalized(b: Builder, x: Node, parameters: float = 1.0) -> Node:
    """A LayerNormalization, each of its parameters present with some probability."""
    gamma, beta = (b.random.random() < parameters for _ in range(2))
    fields = {"gamma": b.weights(x.type.shape[-1])} if gamma else {}
    fields |= {"beta": b.drawn(x.type.shape[-1])} if beta else {}
    return b.make(LayerNormalization, x=x, **fields)


def block(b: Builder, x: Node) -> Node:
    """A block of a transformer that normalizes its result, as in BERT; x is a matrix."""
    rows = b.reshape(x, *x.type.shape)
    w = b.weights(x.type.shape[1], x.type.shape[1])
    added = b.make(Add, x=b.make(Gemm, x=rows, w=w), y=x)
    return b.make(LayerNormalization, x=added, gamma=b.weights(x.type.shape[1]))


def per_channel(op: type[Node]) -> Step:
    return lambda b, x, _: b.make(op, x=x, y=b.drawn(1, x.type.shape[1], 1, 1, low=0.5))


STEPS: dict[str, Step] = {
    "conv": lambda b, x, _: b.conv(x, 4, kernel=3),
    "conv-strided": lambda b, x, _: b.conv(x, 2, kernel=3, strides=(2, 2)),
    "conv-valid": lambda b, x, _: b.conv(x, 4, kernel=1),
    "conv-depthwise": lambda b, x, _: b.conv(x, x.type.shape[1], kernel=3, group=x.type.shape[1]),
    "batch-norm": lambda b, x, _: b.batch_norm(x),
    "relu": lambda b, x, _: b.make(Relu, x=x),
    "relu6": lambda b, x, _: b.make(Clip, x=x, low=0.0, high=6.0),
    "leaky": lambda b, x, _: b.make(LeakyRelu, x=x, alpha=0.1),
    "prelu": lambda b, x, _: b.make(PRelu, x=x, slope=b.drawn(x.type.shape[1], 1, 1)),
    "max-scalar": lambda b, x, _: b.make(Max, x=x, y=b.constant(-0.5)),
    "abs": lambda b, x, _: b.make(Abs, x=x),
    "add": per_channel(Add),
    "sub": per_channel(Sub),
    "mul": per_channel(Mul),
    "div": per_channel(Div),
    "from": lambda b, x, _: b.make(Sub, x=b.constant([[[1.0]]]), y=x),
    "max-pool": lambda b, x, _: b.max_pool(x),
    "average-pool": lambda b, x, _: b.average_pool(x),
    "residual": residual,
    "concat": joined,
    "shuffle": shuffled,
    "squeeze-excite": squeeze_excite,
    "squeeze-excite-gemm": squeeze_excite_gemm,
    "hard-swish": hard_swish,
    "conv-hard-swish": lambda b, x, values: hard_swish(b, b.conv(x, 3, kernel=3), values),
    "scaled-hard-swish": scaled_hard_swish,
    "residual-leaky": lambda b, x, values: b.make(LeakyRelu, x=residual(b, x, values), alpha=0.2),
    "half": half,
    "pad": padded,
    "framed": framed,
    "masked": masked,
    "swap": swapped,
}
"""Layers of NCHW networks, as the importer writes them."""

FUSED_STEPS: dict[str, Step] = {
    "conv": lambda b, x, _: bounded(b, x),
    "depthwise": lambda b, x, _: bounded(b, x, b.channels(x)),
    "grouped": lambda b, x, _: bounded(b, x, 2),
    "residual": lambda b, x, _: bounded(b, x, residual=x),
    "relu": lambda b, x, _: b.make(Relu, x=x),
    "average-pool": lambda b, x, _: b.average_pool(x),
    "max-pool": lambda b, x, _: b.max_pool(x),
    "add": lambda b, x, _: b.make(Add, x=x, y=b.make(Relu, x=x)),
    "gate": gated,
    "hard-swish": lambda b, x, _: b.make(HardSwish, x=x),
}
"""Layers of NHWC networks, as the optimizer leaves them."""
