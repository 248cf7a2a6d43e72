"""Attention and its operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import FLOAT, Drawing, Value
from tests.generators.onnx_models.operators.family import draws


@draws("Attention", often=3)
def attention(d: Drawing) -> object:
    if d.chance(0.4):
        return of_rows(d)
    q = d.floats(4)
    batch, heads, steps, width = q.shape
    shared = d.choose([h for h in range(1, heads + 1) if heads % h == 0])
    keys = d.integer(1, 7)
    k = d.normal(batch, shared, keys, width)
    v = d.normal(batch, shared, keys, d.integer(1, 5))
    if d.chance(0.4):
        k = v = q
        shared, keys = heads, steps
    return d.node("Attention", q, k, v, mask(d, steps, keys), **options(d))


def of_rows(d: Drawing) -> object:
    """Heads side by side in rows of three-dimensional operands."""
    x = d.floats(3)
    heads = d.choose([h for h in (1, 2, 3, 4) if x.shape[2] % h == 0])
    counts = {"q_num_heads": heads, "kv_num_heads": heads}
    same = [v for v in d.values if v.element == FLOAT and v.shape == x.shape]
    operands = (x, d.choose(same), d.choose(same))
    return d.node("Attention", *operands, mask(d, x.shape[1], x.shape[1]), **counts, **options(d))


def mask(d: Drawing, steps: int, keys: int) -> Value | None:
    """A mask of the keys for each query, which always include its own."""
    if d.chance(0.5):
        return None
    if d.chance(0.5):
        return d.normal(steps, keys)
    observed = d.rng.random((steps, keys)) < 0.7
    observed[:, 0] = True
    return d.constant(observed)


def options(d: Drawing) -> dict[str, Any]:
    return d.some({"is_causal": (0, 1), "scale": (0.5, 0.25), "softcap": (0.0, 2.0)})


@draws("RotaryEmbedding", often=2)
def rotary(d: Drawing) -> object:
    x = d.floats(3, 4)
    if x.shape[-1] % 2:
        x = d.inner("Concat", x, x, axis=-1)
    inputs: dict[str, Any] = d.some({"interleaved": (0, 1)})
    if x.rank == 4:
        batch, _, steps, width = x.shape
    else:
        batch, steps, hidden = x.shape
        inputs["num_heads"] = d.choose([h for h in range(1, hidden) if hidden % (2 * h) == 0])
        width = hidden // inputs["num_heads"]
    turned = d.choose(range(2, width + 1, 2))
    if turned != width:
        inputs["rotary_embedding_dim"] = turned
    angles, positions = turning(d, (batch, steps), turned // 2)
    tables = [d.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    return d.node("RotaryEmbedding", x, *tables, *positions, **inputs)


def turning(d: Drawing, places: tuple[int, int], half: int) -> tuple[Any, tuple[Value, ...]]:
    """Angles for each place, or a table of angles with row numbers."""
    if d.chance(0.5):
        return d.rng.normal(0, 1, (*places, half)), ()
    rows = d.integer(1, 20)
    return d.rng.normal(0, 1, (rows, half)), (d.constant(d.rng.integers(0, rows, places)),)
