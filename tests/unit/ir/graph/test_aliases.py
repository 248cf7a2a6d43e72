"""Names by which users know values: those of the model's nodes, and of values that were fused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.graph.origins import Origin, known_names, with_aliases
from quantglow.ir.ops import Add, Relu
from quantglow.ir.types import f32
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from tests.support.embedded import MAKERS, network

X = Input(name="x", tensor=f32(2))


def chain(*names: str) -> Graph:
    """Relus of these names, one behind the other."""
    node: Relu | Input = X
    for name in names:
        node = Relu(name=name, x=node)
    return Graph((X,), (("y", node),))


def called(results: dict[str, tuple[str, ...]]) -> tuple[Origin, ...]:
    """Nodes of a model by name, with their results."""
    return tuple(Origin(name, "Relu", results=item) for name, item in results.items())


def named(graph: Graph) -> dict[str, str]:
    """Every known name -> the names of its nodes, with blanks between them."""
    return {n: " ".join(node.name for node in nodes) for n, nodes in known_names(graph).items()}


def test_a_value_that_is_gone_is_part_of_its_first_reader_that_is_left() -> None:
    actual = with_aliases(chain("b", "d"), chain("a", "b", "c", "d"))
    assert named(actual) == {"a": "b", "b": "b", "c": "d", "d": "d"}


def test_aliases_follow_their_values() -> None:
    before = replace(chain("a", "b"), sources=called({"node a": ("a",), "node b": ("b",)}))
    names = ("a", "b", "node a", "node b")
    assert named(with_aliases(chain("b"), before)) == dict.fromkeys(names, "b")


def test_a_name_of_the_graph_comes_before_an_alias() -> None:
    graph = replace(chain("a", "b"), sources=called({"a": ("b",), "lost": ("nothing",)}))
    assert named(graph) == {"a": "a", "b": "b", "lost": ""}


def test_names_that_lead_to_each_other_are_no_operator() -> None:
    """As names of nodes that are called like the results of each other."""
    swapped = called({"p": ("q",), "q": ("p",)})
    graph = replace(chain("a"), sources=swapped, aliases={"u": "v", "v": "u"})
    assert named(graph) == {"a": "a", "p": "", "q": "", "u": "", "v": ""}


def test_a_value_behind_which_nothing_is_left_is_known_as_nothing() -> None:
    both = Graph((X,), (("y", Relu(name="a", x=X)), ("z", Add(name="s", x=X, y=X))))
    assert named(with_aliases(chain("a"), both)) == {"a": "a", "s": ""}


def convolutions() -> onnx.ModelProto:
    """Conv, Relu, Identity and Conv, with nodes named as exporters name them."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(4, c, 3, 3)).astype(np.float32) for c in (3, 4)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["conv_0"], "/f/0/Conv"),
        helper.make_node("Relu", ["conv_0"], ["relu"], "/f/1/Relu"),
        helper.make_node("Identity", ["relu"], ["same"], "/f/2/Identity"),
        helper.make_node("Conv", ["same", "w1"], ["y"], "/f/3/Conv"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def data() -> Array:
    return np.random.default_rng(1).normal(size=(8, 3, 12, 12)).astype(np.float32)


LAYERS = {
    "/f/0/Conv": "relu",
    "conv_0": "relu",
    "/f/1/Relu": "relu",
    "/f/2/Identity": "relu",
    "same": "relu",
    "/f/3/Conv": "y",
    "y": "y",
}
"""Name of a node or value -> name of the layer that it is a part of."""

OPTIONS = [
    (option, entry, layer)
    for option in ("nodes_to_exclude", "ignored_scope", "int16_activations")
    for entry, layer in LAYERS.items()
    if (option, layer) != ("int16_activations", "y")  # An output is float.
]


@pytest.mark.parametrize(("option", "entry", "layer"), OPTIONS)
def test_options_take_the_names_of_nodes_and_of_values(option: str, entry: str, layer: str) -> None:
    options: Any = {option: [entry]}
    compiled = qg.quantize_and_compile(convolutions(), data(), progress=False, **options)
    precisions = {one.name: one.precision for one in compiled.report.layers}
    chosen = "int16" if option == "int16_activations" else "float"
    expected = {"relu": "int8", "y": "int8", layer: chosen}
    assert {name: precisions[name] for name in expected} == expected


def test_names_of_nodes_that_leave_no_operator_are_accepted() -> None:
    """Lists made for other tools name sizes and layouts, too."""
    model = convolutions()
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["x"], ["size"], "/Shape"),
            helper.make_node("Reshape", ["y", "size_of_y"], ["z"], "/Reshape"),
        ]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 4, 8, 8]), "size_of_y"))
    model.graph.output[0].name = "z"
    model.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, [4]))
    names = ["/Shape", "/Reshape", "/f/0/Conv"]
    compiled = qg.quantize_and_compile(model, data(), progress=False, nodes_to_exclude=names)
    assert {n.name: n.precision for n in compiled.report.layers}["relu"] == "float"


