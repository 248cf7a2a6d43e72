"""Provenance: nodes know the operators of the user's model, whatever became of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.origins import find_origins
from quantglow.support.errors import IgnoredScopeError
from quantglow.transforms.float import optimize
from tests.generators.onnx_models.fusible import OPSETS, functions


def imported(text: str) -> Graph:
    """The optimized graph of a model in ONNX's text form, x [1, 4, 16] and w [16, 16]."""
    graph = onnx.parser.parse_graph(text)
    for name, shape in (("w", (16, 16)), ("b", (16,)), ("k", (16, 16, 1, 1))):
        value = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    model = onnx.helper.make_model(graph, opset_imports=OPSETS, ir_version=9, functions=functions())
    return optimize(qg.import_model(model))


def types(graph: Graph) -> dict[str, tuple[str, frozenset[str]]]:
    """Operator -> the operators whose work it does, and those that it took in, too."""
    actual = {node: find_origins(node, graph.origins) for node in graph.compute_nodes()}
    return {node.op: (item.label, item.types - item.main_types) for node, item in actual.items()}


@pytest.mark.parametrize(
    ("nodes", "op", "label", "fused"),
    [
        ("y = MatMul(x, w)", "Gemm", "MatMul", ""),
        ("a = MatMul(x, w) y = Add(a, b)", "Gemm", "MatMul", "Add"),
        ("a = MatMul(x, w) c = Add(a, b) y = Relu(c)", "Gemm", "MatMul", "Add Relu"),
        ('y = Einsum <equation = "bti,io->bto">(x, w)', "Gemm", "Einsum", ""),
        ("y = com.microsoft.FusedMatMul(x, w)", "Gemm", "FusedMatMul", ""),
        ("y = Sub(x, b)", "Add", "Sub", ""),
        ("y = Mean(x, b)", "Mul", "Mean", ""),
        ("y = Mish(x)", "Mul", "Mish", ""),
        ("a = MatMul(x, w) c = MatMul(x, w) y = Add(a, c)", "Gemm", "MatMul", ""),
    ],
)
def test_an_operator_does_the_work_of_the_users(
    nodes: str, op: str, label: str, fused: str
) -> None:
    graph = imported(f"g (float[1,4,16] x) => (float[1,4,16] y) {{ {nodes} }}")
    assert types(graph)[op] == (label, frozenset(fused.split()))


def test_an_activation_in_parts_is_its_function_that_took_the_rest_in() -> None:
    nodes = """r = Constant <value = float {1.4142135}> () o = Constant <value = float {1.0}> ()
        h = Constant <value = float {0.5}> ()
        d = Div(x, r) e = Erf(d) s = Add(e, o) m = Mul(x, s) y = Mul(m, h)"""
    graph = imported(f"g (float[1,4,16] x) => (float[1,4,16] y) {{ {nodes} }}")
    assert types(graph) == {"Gelu": ("Erf", frozenset({"Div", "Add", "Mul"}))}


def test_a_move_is_no_part_of_what_it_moved_past() -> None:
    nodes = "t = Transpose <perm = [0, 2, 1]> (x) y = Relu(t)"
    graph = imported(f"g (float[1,4,16] x) => (float[1,16,4] y) {{ {nodes} }}")
    assert types(graph) == {
        "Transpose": ("Transpose", frozenset()),
        "Relu": ("Relu", frozenset()),
    }


CALL = "g (float[1,4,16] x) => (float[1,4,16] y) { [call] y = local.Block(x, w, b) }"


@pytest.mark.parametrize("entry", ["call", "product", "re:prod", "y"])
def test_a_local_function_is_known_by_its_call_and_its_nodes(entry: str) -> None:
    assert "Gemm" not in int8_ops(imported(CALL), nodes_to_exclude=[entry])


@pytest.mark.parametrize("kind", ["Block", "MatMul"])
def test_a_local_function_is_known_by_its_types(kind: str) -> None:
    graph = imported(CALL)
    assert "Gemm" not in int8_ops(graph, ignored_scope=qg.IgnoredScope(types=(kind,)))
    assert "Gemm" in int8_ops(graph, op_types_to_quantize=[kind])


