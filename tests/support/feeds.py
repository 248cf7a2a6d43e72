"""Random values for the inputs of a graph."""

from __future__ import annotations

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array


def feeds_of(graph: Graph, seed: int = 0, spread: float = 1.0) -> dict[str, Array]:
    """Values for every input: floats are normal, times ``spread``; one integer in five is an
    extreme of its type.
    """
    random = np.random.default_rng(seed)
    return {node.name: values_of(node.type, random, spread) for node in graph.inputs}


def values_of(kind: TensorType, random: np.random.Generator, spread: float = 1.0) -> Array:
    """Random values of one type."""
    if kind.dtype.is_float:
        return (random.standard_normal(kind.shape) * spread).astype(np.float32)
    if kind.dtype is DType.BOOL:
        return np.asarray(random.random(kind.shape) < 0.5)
    low, high = kind.dtype.limits
    drawn = random.integers(low, high, kind.shape, endpoint=True)
    extremes = random.choice([low, high], kind.shape)
    return np.where(random.random(kind.shape) < 0.2, extremes, drawn).astype(kind.dtype.numpy)
