"""Laws of equalization on drawn networks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import interpret
from quantglow.ops import (
    Add,
    AveragePool,
    Conv,
    Gemm,
    HardSigmoid,
    HardSwish,
    LayerNormalization,
    MaxPool,
    Mul,
    ReduceMean,
    Relu,
    Reshape,
)
from quantglow.options import EQUALIZATIONS
from quantglow.profiling.data import Feeds
from quantglow.quantization.equalize.channel_groups import channel_groups
from quantglow.quantization.equalize.equalization import factors_of, rescaled
from quantglow.quantization.smoothing_scales import (
    SUFFIX,
    is_smoothing_scale,
    with_scaled_names,
    with_smoothing_scales,
)
from tests.unit.quantization.quantization_networks import (
    constant,
    graph_of,
    image,
    reach_of,
    samples_for,
)

BOUNDS = ((-math.inf, math.inf), (0.0, math.inf), (0.0, 1.5), (-1.0, 1.0))
STEPS = ("conv", "depthwise", "grouped", "residual", "relu", "pool", "max", "add", "gate", "swish")


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Up to eight operators of all kinds, which factors may pass or not, and a head of Gemms."""
    rng = Weights(draw(st.integers(0, 2**32 - 1)), draw(st.booleans()))
    channels = 4
    x = image(channels, 4)
    node: Node = convolved("first", x, rng, 1, BOUNDS[0])
    for index, step in enumerate(draw(st.lists(st.sampled_from(STEPS), max_size=8))):
        node = following(step, f"n{index}", node, rng, draw(st.sampled_from(BOUNDS)))
    mean = ReduceMean(name="mean", x=node, axes=(1, 2), keepdims=True)
    flat: Node = Reshape(name="flat", x=mean, shape=(1, channels))
    if draw(st.booleans()):
        gamma = rng.made("gamma", spread(rng, channels)) if draw(st.booleans()) else None
        beta = rng.made("beta", rng.normal(size=channels)) if draw(st.booleans()) else None
        flat = LayerNormalization(name="norm", x=flat, gamma=gamma, beta=beta)
        for number in range(draw(st.integers(0, 3))):
            flat = normalized_after_addition(flat, rng, number)
    first = Gemm(name="fc", x=flat, w=rng.made("fc_w", rng.normal(size=(channels, 6))), low=0.0)
    last = Gemm(name="out", x=first, w=rng.made("out_w", rng.normal(size=(6, 3))))
    return graph_of(last, inputs=(x,))


class Weights(np.random.Generator):
    """Random numbers and Constants of them.

    With ``shared``, layers whose Constants have one shape read the same one, as layers of one
    initializer do, and so do layers of equal parameters.
    """

    def __init__(self, seed: int, shared: bool) -> None:
        super().__init__(np.random.PCG64(seed))
        self.shared = shared
        self.known: dict[tuple[int, ...], Constant] = {}

    def made(self, name: str, value: object) -> Constant:
        """A Constant with this value, or an existing one."""
        new = constant(name, value)
        return self.known.setdefault(new.type.shape, new) if self.shared else new


def normalized_after_addition(x: Node, rng: Weights, number: int) -> Node:
    """A block of a transformer that normalizes its result, as in BERT."""
    w = rng.made(f"block{number}_w", rng.normal(size=(4, 4)))
    rows = Reshape(name=f"rows{number}", x=x, shape=x.type.shape)
    added = Add(name=f"added{number}", x=Gemm(name=f"block{number}", x=rows, w=w), y=x)
    gamma = rng.made(f"gamma{number}", spread(rng, 4))
    return LayerNormalization(name=f"norm{number}", x=added, gamma=gamma)


def equalized(graph: Graph, data: list[Feeds]) -> Graph:
    whole = with_smoothing_scales(graph)
    reach = with_scaled_names(reach_of(graph, data))
    return rescaled(graph, factors_of(whole, reach, EQUALIZATIONS))


