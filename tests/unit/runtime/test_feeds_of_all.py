"""Whatever has ``run`` takes names and feeds as onnxruntime does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg

X = np.array([[1, -2], [3, 0]], np.float32)
N = np.array([2], np.int64)


def model(*, free: bool = False, op: str = "Relu", late: bool = False) -> onnx.ModelProto:
    """``op(x) @ w`` and ``n + n``; ``late``: behind NonZero, for which sizes are known late."""
    node = helper.make_node
    nodes = [
        node(op, ["x"], ["h"]),
        node("MatMul", ["h", "w"], ["y"]),
        node("Add", ["n", "n"], ["m"]),
    ]
    if late:
        nodes[1:2] = [
            node("NonZero", ["h"], ["places"]),
            node("Cast", ["places"], ["q"], to=TensorProto.FLOAT),
            node("Transpose", ["q"], ["t"]),
            node("MatMul", ["t", "w"], ["y"]),
        ]
    weights = numpy_helper.from_array(np.array([[1, 2], [3, 4]], np.float32), "w")
    rows = "rows" if free else 2
    ends = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["found" if late else rows, 2]),
        helper.make_tensor_value_info("m", TensorProto.INT64, [1]),
    ]
    begins = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 2]),
        helper.make_tensor_value_info("n", TensorProto.INT64, [1]),
    ]
    graph = helper.make_graph(nodes, "g", begins, ends, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(**options: Any) -> Any:
    return qg.compile(model(**options), num_threads=1)


def loaded(folder: Path) -> Any:
    compiled().save(folder / "m.qgm")
    return qg.load(folder / "m.qgm", num_threads=1)


class Interpreted:
    """The interpreter, which gives all outputs."""

    def __init__(self) -> None:
        self.graph = qg.import_model(model())

    def run(self, names: Any, feeds: Any) -> Any:
        return qg.interpret(self.graph, feeds)


class Asynchronous:
    """A model whose calls run beside the caller."""

    def __init__(self) -> None:
        self.model = compiled()

    def run(self, names: Any, feeds: Any) -> Any:
        return self.model.run_async(feeds, names).result()


DOORS: dict[str, Callable[[Path], Any]] = {
    "fixed": lambda folder: compiled(),
    "free": lambda folder: compiled(free=True),
    "in part": lambda folder: compiled(late=True),
    "free, in part": lambda folder: compiled(free=True, late=True),
    "in onnxruntime": lambda folder: compiled(free=True, late=True, op="Identity"),
    "int8": lambda folder: qg.quantize_and_compile(
        model(), [{"x": X, "n": N}], num_threads=1, progress=False, effort="fast"
    ),
    "loaded": loaded,
    "queue": lambda folder: qg.InferQueue(compiled()),
    "joining queue": lambda folder: qg.InferQueue(joinable(), max_batch=4),
    "asynchronous": lambda folder: Asynchronous(),
    "interpreter": lambda folder: Interpreted(),
}

CALLED = ["fixed", "free", "in part", "free, in part", "in onnxruntime", "int8", "loaded"]


def joinable() -> Any:
    """A model whose calls may be joined, which ran."""
    proto = model(free=True)
    del proto.graph.node[2], proto.graph.input[1], proto.graph.output[1]
    compiled = qg.compile(proto, num_threads=1)
    compiled.run(None, {"x": X})
    return compiled


@pytest.fixture(scope="module", params=DOORS)
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = DOORS[request.param](tmp_path_factory.mktemp("doors"))
    yield folder
    if isinstance(folder, qg.InferQueue):
        folder.close()


def feeds_of(door: Any) -> dict[str, Any]:
    is_joining = isinstance(door, qg.InferQueue) and len(door.model.get_inputs()) == 1
    return {"x": X} if is_joining else {"x": X, "n": N}


def assert_all(actual: Any, expected: Any) -> None:
    assert len(actual) == len(expected) > 0
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("names", [[], (), set()])
def test_no_name_of_an_output_stands_for_all(door: Any, names: Any) -> None:
    feeds = feeds_of(door)
    assert_all(door.run(names, feeds), door.run(None, feeds))


def test_lists_of_numbers_are_arrays_of_the_declared_types(door: Any) -> None:
    feeds = feeds_of(door)
    lists = {name: array.tolist() for name, array in feeds.items()}
    whole = {**lists, "x": [[1, -2], [3, 0]]}
    results = door.run(None, feeds)
    assert_all(door.run(None, lists), results)
    assert_all(door.run(None, whole), results)


def test_numbers_that_a_type_cannot_hold_are_refused(door: Any) -> None:
    feeds = feeds_of(door)
    with pytest.raises(qg.QuantglowError, match=r"'x'.*1e\+39.*float32 cannot hold.*Remedy"):
        door.run(None, {**feeds, "x": [[1e39, 0.0], [0.0, 0.0]]})
    if "n" in feeds:
        with pytest.raises(qg.QuantglowError, match=r"n.*int64|int64.*n"):
            door.run(None, {**feeds, "n": [2.5]})


@pytest.mark.parametrize("door", CALLED, indirect=True)
def test_a_call_takes_one_mapping(door: Any) -> None:
    feeds = feeds_of(door)
    assert_all(door(feeds), door(*feeds.values()))
    with pytest.raises(qg.InputError, match="given both"):
        door(feeds, x=X)


def test_onnxruntime_gives_the_same() -> None:
    session = onnxruntime.InferenceSession(
        model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    lists = {"x": X.tolist(), "n": N.tolist()}
    assert_all(compiled().run([], lists), session.run([], lists))
