"""Strings, sequences, optionals and maps go from one node of another runtime to the next."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model, open_model
from quantglow.importer.onnx.resolvers.external import check_externals
from quantglow.ir.graph.family import LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import parse_graph, print_graph, text_constants
from quantglow.ir.ops import External
from quantglow.ir.types import DType, TensorType
from quantglow.support.errors import FileFormatError, UnsupportedOpError

node = helper.make_node
STRING, FLOAT, INTEGER = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64
WORDS = {"keys_strings": ["a", "b"], "values_int64s": [0, 1], "domain": "ai.onnx.ml"}


def tensor(name: str, element: int, *dims: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, dims)


def sequence(name: str, *dims: Any) -> onnx.ValueInfoProto:
    kind = helper.make_tensor_type_proto(FLOAT, dims)
    return helper.make_value_info(name, helper.make_sequence_type_proto(kind))


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    opset: int = 17,
    **known: Any,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(np.array(v), name) for name, v in known.items()]
    graph = helper.make_graph(nodes, "objects", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return model


def words_to_rows(words: int | str = 3) -> onnx.ModelProto:
    """Words, their codes, and rows of a table."""
    nodes = [
        node("StringNormalizer", ["w"], ["l"], case_change_action="LOWER", locale="C"),
        node("LabelEncoder", ["l"], ["codes"], **WORDS),
        node("Gather", ["table", "codes"], ["rows"]),
        node("Relu", ["rows"], ["y"]),
    ]
    table = np.float32([[1, -2], [-3, 4]])
    outputs = [tensor("y", FLOAT, None, 2), tensor("l", STRING, None)]
    return model_of(nodes, [tensor("w", STRING, words)], outputs, table=table)


def pieces(rows: int | str = 6) -> onnx.ModelProto:
    """Pieces of a tensor whose sizes are fed; one of them, and all."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("SplitToSequence", ["r", "sizes"], ["s"], axis=1),
        node("SequenceAt", ["s", "i"], ["p"]),
        node("Neg", ["p"], ["y"]),
    ]
    inputs = [tensor("x", FLOAT, rows, 4), tensor("sizes", INTEGER, 2)]
    return model_of(nodes, inputs, [tensor("y", FLOAT, rows, None), sequence("s", rows, None)], i=1)


def at_the_end(model: onnx.ModelProto) -> Graph:
    """The graph to the end of the model."""
    return open_model(model).graph(fallback=True, late_results=LateResults.SYMBOLIC)


def types(graph: Graph) -> dict[str, str]:
    return {n.name: str(n.type) for n in graph.nodes if n.type.dtype.is_object}


def test_strings_have_shapes_and_sequences_have_none() -> None:
    assert types(at_the_end(words_to_rows())) == {"w": "string[3]", "l": "string[{l_0}]"}
    assert types(at_the_end(pieces())) == {"s": "opaque[]"}
    assert at_the_end(pieces()).declared == {"s": "seq(tensor(float))"}


def test_a_graph_with_objects_is_read_back_from_its_text() -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Cast", ["r"], ["t"], to=STRING)]
    model = model_of(nodes, [tensor("x", FLOAT, 2)], [tensor("t", STRING, 2)])
    graph = import_model(model, fallback=True)
    graph.verify()
    text = print_graph(graph)
    assert print_graph(parse_graph(text, text_constants(graph))) == text


def test_operators_that_compute_with_strings_stay_in_the_other_runtime() -> None:
    nodes = [node("Reshape", ["w", "shape"], ["m"]), node("LabelEncoder", ["m"], ["y"], **WORDS)]
    model = model_of(nodes, [tensor("w", STRING, 4)], [tensor("y", INTEGER, 2, 2)], shape=[2, 2])
    graph = import_model(model, fallback=True)
    assert [n.op_type for n in graph.nodes if isinstance(n, External)] == [
        "Reshape",
        "ai.onnx.ml.LabelEncoder",
    ]
    (y,) = qg.interpret(graph, {"w": np.array(["b", "a", "a", "b"])})
    assert y.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(UnsupportedOpError, match="'w' is string"):
        import_model(model)


def test_known_strings_are_a_value_of_the_other_runtime() -> None:
    nodes = [node("Relu", ["x"], ["y"])]
    outputs = [tensor("y", FLOAT, 2), tensor("names", STRING, 2)]
    model = model_of(nodes, [tensor("x", FLOAT, 2)], outputs, names=np.array(["a", "b"], object))
    compiled = qg.compile(model)
    assert isinstance(compiled, qg.CompiledModel)
    assert compiled(np.float32([-1, 1]))[1].tolist() == ["a", "b"]


@pytest.mark.parametrize("rows", [6, "N"])
def test_one_graph_serves_pieces_of_all_sizes(rows: int | str) -> None:
    compiled = qg.compile(pieces(rows))
    assert isinstance(compiled, qg.CompiledModel)
    x = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    for sizes in ([1, 3], [2, 2], [3, 1]):
        y, s = compiled.run(None, {"x": x, "sizes": np.array(sizes)})
        parts = np.split(np.maximum(x, 0), [sizes[0]], axis=1)
        np.testing.assert_array_equal(y, -parts[1])
        assert all(np.array_equal(one, other) for one, other in zip(s, parts, strict=True))


