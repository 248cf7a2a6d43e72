"""Small files that would take endless time or memory are refused early."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.helper import make_node as node

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from quantglow.ir.types import DType
from quantglow.support.errors import ImportBudgetError, OptionError
from tests.unit.importer.onnx.onnx_models import Const, floats, ints, model_of, single, small_model

DOMAIN = "local"


def added(*nodes: onnx.NodeProto, **constants: object) -> onnx.ModelProto:
    """``y = x + ReduceMax(c)``; the nodes compute ``c`` of the constants."""
    initializers = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    remaining = [node("ReduceMax", ["c"], ["m"]), node("Add", ["x", "m"], ["y"])]
    return model_of([*nodes, *remaining], {"x": floats(1, 4)}, ["y"], initializers)


def matrix_product(size: int) -> onnx.ModelProto:
    return added(
        node("ConstantOfShape", ["n"], ["a"], name="matrix"),
        node("MatMul", ["a", "a"], ["c"], name="product"),
        n=np.array([size, size]),
    )


def doubling(levels: int) -> onnx.ModelProto:
    """Functions each of which calls the one before twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    functions = [
        helper.make_function(DOMAIN, "F0", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opsets)
    ]
    for level in range(levels):
        calls = [node(f"F{level}", [a], [b], domain=DOMAIN) for a, b in ("ac", "cb")]
        functions.append(helper.make_function(DOMAIN, f"F{level + 1}", ["a"], ["b"], calls, opsets))
    top = node(f"F{levels}", ["x"], ["y"], name="top", domain=DOMAIN)
    model = model_of([top], {"x": floats(1, 4)}, ["y"])
    model.opset_import.append(opsets[1])
    model.functions.extend(functions)
    return model


def endless_range(kind: type) -> onnx.ModelProto:
    bounds = {"a": kind(0), "b": kind(1e12), "d": kind(1)}
    return added(
        node("Range", ["a", "b", "d"], ["r"], name="steps"),
        node("Cast", ["r"], ["c"], to=onnx.TensorProto.FLOAT),
        **bounds,
    )


def stacking(trips: int, ends: bool = False, states: int = 0) -> onnx.ModelProto:
    """``y = x + 1``, the 1 the largest number of trips of a Loop that stacks one a trip.

    ``ends``: after a trip whose number is not 0.  ``states``: that it carries, and stacks nothing.
    """
    body = onnx.parser.parse_graph(
        "body (int64 trip, bool holds, float[1] x0) => (bool on, float[1] x1, float[1] one) "
        "{ on = Identity (holds) x1 = Identity (x0) one = Constant <value_floats = [1.0]> () }"
    )
    if ends:
        body.node[0].CopyFrom(node("Not", ["passed"], ["on"]))
        body.node.insert(0, node("Cast", ["trip"], ["passed"], to=onnx.TensorProto.BOOL))
    if states:
        del body.output[2:], body.node[-1]
    outputs = ["c"] if states else ["", "c"]
    loop = node("Loop", ["n", "", "s"], outputs, name="loop", body=body)
    return added(loop, n=np.int64(trips), s=np.ones(1, np.float32))


HOSTILE: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "range": (lambda: endless_range(np.int64), r"'steps' \(Range\).*NBYTES"),
    "range-of-floats": (lambda: endless_range(np.float32), r"'steps' \(Range\).*NBYTES"),
    "tile": (
        lambda: added(node("Tile", ["a", "n"], ["c"]), a=np.ones(1, np.float32), n=[10**11]),
        r"\(Tile\).*NBYTES",
    ),
    "expand": (
        lambda: added(node("Expand", ["a", "n"], ["c"]), a=np.ones(1, np.float32), n=[10**11]),
        r"\(Expand\).*NBYTES",
    ),
    "constant-of-shape": (
        lambda: added(node("ConstantOfShape", ["n"], ["c"]), n=[2**31, 2**31]),
        r"\(ConstantOfShape\).*NBYTES",
    ),
    "eye": (
        lambda: model_of(
            [node("Identity", ["x"], ["w"]), node("EyeLike", ["w"], ["y"])],
            {"x": np.broadcast_to(np.float32(0), (2**15, 2**15))},
            ["y"],
        ),
        r"\(EyeLike\).*NBYTES",
    ),
    "product": (lambda: matrix_product(10**4), r"'product' \(MatMul\).*WORK"),
    "loop": (lambda: stacking(2**48), r"'loop' \(Loop\): the loop runs 281474976710656.*NBYTES"),
    "functions": (lambda: doubling(30), r"'top' \(local.F30\).*NODES"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("entry", [qg.import_model, qg.compile])
def test_hostile_models_are_refused(entry: Callable[[onnx.ModelProto], object], case: str) -> None:
    make, message = HOSTILE[case]
    with pytest.raises(ImportBudgetError, match=message):
        entry(make())


@pytest.mark.parametrize("model", [stacking(3), stacking(2**48, ends=True)])
def test_loops_that_end_are_run(model: onnx.ModelProto) -> None:
    (actual,) = qg.compile(model).run(None, {"x": floats(1, 4)})
    np.testing.assert_array_equal(actual, floats(1, 4) + 1)


def test_a_loop_that_stacks_nothing_may_be_long() -> None:
    assert [o.name for o in qg.compile(stacking(2**48, states=1)).get_outputs()] == ["y"]


def test_constants_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("ConstantOfShape", ["n"], [f"c{i}"]) for i in range(20)]
    nodes.append(node("Sum", [f"c{i}" for i in range(20)], ["c"]))
    monkeypatch.setenv("QUANTGLOW_IMPORT_NBYTES", "1e6")
    with pytest.raises(ImportBudgetError, match="before it"):
        import_model(added(*nodes, n=np.array([16_000])))


