"""Random ONNX graphs that are valid, with inputs for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from quantglow.importer.onnx.reading.proto import infer
from tests.generators.onnx_models.drawing import (
    CONDITION,
    FLOAT,
    INTEGER,
    MICROSOFT,
    ML,
    ML_OPSET,
    OPSETS,
    Drawing,
    Rejected,
    Value,
)
from tests.generators.onnx_models.operators import FAMILIES

Feeds = dict[str, NDArray[np.generic]]
MOST_NODES = 12
TRIES = 60
SAMPLES = 3
QUANTIZED = 0.15
"""Share of graphs with quantized operators."""
BATCHED = 0.35
"""Share of graphs whose inputs have the same number of samples, 2 to ``MOST_SAMPLES``."""
MOST_SAMPLES = 8
FEW_NODES = 4
"""Maximum number of nodes of these graphs: a single one that mixes samples keeps a batch whole."""


@dataclass(frozen=True)
class Case:
    """A model and samples for it."""

    model: onnx.ModelProto
    samples: tuple[Feeds, ...]


def drawn(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    drawing = Drawing(rng, OPSETS[int(rng.integers(len(OPSETS)))])
    if drawing.chance(BATCHED):
        drawing.batch = drawing.integer(2, MOST_SAMPLES)
    for _ in range(drawing.integer(1, 2)):
        drawing.input(FLOAT, drawing.shape())
    if drawing.chance(0.2):
        drawing.input(drawing.choose((INTEGER, CONDITION)), drawing.shape())
    if drawing.chance(0.2):
        drawing.values.append(drawing.normal(*drawing.shape()))
    grow(drawing, drawing.integer(1, FEW_NODES if drawing.batch else MOST_NODES))
    model = model_of(drawing, outputs_of(drawing))
    onnx.checker.check_model(model)
    infer(model, strict=True, check_type=True)
    return Case(model, tuple(feeds(drawing.inputs, rng) for _ in range(SAMPLES)))


def grow(drawing: Drawing, count: int) -> None:
    """Add about ``count`` nodes."""
    is_quantized = drawing.chance(QUANTIZED)
    chances = np.array([f.weight * (is_quantized or not f.is_quantized) for f in FAMILIES])
    chances /= chances.sum()
    for _ in range(TRIES):
        if len(drawing.nodes) >= count:
            return
        family = FAMILIES[int(drawing.rng.choice(len(FAMILIES), p=chances))]
        try:
            family.draw(drawing)
        except Rejected:
            continue


def outputs_of(drawing: Drawing) -> list[Value]:
    """Values that no node reads, and sometimes a value that nodes read, too."""
    read = {name for node in drawing.nodes for name in read_by(node)}
    computed = {name for node in drawing.nodes for name in node.output}
    built = [v for v in drawing.values if v.name in computed]
    ends = [v for v in built if v.name not in read] + drawing.ends
    if built and drawing.chance(0.3):
        ends.append(drawing.choose(built))
    if not ends:
        ends = [drawing.inner("Identity", drawing.inputs[0])]
    ends = list(dict.fromkeys(ends))
    return ends + unusual_outputs(drawing, ends)


def unusual_outputs(drawing: Drawing, ends: list[Value]) -> list[Value]:
    """Sometimes an input, a constant with the shape of an output, a value under a second name, one
    without axes, and a name that is an output already.
    """
    collected: list[Value] = []
    if drawing.chance(0.15):
        collected.append(drawing.choose(drawing.inputs))
    if drawing.chance(0.15):
        collected.append(drawing.normal(*drawing.choose(ends).shape))
    with suppress(Rejected):
        if drawing.chance(0.1):
            collected.append(drawing.inner("Identity", drawing.choose(ends)))
        if drawing.chance(0.1):
            collected.append(drawing.inner("ReduceMax", drawing.choose(ends), keepdims=0))
    if drawing.chance(0.05):
        collected.append(drawing.choose(ends))
    return collected


def read_by(node: onnx.NodeProto) -> list[str]:
    """Values that a node reads, its branches included."""
    inner = [read_by(n) for a in node.attribute for n in a.g.node]
    return [*node.input, *(name for names in inner for name in names)]


def model_of(drawing: Drawing, outputs: list[Value]) -> onnx.ModelProto:
    def info(value: Value) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(value.name, value.element, value.shape)

    graph = helper.make_graph(
        drawing.nodes,
        "fuzz",
        [info(v) for v in drawing.inputs],
        [info(v) for v in outputs],
        drawing.constants,
        value_info=[info(v) for v in drawing.declared if v not in outputs],
    )
    versions = {"": drawing.opset, ML: ML_OPSET, MICROSOFT: 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(inputs: list[Value], rng: np.random.Generator) -> Feeds:
    return {value.name: array_of(value, rng) for value in inputs}


def array_of(value: Value, rng: np.random.Generator) -> NDArray[np.generic]:
    if value.element == FLOAT:
        return rng.normal(0, 1, value.shape).astype(np.float32)
    if value.element == CONDITION:
        return np.asarray(rng.random(value.shape) < 0.5)
    dtype = helper.tensor_dtype_to_np_dtype(value.element)
    low = 0 if dtype.kind == "u" else -4
    return rng.integers(low, 5, value.shape).astype(dtype)
