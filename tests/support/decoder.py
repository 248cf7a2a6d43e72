"""Decoders shaped as Llama's: RMS normalization, rotary positions, grouped queries, a gated unit.

Weights are random, or come from a file.  The cache is an input ``past_key_values.N.key`` and
``.value`` of each layer and an output ``present.N.key`` and ``.value``, with the rows of the new
tokens at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
Feeds = dict[str, Array]

Fill = Callable[[tuple[int, ...]], Array]
"""Weights of a shape; asked in the order of the layers: the table of embeddings, then of each layer
the scale before attention, queries, keys, values, their product, the scale before the gated unit,
gate, factor, their product; the last scale, the head.  Matrices are ``[inputs, outputs]``."""

OPSET, IR_VERSION = 18, 8
LOWEST = np.float32(-3.4e38)


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder; ``base`` is the longest wave of the rotary positions.

    ``fused``: attention and normalizations are operators of onnxruntime, which has tables of as
    many ``positions``.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    inner: int = 128
    vocabulary: int = 256
    base: float = 10_000.0
    positions: int = 2048
    fused: bool = False
    seed: int = 0

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.hidden // self.heads

    @property
    def caches(self) -> list[str]:
        """The part of the names that inputs and outputs of the cache share."""
        return [f"{layer}.{kind}" for layer in range(self.layers) for kind in ("key", "value")]

    def empty_cache(self, batch: int) -> Feeds:
        """A cache before the first token."""
        shape = (batch, self.kv_heads, 0, self.head)
        return {f"past_key_values.{name}": np.zeros(shape, np.float32) for name in self.caches}

    def feeds(self, tokens: Array, cache: Feeds) -> Feeds:
        """Inputs for tokens ``[batch, new]`` behind a cache."""
        batch, new = tokens.shape
        past = next(iter(cache.values())).shape[2]
        positions = np.tile(np.arange(past, past + new, dtype=np.int64), (batch, 1))
        mask = np.ones((batch, past + new), np.int64)
        actual = {"input_ids": tokens, "attention_mask": mask, **cache}
        return actual if self.fused else {**actual, "position_ids": positions}

    def next_cache(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """The cache for the next call, from all outputs of one."""
        names = (f"past_key_values.{name}" for name in self.caches)
        return dict(zip(names, outputs[1:], strict=True))


@dataclass
class Builder:
    """Appends nodes.  Weights depend on ``fill`` and the order of calls only."""

    fill: Fill
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, value: Array) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def integer_scalar(self, value: int) -> str:
        return self.constant(np.array(value, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def weights(self, rows: int, columns: int) -> str:
        return self.constant(self.fill((rows, columns)))

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.several(op, *inputs, results=1, domain=domain, **attributes)[0]

    def several(
        self, op: str, *inputs: str, results: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        """The outputs of a node."""
        names = [f"{op.lower()}{len(self.nodes)}:{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names

    def named(self, name: str, value: str) -> None:
        """Give a value the name of an output."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.node("MatMul", x, self.weights(rows, columns))


def random_weights(seed: int) -> Fill:
    """Matrices that keep the size of what they multiply, and scales around 1."""
    rng = np.random.default_rng(seed)

    def fill(shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape).astype(np.float32)
        return rng.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)

    return fill


def decoder_model(config: Decoder, fill: Fill | None = None) -> onnx.ModelProto:
    """The decoder in standard operators, as transformers and torch export it, or ``fused`` as
    onnxruntime-genai's builder and Optimum write it."""
    b = Builder(fill or random_weights(config.seed))
    table = b.weights(config.vocabulary, config.hidden)
    x = b.node("Gather", table, "input_ids")
    return _fused(b, config, x) if config.fused else _standard(b, config, x)


def _standard(b: Builder, config: Decoder, x: str) -> onnx.ModelProto:
    rotation, mask = _rotation(b, config), _mask(b)
    for layer in range(config.layers):
        attended = _attention(b, config, layer, _normalized(b, config, x), rotation, mask)
        x = b.node("Add", x, attended)
        x = b.node("Add", x, _gated_unit(b, config, _normalized(b, config, x)))
    b.named("logits", b.linear(_normalized(b, config, x), config.hidden, config.vocabulary))
    return _model(b, config)


