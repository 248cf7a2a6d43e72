"""Held models whose shapes are known late, one of each kind, with samples whose late sizes differ.

Convolutional models see spots in an image: cells of 4 by 4 pixels whose brightness is far above or
below the threshold, so that float and int8 choose the same cells in the same order.  At the largest
late size, late parts have a fifth of the multiply-accumulates at least: the share of int8 shows
whether they are int8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.decoder import Builder

Array = np.ndarray
Feeds = dict[str, Array]

FLOAT, INTEGER, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
OPSET, ML_OPSET = 17, 3

MANY = 7
"""The largest late size of a sample."""


@dataclass(frozen=True)
class LateModel:
    """A model and its samples.

    sample   feeds of a late size, by a seed
    least    the smallest late size that the model takes
    batches  whether the model takes several samples in a call
    """

    model: onnx.ModelProto
    sample: Callable[[int, int], Feeds]
    least: int = 0
    batches: bool = False

    def samples(self, count: int = 12) -> list[Feeds]:
        """Calibration samples; the first and every third have the largest late size."""
        sizes = [MANY, 3, 1, MANY, 2, 5, MANY, self.least]
        return [self.sample(sizes[n % len(sizes)], n) for n in range(count)]

    def distinct(self) -> list[Feeds]:
        """Samples of late sizes none, one and many, none of them for calibration."""
        sizes = [MANY, self.least, 1, 4, MANY, 1, self.least, 2]
        return [self.sample(size, 100 + n) for n, size in enumerate(sizes)]


STREAM = (0, 1, 2, 3, 4, 0, 0, 1, 6, 1, 5, 2, 7, 3, 1, 4, 4, 6, 5, 0)
"""Positions in ``distinct`` of the calls of a stream: other sizes, equal ones, none in between."""


class LateBuilder(Builder):
    """A ``Builder`` with layers whose weights keep the size of values."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        super().__init__(lambda shape: rng.standard_normal(shape, np.float32))

    def scaled(self, *shape: int, fan_in: int, gain: float = 1.4) -> Array:
        """Random weights for sums of so many products."""
        return np.asarray(self.fill(shape) * np.float32(gain * fan_in**-0.5))

    def conv(self, x: str, inputs: int, outputs: int, *, stride: int = 1) -> str:
        """A convolution 3x3 with bias, and Relu."""
        w = self.scaled(outputs, inputs, 3, 3, fan_in=9 * inputs)
        return self.conv_with(x, w, stride=stride)

    def conv_with(self, x: str, w: Array, *, stride: int = 1) -> str:
        """The same with some weights."""
        bias = 0.1 * np.abs(self.fill(w.shape[:1]))
        bias[0] = 0
        operands = (x, self.constant(w), self.constant(bias))
        return self.node("Relu", self.node("Conv", *operands, pads=[1] * 4, strides=[stride] * 2))

    def gemm(self, x: str, inputs: int, outputs: int, gain: float = 1.4) -> str:
        """A dense layer with bias."""
        w = self.scaled(inputs, outputs, fan_in=inputs, gain=gain)
        bias = np.float32(0.1) * self.fill((outputs,))
        return self.node("Gemm", x, self.constant(w), self.constant(bias))

    def mlp(self, x: str, *sizes: int) -> str:
        """Dense layers with Relu between them."""
        for inputs, outputs in pairwise(sizes[:-1]):
            x = self.node("Relu", self.gemm(x, inputs, outputs))
        return self.gemm(x, *sizes[-2:])

    def matmul(self, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """A product of rows of any rank."""
        w = self.scaled(inputs, outputs, fan_in=inputs, gain=gain)
        return self.node("MatMul", x, self.constant(w))

    def rename(self, value: str, name: str) -> None:
        """Call a value otherwise."""
        for node in self.nodes:
            node.input[:] = [name if n == value else n for n in node.input]
            node.output[:] = [name if n == value else n for n in node.output]

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: dict[str, tuple[str, int, Any]]
    ) -> onnx.ModelProto:
        """The model; outputs: name -> value, type, and shape or None.  The type of a value that is
        no tensor is a ``TypeProto``."""
        infos = []
        for name, (value, kind, shape) in outputs.items():
            if isinstance(kind, onnx.TypeProto):
                self.rename(value, name)  # onnxruntime has no Identity of maps
                infos.append(helper.make_value_info(name, kind))
            else:
                self.named(name, value)
                infos.append(tensor(name, kind, shape))
        graph = helper.make_graph(self.nodes, "late", inputs, infos, self.initializers)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        return model


