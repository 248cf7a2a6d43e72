"""Hypothesis: networks with free dimensions, of three families."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.generators.onnx_models.drawing import Value
from tests.generators.onnx_models.network_drawing import Network, NetworkDrawing, Shape, drawing
from tests.generators.onnx_models.networks import GATES
from tests.generators.onnx_models.transformers import Transformer
from tests.generators.values import LOWS

WIDTH, WORDS, HIDDEN, EMBEDDING = 32, 40, 40, 24


def images(*shapes: Shape) -> tuple[tuple[Shape, ...], ...]:
    """Shapes [N, H, W] as those of the only input."""
    return tuple(((n, 3, h, w),) for n, h, w in shapes)


@st.composite
def image_networks(draw: st.DrawFn) -> Network:
    """An inverted bottleneck with a linear residual stream, normalized bytes as input."""
    d = drawing(draw(st.integers(0, 999)))
    x = d.free_input((1, 3, 8, 8), ("N", 3, "H", "W"))
    x = d.inner("Conv", x, d.filters(16, 3, 3, 3), pads=[1] * 4)
    shared = d.filled(0, 16)
    for _ in range(draw(st.integers(1, 2))):
        wide = d.inner("Conv", x, d.filters(32, 16, 1, 1), d.filled(0, 32))
        wide = d.inner(draw(st.sampled_from(["Relu", "HardSwish"])), wide)
        wide = d.inner("Conv", wide, d.filters(32, 1, 3, 3), pads=[1] * 4, group=32)
        wide = d.inner("HardSwish", wide)
        x = d.inner("Add", x, d.inner("Conv", wide, d.filters(16, 32, 1, 1), shared))
    x = d.inner("Relu", d.inner("Conv", x, d.filters(64, 16, 3, 3, scale=2), pads=[1] * 4))
    proto = d.proto(d.classifier(x, 24), ("N", 24))
    others = images((2, 7, 5), (1, 3, 16), (3, 8, 8), (0, 8, 8))
    return Network(proto, images((1, 8, 8), (1, 8, 12)), others)


@st.composite
def transformers(draw: st.DrawFn) -> Network:
    """Blocks of attention, optionally causal, with normalization before or behind their parts."""
    d = drawing(draw(st.integers(0, 999)))
    x = d.free_input((1, 6, WIDTH), ("N", "T", WIDTH))
    network = Transformer(
        d,
        x,
        heads=2,
        low=draw(st.sampled_from([None, *LOWS])),
        is_before=draw(st.booleans()),
        is_shared=draw(st.booleans()),
        bias=False,
    )
    proto = d.proto(network.result(draw(st.integers(1, 2)), 24), ("N", "T", 24))
    calibrated, others = (
        tuple(((n, t, WIDTH),) for n, t in sizes)
        for sizes in (((1, 6), (1, 9)), ((1, 3), (2, 6), (1, 17), (0, 4)))
    )
    return Network(proto, calibrated, others)


@st.composite
def recurrent_networks(draw: st.DrawFn) -> Network:
    """An encoder of words and, with attention, a decoder: GRU, LSTM or RNN of free lengths."""
    kind, is_pair = draw(st.sampled_from(["GRU", "LSTM", "RNN"])), draw(st.booleans())
    options: dict[str, Any] = {"hidden_size": HIDDEN}
    d = drawing(draw(st.integers(0, 999)))
    sources = [d.free_input((4, 1), ("SRC", 1), is_word=True)]
    if is_pair:
        sources.append(d.free_input((3, 1), ("TGT", 1), is_word=True))
    if kind == "GRU":
        options["linear_before_reset"] = draw(st.integers(0, 1))
    y, last = cell(d, kind, sources[0], options)
    if is_pair:
        memory, (y, _) = y, cell(d, kind, sources[1], options, last)
        keys = d.inner("Transpose", memory, perm=[0, 2, 1])
        scores = d.inner("MatMul", d.inner("MatMul", y, d.filters(HIDDEN, HIDDEN)), keys)
        observed = d.inner("MatMul", d.inner("Softmax", scores, axis=-1), memory)
        y = d.inner("Tanh", d.inner("Concat", y, observed, axis=-1))
    y = d.inner("MatMul", y, d.filters(y.shape[2], WORDS))
    proto = d.proto(y, (1, "TGT" if is_pair else "SRC", WORDS))
    calibrated, others = (
        tuple(tuple((length, 1) for length in pair[: len(sources)]) for pair in pairs)
        for pairs in (((4, 3), (5, 2), (4, 3)), ((6, 5), (2, 6), (8, 1), (5, 4)))
    )
    return Network(proto, calibrated, others, words=WORDS)


def cell(
    d: NetworkDrawing, kind: str, words: Value, options: dict[str, Any], *state: Value
) -> tuple[Value, Value]:
    """All states [1, length, HIDDEN] of a layer that reads words, and its last state."""
    rows = d.inner("Gather", d.normal(WORDS, EMBEDDING), words)
    gates = GATES[kind] * HIDDEN
    weights = [d.filters(1, gates, width) for width in (EMBEDDING, HIDDEN)]
    inputs = (None, *state) if state else ()
    steps, last = d.both(kind, rows, *weights, d.small(1, 2 * gates), *inputs, **options)
    flat = d.inner("Squeeze", steps, axes=[1])
    return d.inner("Transpose", flat, perm=[1, 0, 2]), last