def test_a_model_of_which_nothing_is_compiled_runs_whole() -> None:
    nodes = [node("StringNormalizer", ["w"], ["y"], case_change_action="UPPER", locale="C")]
    model = model_of(nodes, [tensor("w", STRING, 2)], [tensor("y", STRING, None)])
    compiled = qg.compile(model)
    assert isinstance(compiled, qg.FallbackModel)
    assert compiled(np.array(["a", "b"], object)).tolist() == ["A", "B"]


# -- files


def as_numbers(graph: Graph) -> Graph:
    """The codes of words claim to be words."""
    codes = graph.by_name("codes")
    assert isinstance(codes, External)
    forged = replace(codes, result=TensorType(DType.STRING, codes.type.shape))
    return replace(graph, outputs=(("y", forged),))


def as_late_numbers(graph: Graph) -> Graph:
    """The words claim to be numbers whose shape is known late."""
    words = graph.by_name("l")
    assert isinstance(words, External)
    forged = replace(words, result=TensorType(DType.OPAQUE, ()))
    return replace(graph, outputs=(("y", forged),), declared={"y": "tensor(int64)"})


def as_numbers_fed(graph: Graph) -> Graph:
    """The input claims to be numbers, which the first node does not take."""
    text = (
        print_graph(graph).replace("string[3]", "i64[3]").replace("'string', (3,)", "'i64', (3,)")
    )
    return parse_graph(text, text_constants(graph))


@pytest.mark.parametrize("forge", [as_numbers, as_late_numbers, as_numbers_fed])
def test_a_type_that_the_model_of_a_node_does_not_have_is_refused(
    forge: Callable[[Graph], Graph],
) -> None:
    nodes = [
        node("StringConcat", ["w", "w"], ["l"]),
        node("LabelEncoder", ["l"], ["codes"], **WORDS),
    ]
    model = model_of(nodes, [tensor("w", STRING, 3)], [tensor("codes", INTEGER, 3)], 20)
    graph = import_model(model, fallback=True)
    check_externals(graph)
    with pytest.raises(FileFormatError, match=r"do(es)? not fit|is not tensor\(int64\)"):
        check_externals(forge(graph))


def test_an_opaque_value_that_claims_another_type_is_refused() -> None:
    graph = at_the_end(pieces())
    check_externals(graph)
    with pytest.raises(FileFormatError, match=re.escape("seq(tensor(int64))")):
        check_externals(replace(graph, declared={"s": "seq(tensor(int64))"}))
    s = graph.by_name("s")
    assert isinstance(s, External)
    other = onnx.ModelProto.FromString(s.model)
    other.graph.output[0].type.sequence_type.elem_type.tensor_type.elem_type = INTEGER
    forged = graph.rebuild(
        lambda n: replace(n, model=other.SerializeToString()) if n.name == "s" else n
    )
    with pytest.raises(FileFormatError, match="its operands do not fit"):
        check_externals(replace(forged, declared={"s": "seq(tensor(int64))"}))


@pytest.mark.parametrize(
    "line",
    [
        "'y': string[2] = Abs(x='x')",
        "'y': string[2] = Elementwise(args=('x',), expression=Expr('$0'), "
        "out=ElementType('string'))",
        "'y': string[2] = Constant(value=Dense('string', (2,), (1, 2)))",
        "'y': opaque[2] = Input(tensor=TensorType('opaque', (2,)))",
        "'y': string<1.0,0>[2] = Input(tensor=TensorType('string', (2,), 1.0, 0))",
    ],
)
def test_only_inputs_and_nodes_of_other_runtimes_have_objects(line: str) -> None:
    x = "'x': string[2] = Input(tensor=TensorType('string', (2,)))"
    with pytest.raises(FileFormatError):
        parse_graph(f"graph ''\n{x}\n{line}\noutput 'y' = 'y'\n", {})


def test_errors_of_the_runtime_name_the_node() -> None:
    """In a compiled model and in the interpreter, which the profile of samples runs."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("SplitToSequence", ["r", "sizes"], ["s"], axis=1),
        node("SequenceAt", ["s", "i"], ["p"]),
        node("Neg", ["p"], ["y"]),
    ]
    inputs = [tensor("x", FLOAT, 6, 4), tensor("sizes", INTEGER, 2), tensor("i", INTEGER)]
    model = model_of(nodes, inputs, [tensor("y", FLOAT, 6, None)])
    feeds = {"x": np.ones((6, 4), np.float32), "sizes": np.array([2, 2]), "i": np.array(7)}
    with pytest.raises(qg.InputError, match="Name:'p'"):
        qg.compile(model, num_threads=1).run(None, feeds)
    with pytest.raises(qg.FallbackError, match=r"node 'p' \(SequenceAt\): "):
        qg.interpret(import_model(model, fallback=True), feeds)
