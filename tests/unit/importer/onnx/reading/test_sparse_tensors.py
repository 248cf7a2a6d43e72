"""Sparse initializers and constants are read as dense ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg

DENSE = np.zeros((40, 50), np.float32)
DENSE[[0, 3, 39], [49, 0, 7]] = [1.5, -2, 4]


def sparse_tensor(name: str, flat: bool) -> onnx.SparseTensorProto:
    places = np.argwhere(DENSE) if not flat else np.flatnonzero(DENSE)
    values = numpy_helper.from_array(DENSE[DENSE != 0], name)
    indices = numpy_helper.from_array(places.astype(np.int64), f"{name}_indices")
    return helper.make_sparse_tensor(values, indices, DENSE.shape)


def model(kind: str, flat: bool = False) -> onnx.ModelProto:
    """``x`` [N, 40] -> the product with a sparse matrix."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    sparse = sparse_tensor("w", flat)
    if kind == "constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k])
        for n, k in (("x", 40), ("y", 50))
    ]
    graph = helper.make_graph(nodes, "sparse", ends[:1], ends[1:])
    if kind == "branch":
        then, other = (helper.make_graph(nodes, f"b{i}", [], ends[1:]) for i in range(2))
        for branch in (then, other):
            branch.sparse_initializer.append(sparse)
        flag = numpy_helper.from_array(np.array(True), "flag")
        choice = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
        graph = helper.make_graph([choice], "sparse", ends[:1], ends[1:], [flag])
    elif kind == "initializer":
        graph.sparse_initializer.append(sparse)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", ["constant", "initializer", "branch"])
@pytest.mark.parametrize("inputs", ["proto", "bytes", "file"])
def test_a_sparse_tensor_is_compiled(kind: str, flat: bool, inputs: str, tmp_path: Path) -> None:
    proto: onnx.ModelProto | bytes | Path = model(kind, flat)
    assert isinstance(proto, onnx.ModelProto)
    if inputs == "bytes":
        proto = proto.SerializeToString()
    elif inputs == "file":
        onnx.save(proto, tmp_path / "model.onnx")
        proto = tmp_path / "model.onnx"
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    compiled = qg.compile(proto, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    np.testing.assert_allclose(compiled.run(None, {"x": x})[0], x @ DENSE, atol=1e-5)


def test_the_model_of_the_caller_stays() -> None:
    proto = model("initializer")
    before = proto.SerializeToString(deterministic=True)
    qg.import_model(proto, input_shapes={"x": (1, 40)})
    assert proto.SerializeToString(deterministic=True) == before


DAMAGES = {
    "outside": lambda s: s.indices.CopyFrom(
        numpy_helper.from_array(np.array([[0, 1], [3, 4], [40, 7]]))
    ),
    "negative": lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([-1, 2, 3]))),
    "few": lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([1, 2]))),
    "unsorted": lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([5, 0, 7]))),
    "repeated": lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([5, 5, 7]))),
    "huge": lambda s: s.dims.__setitem__(slice(None), [2**20, 2**20]),
    "huge and empty": lambda s: s.dims.__setitem__(slice(None), [0, 2**62]),
    "text": lambda s: s.values.CopyFrom(
        helper.make_tensor("w", TensorProto.STRING, [3], [b"a", b"b", b"c"])
    ),
    "matrix": lambda s: s.values.dims.insert(0, 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_malformed_one_is_refused(damage: str) -> None:
    proto = model("initializer", flat=damage != "outside")
    DAMAGES[damage](proto.graph.sparse_initializer[0])
    with pytest.raises(qg.ModelError, match=r"sparse tensor 'w' is malformed: .*Remedy"):
        qg.compile(proto)


def test_a_constant_of_a_function_takes_the_attribute_of_its_call() -> None:
    constant = helper.make_node("Constant", [], ["w"])
    selected = constant.attribute.add()
    selected.name, selected.ref_attr_name = "sparse_value", "matrix"
    selected.type = onnx.AttributeProto.SPARSE_TENSOR
    product = helper.make_node("MatMul", ["a", "w"], ["b"])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [constant, product], opsets[:1], attributes=["matrix"]
    )
    call = helper.make_node("F", ["x"], ["y"], domain="own", matrix=sparse_tensor("w", False))
    proto = model("initializer")
    ends = proto.graph.input, proto.graph.output
    graph = helper.make_graph([call], "sparse", *ends)
    built = helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=[function])
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    compiled = qg.compile(built, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    np.testing.assert_allclose(compiled.run(None, {"x": x})[0], x @ DENSE, atol=1e-5)
