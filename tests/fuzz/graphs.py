"""Random ONNX graphs that are valid, with inputs for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tests.fuzz.drawing import CONDITION, FLOAT, OPSET, Drawing, Rejected, Value
from tests.fuzz.operators import FAMILIES

Feeds = dict[str, NDArray[np.generic]]
MOST_NODES = 12
TRIES = 60
SAMPLES = 3
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)
"""Around the widths of vectors and tiles."""


@dataclass(frozen=True)
class Case:
    """A model and samples for it."""

    model: onnx.ModelProto
    samples: tuple[Feeds, ...]


def drawn(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    drawing = Drawing(rng)
    for _ in range(drawing.integer(1, 2)):
        drawing.input(FLOAT, shape_of_input(drawing))
    grow(drawing, drawing.integer(1, MOST_NODES))
    model = model_of(drawing, outputs_of(drawing))
    onnx.checker.check_model(model, full_check=True)
    return Case(model, tuple(feeds(drawing.inputs, rng) for _ in range(SAMPLES)))


def shape_of_input(drawing: Drawing) -> list[int]:
    rank = drawing.choose((1, 2, 2, 3, 3, 4, 4, 4, 4))
    sizes = [drawing.choose(SIZES) for _ in range(rank)]
    if drawing.chance(0.7):
        sizes[0] = 1
    while np.prod(sizes) > 2000:
        sizes[int(np.argmax(sizes))] //= 2
    return sizes


def grow(drawing: Drawing, count: int) -> None:
    """Add about ``count`` nodes."""
    chances = np.array([weight for weight, _ in FAMILIES])
    chances /= chances.sum()
    for _ in range(TRIES):
        if len(drawing.nodes) >= count:
            return
        _, draw = FAMILIES[int(drawing.rng.choice(len(FAMILIES), p=chances))]
        try:
            draw(drawing)
        except Rejected:
            continue


def outputs_of(drawing: Drawing) -> list[Value]:
    """What nobody reads, and now and then a value that others read too."""
    read = {name for node in drawing.nodes for name in node.input}
    made = [v for v in drawing.values if v not in drawing.inputs]
    ends = [v for v in made if v.name not in read]
    if made and drawing.chance(0.3):
        ends.append(drawing.choose(made))
    if not ends:
        ends = [drawing.node("Identity", drawing.inputs[0])]
    return list(dict.fromkeys(ends))


def model_of(drawing: Drawing, outputs: list[Value]) -> onnx.ModelProto:
    def info(value: Value) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(value.name, value.element, value.shape)

    graph = helper.make_graph(
        drawing.nodes,
        "fuzz",
        [info(v) for v in drawing.inputs],
        [info(v) for v in outputs],
        drawing.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def feeds(inputs: list[Value], rng: np.random.Generator) -> Feeds:
    return {value.name: array_of(value, rng) for value in inputs}


def array_of(value: Value, rng: np.random.Generator) -> NDArray[np.generic]:
    if value.element == FLOAT:
        return rng.normal(0, 1, value.shape).astype(np.float32)
    if value.element == CONDITION:
        return rng.random(value.shape) < 0.5
    return rng.integers(-4, 5, value.shape)
