"""Arguments of ``run``: a compiled model and a state accept and refuse the same."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantglow as qg

CACHE, GROWN = "past_key_values.0", "present.0"


def model() -> onnx.ModelProto:
    """A cache to which ``x`` is added, and its sum over all rows but for the last."""

    def floats(name: str, *dims: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    graph = helper.make_graph(
        [
            helper.make_node("Concat", [CACHE, "x"], [GROWN], axis=1),
            helper.make_node("ReduceSum", [GROWN], ["logits"]),
            helper.make_node("Neg", ["logits"], ["y"]),
        ],
        "growing",
        [floats(CACHE, 1, "past", 2), floats("x", 1, "rows", 2)],
        [floats(GROWN, 1, "all", 2), floats("logits", 1, 1, 1), floats("y", 1, 1, 1)],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


class Runner:
    """A model or a state of it; feeds of the model have an empty cache."""

    def __init__(self, is_state: bool) -> None:
        compiled = qg.compile(model(), num_threads=1)
        assert isinstance(compiled, qg.CompiledModel)
        self.item: Any = compiled.new_state() if is_state else compiled
        self.cache = {} if is_state else {CACHE: np.empty((1, 0, 2), np.float32)}

    def empty(self) -> None:
        """Forget the rows of a state."""
        if isinstance(self.item, qg.State):
            self.item.reset()

    def run(self, names: Any, feeds: Any) -> Any:
        return self.item.run(names, {**self.cache, **feeds} if isinstance(feeds, dict) else feeds)


@pytest.fixture(scope="module", params=[False, True], ids=["CompiledModel", "State"])
def runner(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)


X = np.ones((1, 1, 2), np.float32)


@pytest.mark.parametrize(
    ("names", "feeds", "message"),
    [
        (None, [X], "feeds must map"),
        (None, None, "feeds must map"),
        (None, {"x": [[1.0], [2.0, 3.0]]}, "'x' is not an array.*Remedy: give"),
        (None, {}, "missing input.*'x'"),
        (None, {"x": X, "z": X}, "unknown input.*'z'"),
        (None, {"x": X.astype(np.float64)}, "must be float32, got float64|float64.*Remedy"),
        (None, {"x": None}, "'x'.*object.*Remedy: give an array of numbers"),
        (None, {"x": np.array([["a"]])}, "'x'.*<U1.*Remedy: give an array of numbers"),
        (None, {"x": np.ma.array(X, mask=X > 0)}, "'x' is a masked array.*Remedy"),
        (["nowhere"], {"x": X}, "unknown output.*nowhere"),
        ("nowhere", {"x": X}, r"unknown output\(s\) \['nowhere'\]"),
        ([1], {"x": X}, "output_names takes strings"),
    ],
)
def test_both_refuse_the_same(runner: Runner, names: Any, feeds: Any, message: str) -> None:
    with pytest.raises(qg.QuantglowError, match=message):
        runner.run(names, feeds)


@pytest.mark.parametrize("names", ["logits", ["logits"], ("y",), {"y"}])
def test_both_accept_the_same_names(runner: Runner, names: Any) -> None:
    assert len(runner.run(names, {"x": X})) == 1


def test_both_take_tensors_by_their_own_way(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy cannot read a tensor that has a gradient; a stand-in for torch's, which is not here."""

    class Tensor:
        dtype = "torch.float32"

        def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
            raise RuntimeError("this tensor requires grad")

        def detach(self) -> Tensor:
            return self

        cpu = detach

        def numpy(self) -> np.ndarray:
            return X

    Tensor.__module__ = "torch"
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert len(runner.run(["y"], {"x": Tensor()})) == 1


def test_both_take_arrays_by_position(runner: Runner) -> None:
    actual = runner.item(*runner.cache.values(), X)
    assert len(actual) == 2 + len(runner.cache)


def test_both_refuse_too_many_arrays(runner: Runner) -> None:
    with pytest.raises(qg.InputError, match="arrays given, the model takes"):
        runner.item(X, X, X)


@pytest.mark.parametrize("names", [[], ()])
def test_no_name_stands_for_all_outputs_of_both(runner: Runner, names: Any) -> None:
    actual, expected = runner.run(names, {"x": X}), runner.run(None, {"x": X})
    assert len(actual) == len(expected) == 2 + len(runner.cache)


def test_both_take_numbers_and_a_mapping(runner: Runner) -> None:
    runner.empty()
    (of_lists,) = runner.run(["y"], {"x": [[[1, 1]]]})
    runner.empty()
    (of_arrays,) = runner.run(["y"], {"x": X})
    runner.empty()
    of_mapping = runner.item({**runner.cache, "x": X})[-1]
    np.testing.assert_array_equal(of_lists, of_arrays)
    np.testing.assert_array_equal(of_mapping, of_arrays)