def test_a_function_that_a_function_calls_is_known_too() -> None:
    graph = imported(CALL)
    without = int8_ops(graph, ignored_scope=qg.IgnoredScope(types=("Bent",)))
    assert "Gemm" in without and "Swish" not in without


def int8_ops(graph: Graph, **options: Any) -> set[str]:
    """The operators of an optimized graph that are int8."""
    rng = np.random.default_rng(0)
    samples = [{"x": rng.standard_normal((1, 4, 16)).astype(np.float32)} for _ in range(4)]
    profile = qg.profile(graph, samples, progress=False)
    config = qg.QuantizationConfig(quantize_output=True, **options)
    int8 = qg.quantize(graph, profile, config)
    by_name = {node.name: node.op for node in graph.compute_nodes()}
    integers = (n for n in int8.compute_nodes() if any(v.type.quant for v in (n, *n.operands)))
    return {by_name[node.name] for node in integers if node.name in by_name}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ignored_scope": qg.IgnoredScope(types=("Gemm",))}, "'Gemm'.*of the model: Add, Mat"),
        ({"ignored_scope": qg.IgnoredScope(types=("Matmul",))}, "did you mean 'MatMul'"),
        ({"op_types_to_quantize": ["Conv", "Gemm"]}, "'Conv' matches no node"),
        ({"op_types_to_quantize": ["MatMul", "Convolution"]}, "'Convolution' matches no node"),
        ({"nodes_to_exclude": ["bias_ad"]}, "did you mean 'bias_add'"),
    ],
)
def test_errors_name_what_the_users_model_has(options: dict[str, Any], text: str) -> None:
    nodes = "[mm] a = MatMul(x, w) [bias_add] y = Add(a, b)"
    graph = imported(f"g (float[1,4,16] x) => (float[1,4,16] y) {{ {nodes} }}")
    with pytest.raises(IgnoredScopeError, match=text):
        int8_ops(graph, **options)


def test_a_list_for_many_models_may_name_operators_that_one_has_not() -> None:
    graph = imported("g (float[1,4,16] x) => (float[1,4,16] y) { y = MatMul(x, w) }")
    assert "Gemm" in int8_ops(graph, op_types_to_quantize=["Conv", "MatMul", "LSTM", "QGemm"])


def test_reports_name_the_users_operators() -> None:
    nodes = 'a = Einsum <equation = "bti,io->bto">(x, w) y = Relu(a)'
    graph = imported(f"g (float[1,4,16] x) => (float[1,4,16] y) {{ {nodes} }}")
    samples = [{"x": np.ones((1, 4, 16), np.float32)}]
    compiled = qg.quantize_and_compile(graph, samples, verify=False, progress=False)
    assert {layer.op for layer in compiled.report.layers} == {"Einsum", "Reshape for Einsum"}


@pytest.mark.parametrize("op_type", ["Conv", "Flatten"])
def test_reports_tell_moves_of_the_compiler_from_the_users_operators(op_type: str) -> None:
    nodes = "c = Conv <pads = [1, 1, 1, 1]> (x, k) y = Flatten(c)"
    ends = "(float[1,3,8,8] x) => (float[1,192] y) <float[3,3,3,3] k = {" + ("1.0, " * 81)[:-2]
    graph = qg.import_model(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g {ends}}}> {{ {nodes} }}'
        )
    )
    samples = [{"x": np.ones((1, 3, 8, 8), np.float32)}]
    compiled = qg.quantize_and_compile(graph, samples, verify=False, progress=False)
    labels = [layer.op for layer in compiled.report.layers]
    assert labels.count(op_type) == 1
    assert "Transpose for Conv" in labels


def test_metadata_of_a_file_is_not_believed() -> None:
    for value in ("{", "[[1]]", "7", "[" * 9999, '[["a", "b", "c"]]'):
        node = onnx.helper.make_node("Relu", ["x"], ["y"])
        node.metadata_props.add(key="quantglow.calls", value=value)
        ends = [onnx.helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:]))
        assert qg.import_model(model).compute_nodes()[0].op == "Relu"