tensor = helper.make_tensor_value_info

# -- images

SIDE, CELLS, CHANNELS = 48, 12, 48
"""Pixels and cells of a side of an image, and channels of the features of a cell."""


def spots(count: int, seed: int) -> Array:
    """A dark image with so many bright cells, each brighter than the next one by an eighth."""
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 0.15, (1, 3, SIDE, SIDE)).astype(np.float32)
    cells = rng.choice((CELLS // 2) ** 2, count, replace=False)
    for number, cell in enumerate(cells):
        y, x = (4 * (2 * int(n) + 1) for n in divmod(cell, CELLS // 2))
        patch = image[0, :, y : y + 4, x : x + 4]
        patch += np.float32(2.0 - number / 8) - patch.mean()
    return image


def image_backbone(b: LateBuilder, x: str) -> tuple[str, str]:
    """Features [N, CHANNELS, 12, 12], whose first channel is the brightness of the cells, and that
    channel [N, 1, 12, 12]."""
    for inputs, outputs in ((3, 16), (16, CHANNELS)):
        w = b.scaled(outputs, inputs, 3, 3, fan_in=9 * inputs)
        w[0] = 0
        # Pixels 2y and 2y + 1 of both axes; the second layer reads the first channel only.
        w[0, : 3 if inputs == 3 else 1, 1:, 1:] = 1 / 12 if inputs == 3 else 1 / 4
        x = b.conv_with(x, w, stride=2)
    return x, b.node("Slice", x, b.integers(0), b.integers(1), b.integers(1))


def cell_boxes() -> Array:
    """Boxes [1, 144, 4] around the cells, in pixels: y, x, y, x."""
    starts = 4 * np.arange(CELLS, dtype=np.float32) - 2
    y, x = (axis.reshape(-1) for axis in np.meshgrid(starts, starts, indexing="ij"))
    return np.stack([y, x, y + 8, x + 8], axis=1)[None]


def chosen_boxes(b: LateBuilder, brightness: str) -> tuple[str, str]:
    """Cells that NonMaxSuppression chooses: their numbers [K], and their boxes [K, 4]."""
    scores = b.node("Reshape", brightness, b.integers(1, 1, -1))
    boxes = b.constant(cell_boxes())
    limits = (b.integers(20), b.constant(np.float32([0.4])), b.constant(np.float32([0.6])))
    chosen = b.node("NonMaxSuppression", boxes, scores, *limits)
    numbers = b.node("Gather", chosen, b.integer_scalar(2), axis=1)
    rows = b.constant(cell_boxes()[0])
    return numbers, b.node("Gather", rows, numbers, axis=0)


def image_input(batch: int | str = 1) -> list[onnx.ValueInfoProto]:
    """The input ``x``."""
    return [tensor("x", FLOAT, [batch, 3, SIDE, SIDE])]


def image_sample(count: int, seed: int) -> Feeds:
    """An image with so many spots."""
    return {"x": spots(count, seed)}


def detector_with_heads() -> LateModel:
    """NonMaxSuppression at the end of a detector, and dense layers on the features of each
    detection."""
    b = LateBuilder(1)
    features, brightness = image_backbone(b, "x")
    numbers, boxes = chosen_boxes(b, brightness)
    rows = b.node("Transpose", features, perm=[0, 2, 3, 1])
    rows = b.node("Reshape", rows, b.integers(-1, CHANNELS))
    detections = b.node("Gather", rows, numbers, axis=0)
    classes = b.mlp(detections, CHANNELS, 256, 256, 16)
    outputs = {
        "boxes": (boxes, FLOAT, ["K", 4]),
        "classes": (classes, FLOAT, ["K", 16]),
    }
    return LateModel(b.model(image_input(), outputs), image_sample)


def rows_in_the_middle() -> LateModel:
    """NonZero on a mask, dense layers on the chosen rows, ScatterND back into the map, and another
    convolution.  The batch is free."""
    b = LateBuilder(2)
    features, brightness = image_backbone(b, "x")
    mask = b.node("Greater", b.node("Squeeze", brightness, b.integers(1)), b.number(0.6))
    places = b.node("Transpose", b.node("NonZero", mask), perm=[1, 0])
    cells = b.node("Transpose", features, perm=[0, 2, 3, 1])
    rows = b.node("GatherND", cells, places)
    rows = b.mlp(rows, CHANNELS, 256, 256, CHANNELS)
    cells = b.node("ScatterND", cells, places, rows)
    y = b.conv(b.node("Transpose", cells, perm=[0, 3, 1, 2]), CHANNELS, 16)
    outputs = {"y": (y, FLOAT, ["N", 16, CELLS, CELLS]), "rows": (rows, FLOAT, ["K", CHANNELS])}
    return LateModel(b.model(image_input("N"), outputs), image_sample, batches=True)


def crops() -> LateModel:
    """RoiAlign on boxes that NonMaxSuppression chooses, and convolutions on the crops."""
    b = LateBuilder(3)
    features, brightness = image_backbone(b, "x")
    _, boxes = chosen_boxes(b, brightness)
    regions = b.node("Gather", boxes, b.integers(1, 0, 3, 2), axis=1)
    first = b.node("Gather", b.node("Shape", boxes), b.integers(0))
    image = b.node("ConstantOfShape", first, value=helper.make_tensor("zero", INTEGER, [1], [0]))
    sizes = {"output_height": 6, "output_width": 6}
    crop = b.node(
        "RoiAlign", features, regions, image, spatial_scale=0.25, sampling_ratio=2, **sizes
    )
    y = b.conv(b.conv(crop, CHANNELS, 32), 32, 32, stride=2)
    classes = b.mlp(b.node("Flatten", y), 32 * 9, 64, 8)
    outputs = {"boxes": (boxes, FLOAT, ["K", 4]), "classes": (classes, FLOAT, ["K", 8])}
    return LateModel(b.model(image_input(), outputs), image_sample)


# -- text

WIDTH, WORDS, MARK, LENGTH = 64, 100, 7, 24
"""Width of states, number of tokens, the token that asks for a trip, tokens of a text."""


def marked_text(count: int, seed: int) -> Feeds:
    """Tokens, so many of which are the mark."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(MARK + 1, WORDS, LENGTH)
    tokens[rng.choice(LENGTH, count, replace=False)] = MARK
    return {"tokens": tokens[None].astype(np.int64)}


def attend(b: LateBuilder, query: str, keys: str, values: str, width: int) -> str:
    """Attention of one head."""
    turned = b.node("Transpose", keys, perm=[0, 2, 1])
    scores = b.node("Mul", b.node("MatMul", query, turned), b.number(width**-0.5))
    return b.node("MatMul", b.node("Softmax", scores, axis=-1), values)


def looping_text() -> LateModel:
    """An encoder, then a Loop with a trip for each mark among the tokens: its state attends to the
    text and to all states so far, which grow by one in each trip."""
    b = LateBuilder(4)
    table = b.constant(b.scaled(WORDS, WIDTH, fan_in=1, gain=0.7))
    text = b.node("Gather", table, "tokens")
    text = b.node("Tanh", b.matmul(b.node("Relu", b.matmul(text, WIDTH, 128)), 128, WIDTH))
    marks = b.node("Cast", b.node("Equal", "tokens", b.integer_scalar(MARK)), to=INTEGER)
    trips = b.node("ReduceSum", marks, keepdims=0)
    state = b.node("ReduceMean", text, axes=[1], keepdims=1)
    inner = LateBuilder(5)
    attended = attend(inner, inner.matmul("state", WIDTH, WIDTH), text, text, WIDTH)
    history = attend(inner, inner.matmul(attended, WIDTH, WIDTH), "rows", "rows", WIDTH)
    both = inner.node("Concat", "state", history, axis=2)
    hidden = inner.node("Relu", inner.matmul(both, 2 * WIDTH, 256))
    after = inner.node("Tanh", inner.matmul(hidden, 256, WIDTH))
    inner.named("next", after)
    inner.named("on", "holds")
    inner.nodes.append(helper.make_node("Concat", ["rows", "next"], ["more"], axis=1))
    rename(inner, "body:")
    row = [1, 1, WIDTH]
    body = helper.make_graph(
        inner.nodes,
        "body",
        [
            tensor("trip", INTEGER, []),
            tensor("holds", TensorProto.BOOL, []),
            tensor("state", FLOAT, row),
            tensor("rows", FLOAT, [1, None, WIDTH]),
        ],
        [
            tensor("on", TensorProto.BOOL, []),
            tensor("next", FLOAT, row),
            tensor("more", FLOAT, [1, None, WIDTH]),
        ],
        inner.initializers,
    )
    loop = helper.make_node("Loop", [trips, "", state, state], ["last", "states"], body=body)
    b.nodes.append(loop)
    scores = b.matmul("states", WIDTH, 128)
    outputs = {"scores": (scores, FLOAT, [1, "K", 128]), "final": ("last", FLOAT, row)}
    model = b.model([tensor("tokens", INTEGER, [1, LENGTH])], outputs)
    return LateModel(model, marked_text)


def rename(inner: LateBuilder, prefix: str) -> None:
    """Give constants and values of a body names that the graph around has not."""
    local = {tensor.name for tensor in inner.initializers}
    local |= {name for node in inner.nodes for name in node.output} - {"next", "more", "on"}
    for node in inner.nodes:
        for names in (node.input, node.output):
            names[:] = [prefix + name if name in local else name for name in names]
    for constant in inner.initializers:
        constant.name = prefix + constant.name


# -- strings

LABELS = [f"animal {n}" for n in range(10)]


def labeled_images() -> LateModel:
    """A classifier of images that gives the label of each as a string, and scores."""
    b = LateBuilder(6)
    x = b.conv(b.conv("x", 3, 16, stride=2), 16, 32, stride=2)
    scores = b.mlp(b.node("Flatten", x), 32 * CELLS**2, 64, len(LABELS))
    best = b.node("ArgMax", scores, axis=1, keepdims=0)
    table = {"keys_int64s": list(range(len(LABELS))), "values_strings": LABELS}
    label = b.node("LabelEncoder", best, domain="ai.onnx.ml", **table)
    outputs = {"label": (label, TEXT, ["N"]), "scores": (scores, FLOAT, ["N", len(LABELS)])}
    model = b.model(image_input("N"), outputs)
    return LateModel(model, image_sample, batches=True)


VOCABULARY = [f"word{n}" for n in range(50)]
STOPWORDS = ["the", "of", "a"]


def words_sample(count: int, seed: int) -> Feeds:
    """A text of so many words of the vocabulary between words that say nothing."""
    rng = np.random.default_rng(seed)
    words = [*rng.choice(VOCABULARY, count), *rng.choice(STOPWORDS, 8 - count)]
    rng.shuffle(words)
    return {"words": np.array([word.title() for word in words], object)}


def words_first() -> LateModel:
    """Words without those that say nothing, their numbers, an embedding, and dense layers."""
    b = LateBuilder(7)
    facts = {"case_change_action": "LOWER", "stopwords": STOPWORDS, "locale": "C"}
    words = b.node("StringNormalizer", "words", **facts)
    table = {"keys_strings": VOCABULARY, "values_int64s": list(range(1, 51)), "default_int64": 0}
    numbers = b.node("LabelEncoder", words, domain="ai.onnx.ml", **table)
    embedding = b.constant(b.scaled(51, 128, fan_in=1, gain=0.7))
    rows = b.mlp(b.node("Gather", embedding, numbers), 128, 256, 128)
    y = b.gemm(b.node("ReduceMean", rows, axes=[0], keepdims=1), 128, 16)
    outputs = {"rows": (rows, FLOAT, ["K", 128]), "y": (y, FLOAT, [1, 16])}
    return LateModel(b.model([tensor("words", TEXT, [8])], outputs), words_sample)


# -- sequences, optionals and maps


def pieces_of_rows() -> LateModel:
    """The cells of an image by their brightness, split into a sequence of the bright and the dark
    ones; dense layers on the first piece, others on both together."""
    b = LateBuilder(9)
    features, brightness = image_backbone(b, "x")
    cells = b.node("Reshape", b.node("Transpose", features, perm=[0, 2, 3, 1]), cell_rows(b))
    flat = b.node("Reshape", brightness, b.integers(-1))
    _, order = b.several("TopK", flat, b.integers(CELLS**2), results=2)
    count = b.node("Reshape", count_bright(b, brightness), b.integers(1))
    sizes = b.node("Concat", count, b.node("Sub", b.integers(CELLS**2), count), axis=0)
    pieces = b.node("SplitToSequence", b.node("Gather", cells, order, axis=0), sizes, axis=0)
    bright = b.mlp(b.node("SequenceAt", pieces, b.integer_scalar(0)), CHANNELS, 256, 16)
    every = b.mlp(b.node("ConcatFromSequence", pieces, axis=0), CHANNELS, 64, 8)
    outputs = {
        "bright": (bright, FLOAT, ["K", 16]),
        "mean": (b.node("ReduceMean", every, axes=[0], keepdims=1), FLOAT, [1, 8]),
    }
    return LateModel(b.model(image_input(), outputs), image_sample, least=1)


def cell_rows(b: LateBuilder) -> str:
    """The shape of a row for each cell."""
    return b.integers(-1, CHANNELS)


def count_bright(b: LateBuilder, brightness: str) -> str:
    """The number of bright cells."""
    mask = b.node("Cast", b.node("Greater", brightness, b.number(0.6)), to=INTEGER)
    return b.node("ReduceSum", mask, keepdims=0)


def optional_rows() -> LateModel:
    """An optional with the bright cells of an image if there are several, else with the mean of all
    cells; dense layers on what it has."""
    b = LateBuilder(10)
    features, brightness = image_backbone(b, "x")
    numbers, _ = chosen_boxes(b, brightness)
    cells = b.node("Reshape", b.node("Transpose", features, perm=[0, 2, 3, 1]), cell_rows(b))
    chosen = b.node("Gather", cells, numbers, axis=0)
    mean = b.node("ReduceMean", cells, axes=[0], keepdims=1)
    is_several = b.node("Greater", count_bright(b, brightness), b.integer_scalar(1))
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [None, CHANNELS]))
    branches = {
        f"{branch}_branch": helper.make_graph(
            [helper.make_node("Optional", [value], [f"{branch}:o"])],
            branch,
            [],
            [helper.make_value_info(f"{branch}:o", kind)],
        )
        for branch, value in (("then", chosen), ("else", mean))
    }
    rows = b.node("OptionalGetElement", b.node("If", is_several, **branches))
    outputs = {"classes": (b.mlp(rows, CHANNELS, 256, 16), FLOAT, ["K", 16])}
    return LateModel(b.model(image_input(), outputs), image_sample)


def mapped_images() -> LateModel:
    """A classifier of images that gives the label of each as a string, and a map of probabilities
    by label, as classifiers of scikit-learn do.  Their scores differ widely: int8 chooses the same.
    """
    b = LateBuilder(11)
    x = b.conv(b.conv("x", 3, 16, stride=2), 16, 32, stride=2)
    scores = b.node("Softmax", b.mlp(b.node("Flatten", x), 32 * CELLS**2, 64, len(LABELS)), axis=1)
    best = b.node("ArgMax", scores, axis=1, keepdims=0)
    table = {"keys_int64s": list(range(len(LABELS))), "values_strings": LABELS}
    label = b.node("LabelEncoder", best, domain="ai.onnx.ml", **table)
    maps = b.node("ZipMap", scores, domain="ai.onnx.ml", classlabels_strings=LABELS)
    value = helper.make_tensor_type_proto(FLOAT, [])
    entry = onnx.TypeProto(map_type=onnx.TypeProto.Map(key_type=TEXT, value_type=value))
    outputs = {
        "label": (label, TEXT, ["N"]),
        "probabilities": (maps, helper.make_sequence_type_proto(entry), None),
    }
    return LateModel(b.model(image_input("N"), outputs), image_sample, batches=True)


# -- a decoder

HEADS, DEPTH, HIDDEN, PADDED = 4, 32, 128, 24
"""Heads and their width, width of states, rows of the encoder with padding."""


def decoder_step() -> LateModel:
    """A step of a decoder shaped as T5's: it attends to a cache that grows, and to those rows of
    the encoder that are no padding."""
    b = LateBuilder(8)
    table = b.constant(b.scaled(WORDS, HIDDEN, fan_in=1, gain=0.7))
    state = b.node("Gather", table, "token")
    normal = normalize(b, state)
    query, key, value = (split_heads(b, b.matmul(normal, HIDDEN, HIDDEN)) for _ in range(3))
    keys = b.node("Concat", "past_key", key, axis=2)
    values = b.node("Concat", "past_value", value, axis=2)
    state = b.node("Add", state, attend_heads(b, query, keys, values))
    actual = b.node("Reshape", b.node("NonZero", "mask"), b.integers(2, -1))
    rows = b.node("Gather", "encoded", b.node("Gather", actual, b.integer_scalar(1)), axis=1)
    query = split_heads(b, b.matmul(normalize(b, state), HIDDEN, HIDDEN))
    memory = [split_heads(b, b.matmul(rows, HIDDEN, HIDDEN)) for _ in range(2)]
    state = b.node("Add", state, attend_heads(b, query, *memory))
    inner = b.node("Relu", b.matmul(normalize(b, state), HIDDEN, 512))
    state = b.node("Add", state, b.matmul(inner, 512, HIDDEN))
    logits = b.matmul(normalize(b, state), HIDDEN, WORDS)
    cache = [1, HEADS, "past", DEPTH]
    inputs = [
        tensor("token", INTEGER, [1, 1]),
        tensor("encoded", FLOAT, [1, PADDED, HIDDEN]),
        tensor("mask", INTEGER, [1, PADDED]),
        tensor("past_key", FLOAT, cache),
        tensor("past_value", FLOAT, cache),
    ]
    more = [1, HEADS, "total", DEPTH]
    outputs = {
        "logits": (logits, FLOAT, [1, 1, WORDS]),
        "present_key": (keys, FLOAT, more),
        "present_value": (values, FLOAT, more),
    }
    return LateModel(b.model(inputs, outputs), decoder_sample)


def decoder_sample(count: int, seed: int) -> Feeds:
    """A token behind a cache of some rows; so many rows of the encoder are no padding."""
    rng = np.random.default_rng(seed)
    past = 2 + seed % 5

    def rows(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "token": rng.integers(0, WORDS, (1, 1)),
        "encoded": rows(1, PADDED, HIDDEN),
        "mask": (np.arange(PADDED) < 3 * count).astype(np.int64)[None],
        "past_key": rows(1, HEADS, past, DEPTH),
        "past_value": rows(1, HEADS, past, DEPTH),
    }


def normalize(b: LateBuilder, x: str) -> str:
    """Root mean square normalization."""
    mean = b.node("ReduceMean", b.node("Mul", x, x), axes=[-1], keepdims=1)
    return b.node("Div", x, b.node("Sqrt", b.node("Add", mean, b.number(1e-5))))


def split_heads(b: LateBuilder, x: str) -> str:
    """[1, T, HIDDEN] -> [1, HEADS, T, DEPTH]."""
    apart = b.node("Reshape", x, b.integers(1, -1, HEADS, DEPTH))
    return b.node("Transpose", apart, perm=[0, 2, 1, 3])


def attend_heads(b: LateBuilder, query: str, keys: str, values: str) -> str:
    """Attention of all heads, and the product behind it."""
    scores = b.node("MatMul", query, b.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = b.node("Softmax", b.node("Mul", scores, b.number(DEPTH**-0.5)), axis=-1)
    rows = b.node("Transpose", b.node("MatMul", scores, values), perm=[0, 2, 1, 3])
    return b.matmul(b.node("Reshape", rows, b.integers(1, 1, HIDDEN)), HIDDEN, HIDDEN)


BUILDERS: dict[str, Callable[[], LateModel]] = {
    "detector": detector_with_heads,
    "rows": rows_in_the_middle,
    "crops": crops,
    "loop": looping_text,
    "labels": labeled_images,
    "words": words_first,
    "pieces": pieces_of_rows,
    "optional": optional_rows,
    "maps": mapped_images,
    "decoder": decoder_step,
}
"""A model of each kind."""
