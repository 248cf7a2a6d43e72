"""Drawn int8 networks of functions, and samples with special values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from quantglow.runtime.compiled import CompiledModel
from quantglow.support.arrays import Array
from tools.microcontroller_networks import Network, quantized
from tools.small_networks import Builder

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-39, 3e38, -3e38, 2.0**31, 1e9, 0.5, -0.5)
SPECIAL_SHARE = 0.3
CALIBRATION = 4
GATES = {"LSTM": 4, "GRU": 3}


WIDTH = 16
"""Columns of the product before a function."""


def recurrent(kind: str, net: Builder, x: str) -> str:
    """A recurrence over the first axis."""
    weights = [net.normal(1, GATES[kind] * WIDTH, WIDTH, deviation=WIDTH**-0.5) for _ in "wr"]
    return net.op(kind, x, *weights, hidden_size=WIDTH)


def power(net: Builder, x: str) -> str:
    exponent = float(net.rng.choice([0.5, 2, 2.2, 3]))
    return net.op("Pow", net.op("Abs", x), net.constant(exponent))


def mean(net: Builder, x: str) -> str:
    return net.op("ReduceMean", x, net.constant([int(net.rng.integers(2))], np.int64))


def normalization(net: Builder, x: str) -> str:
    return net.op("LayerNormalization", x, net.normal(WIDTH), net.normal(WIDTH))


PLAIN = ("Sigmoid", "Erf", "Tanh", "Softplus", "Mish", "Elu", "HardSwish", "Gelu", "Exp", "Softmax")
FUNCTIONS: dict[str, Callable[[Builder, str], str]] = {
    **{name: partial(lambda kind, net, x: net.op(kind, x), name) for name in PLAIN},
    **{kind: partial(recurrent, kind) for kind in GATES},
    "Gelu (tanh)": lambda net, x: net.op("Gelu", x, approximate="tanh"),
    "LayerNormalization": normalization,
    "Pow": power,
    "ReduceMean": mean,
}


def drawn(name: str, seed: int) -> tuple[CompiledModel, Array]:
    """A network that computes a function between two products, and a sample."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers((2, 1, 3), (5, 3, 70)))
    net = Builder(shape, seed)
    x = FUNCTIONS[name](net, net.linear("x", shape[-1], WIDTH))
    model = net.model(net.linear(x, WIDTH, int(rng.integers(1, 20))))
    scale = 10.0 ** rng.uniform(-0.5, 1)
    usual = [rng.normal(0, scale, shape).astype(np.float32) for _ in range(CALIBRATION + 1)]
    compiled = quantized(Network(model, [{"x": each} for each in usual[1:]]))
    special = rng.choice(np.array(SPECIAL, np.float32), shape)
    return compiled, np.where(rng.random(shape) < SPECIAL_SHARE, special, usual[0])