def test_work_is_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGLOW_IMPORT_WORK", "1e8")
    nodes = [node("MatMul", [f"c{i}", "a"], [f"c{i + 1}"]) for i in range(200)]
    nodes.append(node("Identity", ["c200"], ["c"]))
    eye = np.eye(100, dtype=np.float32)
    with pytest.raises(ImportBudgetError, match="before"):
        import_model(added(*nodes, c0=eye, a=eye))


def test_large_weights_allow_large_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGLOW_IMPORT_NBYTES", "1e3")
    w = np.ones(10**5, np.int8)
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["f"]),
        node("Add", ["f", "f"], ["c"]),
    ]
    graph = import_model(added(*nodes, w=w, s=np.float32(0.5)))
    (actual,) = interpret(graph, {"x": floats(1, 4)})
    np.testing.assert_array_equal(actual, floats(1, 4) + 1)


def test_an_attention_mask_of_4096_tokens_is_imported() -> None:
    nodes = [
        node("ConstantOfShape", ["n"], ["ones"], value=helper.make_tensor("v", 1, [1], [1.0])),
        node("Trilu", ["ones"], ["c"], upper=0),
    ]
    graph = import_model(added(*nodes, n=np.array([4096, 4096])))
    (actual,) = interpret(graph, {"x": floats(1, 4)})
    np.testing.assert_array_equal(actual, floats(1, 4) + 1)


def test_functions_within_the_limit_are_inlined() -> None:
    (actual,) = interpret(import_model(doubling(6)), {"x": floats(1, 4)})
    np.testing.assert_array_equal(actual, np.maximum(floats(1, 4), 0))


@pytest.mark.parametrize(("name", "value"), [("NODES", "1"), ("SECONDS", "1e-9")])
def test_the_environment_lowers_limits(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"QUANTGLOW_IMPORT_{name}", value)
    with pytest.raises(ImportBudgetError, match=f"QUANTGLOW_IMPORT_{name}=inf"):
        import_model(doubling(2))


def test_the_environment_raises_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGLOW_IMPORT_WORK", "1e7")
    with pytest.raises(ImportBudgetError):
        import_model(matrix_product(400))
    monkeypatch.setenv("QUANTGLOW_IMPORT_WORK", "inf")
    import_model(matrix_product(400))


@pytest.mark.parametrize("value", ["lots", "-1", "nan", "0"])
def test_limits_that_are_no_numbers_are_refused(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("QUANTGLOW_IMPORT_NODES", value)
    with pytest.raises(OptionError, match="QUANTGLOW_IMPORT_NODES"):
        import_model(small_model())


def test_integers_of_a_long_input_are_not_listed() -> None:
    """ONNX's data propagation lists the elements of one-dimensional integers, known or not."""
    built, _ = single("Cast", np.broadcast_to(np.int64(0), 2**30), to=onnx.TensorProto.UINT64)
    (_, node) = import_model(built, fallback=True).outputs[0]
    assert node.type.dtype is DType.OPAQUE


def test_a_value_is_computed_in_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGLOW_IMPORT_NBYTES", "1e5")
    built, feeds = single("Add", floats(4), Const(floats(4)))
    import_model(built)
    assert feeds
    with pytest.raises(ImportBudgetError):
        import_model(single("Tile", Const(floats(4)), ints(10**5))[0])