def _model(b: Builder, config: Decoder) -> onnx.ModelProto:
    def info(name: str, kind: int, *dims: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    integer, real = TensorProto.INT64, TensorProto.FLOAT
    kv, head = config.kv_heads, config.head
    pasts = [f"past_key_values.{name}" for name in config.caches]
    inputs = [
        info("input_ids", integer, "batch", "sequence"),
        info("attention_mask", integer, "batch", "total"),
        *([] if config.fused else [info("position_ids", integer, "batch", "sequence")]),
        *(info(name, real, "batch", kv, "past", head) for name in pasts),
    ]
    outputs = [
        info("logits", real, "batch", "sequence", config.vocabulary),
        *(info(f"present.{name}", real, "batch", kv, "total", head) for name in config.caches),
    ]
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, b.initializers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _normalized(b: Builder, config: Decoder, x: str) -> str:
    """Root mean square normalization."""
    square = b.node("Pow", x, b.number(2.0))
    mean = b.node("ReduceMean", square, b.integers(-1))
    root = b.node("Sqrt", b.node("Add", mean, b.number(1e-5)))
    return b.node("Mul", _scale(b, config), b.node("Mul", x, b.node("Div", b.number(1.0), root)))


def _gated_unit(b: Builder, config: Decoder, x: str) -> str:
    gate = b.linear(x, config.hidden, config.inner)
    gated = b.node("Mul", gate, b.node("Sigmoid", gate))
    product = b.node("Mul", gated, b.linear(x, config.hidden, config.inner))
    return b.linear(product, config.inner, config.hidden)


def _rotation(b: Builder, config: Decoder) -> tuple[str, str]:
    """Cosines and sines ``[batch, 1, new, head]`` of the positions."""
    steps = np.arange(0, config.head, 2, dtype=np.float32) / config.head
    waves = b.constant((1 / config.base**steps).astype(np.float32).reshape(1, 1, -1))
    positions = b.node("Cast", "position_ids", to=TensorProto.FLOAT)
    angles = b.node("MatMul", b.node("Unsqueeze", positions, b.integers(2)), waves)
    both = b.node("Unsqueeze", b.node("Concat", angles, angles, axis=-1), b.integers(1))
    return b.node("Cos", both), b.node("Sin", both)


def _mask(b: Builder) -> str:
    """0 or the lowest float ``[batch, 1, new, total]``: which rows of the cache a token sees."""
    past = b.node("Gather", b.node("Shape", "past_key_values.0.key"), b.integer_scalar(2))
    new = b.node("Gather", b.node("Shape", "input_ids"), b.integer_scalar(1))
    total = b.node("Add", past, new)
    zero, one = b.integer_scalar(0), b.integer_scalar(1)
    rows = b.node("Unsqueeze", b.node("Range", past, total, one), b.integers(1))
    columns = b.node("Unsqueeze", b.node("Range", zero, total, one), b.integers(0))
    causal = b.node("LessOrEqual", columns, rows)
    ours = b.node("Unsqueeze", b.node("Cast", "attention_mask", to=TensorProto.BOOL), b.integers(1))
    observed = b.node("And", b.node("Unsqueeze", ours, b.integers(1)), causal)
    return b.node("Where", observed, b.number(0.0), b.constant(LOWEST))


def _attention(
    b: Builder, config: Decoder, layer: int, x: str, rotation: tuple[str, str], mask: str
) -> str:
    groups = config.heads // config.kv_heads
    query, key, value = (
        _heads(b, config, b.linear(x, config.hidden, heads * config.head), heads)
        for heads in (config.heads, config.kv_heads, config.kv_heads)
    )
    query, key = _rotated(b, config, query, rotation), _rotated(b, config, key, rotation)
    keys, values = _extended(b, layer, "key", key), _extended(b, layer, "value", value)
    if groups > 1:
        keys, values = _repeated(b, config, keys, groups), _repeated(b, config, values, groups)
    scores = b.node("MatMul", query, b.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scaled = b.node("Add", b.node("Mul", scores, b.number(config.head**-0.5)), mask)
    mixed = b.node("MatMul", b.node("Softmax", scaled, axis=-1), values)
    rows = b.node("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = b.node("Reshape", rows, b.integers(0, 0, config.hidden))
    return b.linear(joined, config.hidden, config.hidden)


def _heads(b: Builder, config: Decoder, x: str, heads: int) -> str:
    apart = b.node("Reshape", x, b.integers(0, 0, heads, config.head))
    return b.node("Transpose", apart, perm=[0, 2, 1, 3])


def _rotated(b: Builder, config: Decoder, x: str, rotation: tuple[str, str]) -> str:
    half, most = config.head // 2, np.iinfo(np.int64).max
    axis = b.integers(3)
    low = b.node("Slice", x, b.integers(0), b.integers(half), axis)
    high = b.node("Slice", x, b.integers(half), b.integers(most), axis)
    turned = b.node("Concat", b.node("Neg", high), low, axis=-1)
    cosine, sine = rotation
    return b.node("Add", b.node("Mul", x, cosine), b.node("Mul", turned, sine))


def _extended(b: Builder, layer: int, kind: str, new: str) -> str:
    """The cache with new rows."""
    joined = b.node("Concat", f"past_key_values.{layer}.{kind}", new, axis=-2)
    b.named(f"present.{layer}.{kind}", joined)
    return joined


def _repeated(b: Builder, config: Decoder, x: str, groups: int) -> str:
    """Each head of a cache once for each of its queries."""
    shape = b.node("Shape", x)
    sizes = [b.node("Gather", shape, b.integers(i)) for i in range(4)]
    wide = b.node("Concat", *sizes[:2], b.integers(groups), *sizes[2:], axis=0)
    repeated = b.node("Expand", b.node("Unsqueeze", x, b.integers(2)), wide)
    joined = b.node("Concat", sizes[0], b.integers(config.heads), *sizes[2:], axis=0)
    return b.node("Reshape", repeated, joined)


def _fused(b: Builder, config: Decoder, x: str) -> onnx.ModelProto:
    lasts = b.node("Sub", b.node("ReduceSum", "attention_mask", b.integers(1)), b.integers(1))
    lasts = b.node("Cast", lasts, to=TensorProto.INT32)
    total = b.node("Gather", b.node("Shape", "attention_mask"), b.integer_scalar(1))
    total = b.node("Cast", total, to=TensorProto.INT32)
    steps = np.arange(0, config.head, 2, dtype=np.float32) / config.head
    angles = np.arange(config.positions, dtype=np.float32)[:, None] / config.base**steps
    tables = [b.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    normalized = b.node("SimplifiedLayerNormalization", x, _scale(b, config), epsilon=1e-5)
    for layer in range(config.layers):
        query, key, value = (
            b.linear(normalized, config.hidden, heads * config.head)
            for heads in (config.heads, config.kv_heads, config.kv_heads)
        )
        caches = [f"{layer}.key", f"{layer}.value"]
        pasts = [f"past_key_values.{name}" for name in caches]
        attended = f"attended{layer}"
        b.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [query, key, value, *pasts, lasts, total, *tables],
                [attended, *(f"present.{name}" for name in caches)],
                domain="com.microsoft",
                num_heads=config.heads,
                kv_num_heads=config.kv_heads,
                do_rotary=1,
            )
        )
        rows = b.linear(attended, config.hidden, config.hidden)
        normalized, x = _sum(b, config, x, rows)
        normalized, x = _sum(b, config, x, _gated_unit(b, config, normalized))
    b.named("logits", b.linear(normalized, config.hidden, config.vocabulary))
    return _model(b, config)


def _scale(b: Builder, config: Decoder) -> str:
    return b.constant(b.fill((config.hidden,)))


def _sum(b: Builder, config: Decoder, x: str, y: str) -> tuple[str, str]:
    """The normalized sum of two values, and the sum."""
    op, scale = "SkipSimplifiedLayerNormalization", _scale(b, config)
    name = f"sum{len(b.nodes)}"
    outputs = [name, "", "", f"{name}:whole"]
    domain = "com.microsoft"
    b.nodes.append(helper.make_node(op, [x, y, scale], outputs, domain=domain, epsilon=1e-5))
    return name, outputs[3]