def test_the_steps_of_an_operator_stay_float_with_it() -> None:
    model = convolutions()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    first = model.graph.node[0]
    first.op_type, first.domain = "FusedConv", "com.microsoft"
    first.attribute.append(helper.make_attribute("activation", "Tanh"))
    options = {"progress": False, "verify": False}
    compiled = qg.quantize_and_compile(model, data(), nodes_to_exclude=["/f/0/Conv"], **options)
    assert {n.precision for n in compiled.report.layers if n.name.startswith("conv_0")} == {"float"}


def one_node(text: str) -> Graph:
    """The graph of a model in ONNX's text form, optimized."""
    model = f'<ir_version: 8, opset_import: ["" : 17]> g {text}'
    return optimize(qg.import_model(onnx.parser.parse_model(model)))


def test_a_node_stands_for_all_its_results() -> None:
    text = """(float[1,4] x) => (float[1,2] y, float[1,2] z) {
        [split] first, second = Split<axis=1>(x)
        y = Relu(first)
        z = Sigmoid(second)
    }"""
    assert named(one_node(text))["split"] == "first second"


def test_a_dropout_stands_for_the_layer_before_it() -> None:
    text = """(float[1,3,6,6] x, float[3,3,1,1] v) => (float[1,3,6,6] y)
        <float[3,3,1,1] w={1,2,3,4,5,6,7,8,9}> {
        [first] a = Conv(x, w)
        [drop] b = Dropout(a)
        [second] y = Conv(b, w)
    }"""
    actual = named(one_node(text))
    assert (actual["first"], actual["drop"], actual["b"], actual["second"]) == ("a", "a", "a", "y")


def test_the_products_of_a_recurrence_stay_float_with_it() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": (1, 12, 4), "r": (1, 12, 3)}
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["all", "last"], "lstm", hidden_size=3),
        helper.make_node("Relu", ["last"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 3])],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    samples = rng.normal(size=(6, 5, 2, 4)).astype(np.float32)
    options: Any = {"progress": False, "verify": False, "nodes_to_exclude": ["lstm"]}
    compiled = qg.quantize_and_compile(model, list(samples), **options)
    steps = [layer for layer in compiled.report.layers if layer.name.startswith("all:")]
    assert {layer.op.rpartition(" ")[2] for layer in steps} == {"LSTM"}
    assert {layer.precision for layer in steps} == {"float"}


NETWORKS = [
    name if name == "mnist" else pytest.param(name, marks=pytest.mark.slow) for name in MAKERS
]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_layers_of_a_network_are_known_by_the_names_of_their_nodes(name: str) -> None:
    chosen = network(name)
    shapes = {key: array.shape for key, array in chosen.feeds(1)[0].items()}
    known = known_names(optimize(qg.import_model(chosen.path, shapes)))
    nodes = [n for n in onnx.load(chosen.path).graph.node if n.op_type in ("Conv", "Relu")]
    assert nodes
    assert {node.name for node in nodes} <= known.keys()