def rounding_noise(graph: Graph, feeds: Feeds, wanted: np.ndarray) -> float:
    """Change of the result if each constant changes by a step or two of float32."""
    rng = np.random.default_rng(0)

    def moved(node: Node) -> Node:
        if not isinstance(node, Constant):
            return node
        steps = np.float32(2.0**-22) * rng.choice((-1, 1), node.value.shape)
        return dataclasses.replace(node, value=(node.value * (1 + steps)).astype(np.float32))

    (found,) = interpret(graph.rebuild(moved), feeds)
    return float(np.abs(found - wanted).max())


def spread(rng: np.random.Generator, count: int) -> object:
    """Numbers over three decades of magnitude."""
    return 10.0 ** rng.uniform(-2, 1, count)


def convolved(
    name: str,
    x: Node,
    rng: Weights,
    group: int,
    bounds: tuple[float, float],
    residual: Node | None = None,
) -> Node:
    channels = x.type.shape[3]
    w = rng.normal(size=(3, 3, channels // group, channels)) * spread(rng, channels) / 3
    b = rng.made(f"{name}_b", rng.normal(size=channels))
    low, high = bounds
    options = {"group": group, "low": low, "high": high, "residual": residual}
    return Conv(name=name, x=x, w=rng.made(f"{name}_w", w), b=b, pads=(1, 1, 1, 1), **options)


def following(step: str, name: str, x: Node, rng: Weights, bounds: tuple[float, float]) -> Node:
    groups = {"conv": 1, "depthwise": x.type.shape[3], "grouped": 2, "residual": 1}
    if step in groups:
        residual = x if step == "residual" else None
        return convolved(name, x, rng, groups[step], bounds, residual)
    if step == "gate":
        mean = ReduceMean(name=f"{name}_mean", x=x, axes=(1, 2), keepdims=True)
        return Mul(name=name, x=x, y=HardSigmoid(name=f"{name}_gate", x=mean))
    if step == "add":
        return Add(name=name, x=x, y=Relu(name=f"{name}_relu", x=x))
    window = {"kernel": (3, 3), "pads": (1, 1, 1, 1)}
    if step in ("pool", "max"):
        return (AveragePool if step == "pool" else MaxPool)(name=name, x=x, **window)
    return (Relu if step == "relu" else HardSwish)(name=name, x=x)


@given(networks())
def test_equalization_keeps_the_function(graph: Graph) -> None:
    data = samples_for(graph, 3)
    found = equalized(graph, data)
    for feeds in data:
        (wanted,), (got,) = interpret(graph, feeds), interpret(found, feeds)
        # If large terms cancel, float32 itself is less exact.
        least = 30 * rounding_noise(graph, feeds, wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max() + least)


@given(networks())
def test_equalization_keeps_names_and_types(graph: Graph) -> None:
    data = samples_for(graph, 2)
    found = equalized(graph, data)
    found.verify()
    values = {n.name: n.type for n in graph.nodes if not isinstance(n, Constant)}
    kept = [n for n in found.nodes if not isinstance(n, Constant) and not is_smoothing_scale(n)]
    assert {n.name: n.type for n in kept} == values


@given(networks())
def test_a_normalized_value_that_is_added_gets_a_tap(graph: Graph) -> None:
    data = samples_for(graph, 2)
    taps = {node.name for node in equalized(graph, data).nodes if is_smoothing_scale(node)}
    added = [node for node in graph.nodes if node.name.startswith("added")]
    assert taps == {f"{node.y.name}{SUFFIX}" for node in added}


@given(networks())
def test_taps_are_made_once_and_only_where_they_are_named(graph: Graph) -> None:
    whole = with_smoothing_scales(graph)
    assert str(with_smoothing_scales(whole)) == str(whole)
    assert with_smoothing_scales(graph, ()) is graph
    names = [node.name for node in whole.nodes if is_smoothing_scale(node)]
    assert str(with_smoothing_scales(graph, names)) == str(whole)


@given(networks())
def test_every_value_is_in_one_group_at_most(graph: Graph) -> None:
    names = [node.name for group in channel_groups(graph) for node in group]
    assert len(names) == len(set(names))
