"""TensorScatter: steps written into a cache, from an index of each sample on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import quantglow as qg
from quantglow.ir.ops.indexing import MOST_INDEX
from quantglow.support.errors import OutOfRangeError
from tests.matrix.harness import on_llvm
from tests.support.effort import moderate

Arrays = dict[str, np.ndarray]


def model_of(feeds: Arrays, **attributes: object) -> onnx.ModelProto:
    """``y`` = TensorScatter of the feeds."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in feeds.items()}
    ports = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in feeds.items()]
    y = helper.make_tensor_value_info("y", kinds["cache"], feeds["cache"].shape)
    node = helper.make_node("TensorScatter", list(feeds), ["y"], name="write", **attributes)
    graph = helper.make_graph([node], "g", ports, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def written(feeds: Arrays, axis: int, circular: bool) -> np.ndarray:
    """The definition, step by step."""
    actual, update = feeds["cache"].copy(), feeds["update"]
    size = actual.shape[axis]
    starts = feeds.get("start", np.zeros(len(actual), np.int64))
    for sample, start in enumerate(starts):
        into, out_of = (np.moveaxis(a[sample], axis - 1, 0) for a in (actual, update))
        for step in range(len(out_of)):
            into[(start + step) % size if circular else start + step] = out_of[step]
    return actual


@st.composite
def cases(draw: st.DrawFn) -> tuple[Arrays, int, bool]:
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    axis = draw(st.integers(1, len(shape) - 1))
    steps = draw(st.integers(1, shape[axis]))
    part = [steps if i == axis else size for i, size in enumerate(shape)]
    dtype = draw(st.sampled_from(["float32", "int8", "int64"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    feeds = {
        "cache": rng.integers(-9, 9, shape).astype(dtype),
        "update": rng.integers(10, 99, part).astype(dtype),
    }
    circular = draw(st.booleans())
    if draw(st.booleans()):
        most = 3 * shape[axis] if circular else shape[axis] - steps + 1
        feeds["start"] = rng.integers(0, most, shape[0])
    return feeds, axis, circular


@moderate
@given(case=cases(), from_the_end=st.booleans())
def test_it_is_the_definition(case: tuple[Arrays, int, bool], from_the_end: bool) -> None:
    feeds, axis, circular = case
    counted = axis - feeds["cache"].ndim if from_the_end else axis
    mode = "circular" if circular else "linear"
    graph = qg.import_model(model_of(feeds, axis=counted, mode=mode), fallback=False)
    expected = written(feeds, axis, circular)
    for (value,) in (qg.interpret(graph, feeds), on_llvm(graph, feeds, "native")):
        np.testing.assert_array_equal(value, expected)


def test_the_axis_is_the_second_last_and_the_mode_linear() -> None:
    feeds = {
        "cache": np.zeros((2, 1, 4, 3), np.float32),
        "update": np.ones((2, 1, 2, 3), np.float32),
        "start": np.array([1, 2]),
    }
    (actual,) = qg.interpret(qg.import_model(model_of(feeds)), feeds)
    np.testing.assert_array_equal(actual, written(feeds, 2, circular=False))


@pytest.mark.parametrize(
    ("start", "mode"),
    [
        *((start, "linear") for start in (-(2**40), -1, 4, 2**40)),
        (-(2**40), "circular"),
        (-1, "circular"),
    ],
)
def test_a_start_outside_of_the_cache_is_refused(start: int, mode: str) -> None:
    cache = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    feeds = {"cache": cache, "update": np.ones((1, 1, 3), np.float32), "start": np.array([start])}
    graph = qg.import_model(model_of(feeds, axis=1, mode=mode))
    reported = max(min(start, MOST_INDEX), -MOST_INDEX)
    for run in (qg.interpret, lambda *value: on_llvm(*value, "native")):
        with pytest.raises(OutOfRangeError, match=f"'y': index {reported} .* axis of length 4"):
            run(graph, feeds)


def test_a_quantized_model_writes_its_updates() -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "cache": rng.standard_normal((2, 6, 8)).astype(np.float32),
        "update": rng.standard_normal((2, 2, 8)).astype(np.float32),
        "start": np.array([0, 4]),
    }
    compiled = qg.quantize_and_compile(
        model_of(feeds, axis=1), [feeds] * 4, num_threads=1, progress=False
    )
    (actual,) = compiled.run(None, feeds)
    np.testing.assert_allclose(actual, written(feeds, 1, circular=False), atol=0.05)
