"""Steps before and after a model compute what NumPy does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from PIL import Image

import quantglow as qg
from quantglow import steps
from quantglow.support.arrays import Array
from tests.support.effort import moderate

DATASETS = Path(__file__).resolve().parents[4] / "datasets"
OPSETS = (11, 12, 13, 17, 18)


def identity(dims: list[Any], opset: int = 17, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """y = x, so that what is computed is the steps alone."""
    ends = [helper.make_tensor_value_info(name, kind, dims) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "same", *map(list, zip(ends))
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def interpreted(model: onnx.ModelProto, x: Array, **options: Any) -> list[Array]:
    graph = qg.import_model(model, {"x": x.shape}, **options)
    return qg.interpret(graph, {"x": x})


def resized(x: Array, height: int, width: int) -> Array:
    """Bilinear by centres of pixels, of [N, C, H, W] in float64."""
    for axis, size in ((2, height), (3, width)):
        length = x.shape[axis]
        place = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
        low = np.floor(place).astype(int)
        high = np.minimum(low + 1, length - 1)
        shape = [1, 1, 1, 1]
        shape[axis] = size
        weight = (place - low).reshape(shape)
        x = x.take(low, axis) * (1 - weight) + x.take(high, axis) * weight
    return x


@st.composite
def images(draw: st.DrawFn) -> Array:
    """uint8 [N, H, W, C]"""
    shape = [draw(st.integers(1, n)) for n in (2, 7, 7, 4)]
    seed = draw(st.integers(0, 99))
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@moderate
@given(images(), st.sampled_from(OPSETS), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_images_are_prepared_as_numpy_does(
    x: Array, opset: int, height: int, width: int, is_reversed: bool
) -> None:
    channels = x.shape[3]
    mean, std = np.linspace(0.2, 0.6, channels), np.linspace(0.3, 0.1, channels)
    before = [
        steps.ElementType("uint8"),
        steps.Layout("NHWC"),
        *([steps.ReverseChannels()] if is_reversed else []),
        steps.Resize(height, width),
        steps.Rescale(1 / 255),
        steps.Normalize(mean, std),
    ]
    (actual,) = interpreted(identity(["n", channels, height, width], opset), x, before=before)
    planes = x.astype(np.float64).transpose(0, 3, 1, 2)
    expected = resized(planes[:, ::-1] if is_reversed else planes, height, width) / 255
    expected = (expected - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@moderate
@given(st.integers(0, 99), st.sampled_from(OPSETS), st.integers(1, 6), st.integers(0, 2))
def test_results_are_finished_as_numpy_does(seed: int, opset: int, k: int, last: int) -> None:
    x = np.random.default_rng(seed).standard_normal((3, 6)).astype(np.float32)
    e = np.exp(x.astype(np.float64))
    p = e / e.sum(1, keepdims=True)
    order = np.argsort(-p, axis=1, kind="stable")[:, :k]
    ends, expected = (
        ([], [p]),
        ([steps.TopK(k)], [np.take_along_axis(p, order, 1), order]),
        ([steps.ArgMax()], [p.argmax(1)]),
    )[last]
    actual = interpreted(identity([None, 6], opset), x, after=[steps.Softmax(), *ends])
    assert len(actual) == len(expected)
    for item, right in zip(actual, expected, strict=True):
        np.testing.assert_allclose(item, right, rtol=1e-5)


def test_sigmoid_and_layout_of_a_result() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    model, after = identity([2, 3, 4, 5]), [steps.Sigmoid(), steps.Layout("NHWC")]
    (actual,) = interpreted(model, x, after=after)
    np.testing.assert_allclose(actual, 1 / (1 + np.exp(-x.transpose(0, 2, 3, 1))), rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [11, 18])
def test_images_of_any_size_and_batch_are_resized(opset: int, mode: str) -> None:
    before = [steps.Layout("NHWC"), steps.Resize(4, 4, mode)]
    compiled = qg.compile(identity(["n", 3, 4, 4], opset), num_threads=1, before=before)
    for shape in ((1, 8, 8, 3), (2, 5, 9, 3)):
        x = np.random.default_rng(1).random(shape, np.float32)
        (expected,) = interpreted(identity(["n", 3, 4, 4], opset), x, before=before)
        np.testing.assert_allclose(compiled(x), expected, atol=1e-6)
        assert expected.shape == (shape[0], 3, 4, 4)


def photos() -> list[Array]:
    """Two photographs of different sizes, uint8 [H, W, 3]."""
    with np.load(DATASETS / "photos.npz", allow_pickle=False) as data:
        first, second = data["images"][:2]
    return [first[:, :200], second[:216]]


@pytest.mark.slow_variants
@pytest.mark.parametrize("sizes", [(32, 48), (224, 224), (100, 300), (300, 61)])
def test_antialiased_images_are_those_of_pillow(sizes: tuple[int, int]) -> None:
    """Pillow rounds to bytes behind each axis, which makes up to one step."""
    before = [
        steps.ElementType("uint8"),
        steps.Layout("NHWC"),
        steps.Resize(*sizes, antialias=True),
    ]
    model = identity([1, 3, *sizes], 18)
    compiled = qg.compile(model, num_threads=1, before=before)
    for photo in photos():
        expected = np.asarray(Image.fromarray(photo).resize(sizes[::-1], Image.BILINEAR))
        (actual,) = interpreted(model, photo[None], before=before)
        assert np.abs(actual[0].transpose(1, 2, 0) - expected).max() <= 1.001
        np.testing.assert_allclose(compiled(photo[None]), actual, atol=1e-3)


@pytest.mark.parametrize("kind", ["FLOAT16", "DOUBLE"])
def test_the_model_gets_the_float_type_that_it_declares(kind: str) -> None:
    model = identity([1, 3], kind=getattr(TensorProto, kind))
    before = [steps.ElementType("uint8"), steps.Rescale(0.5)]
    (actual,) = interpreted(model, np.array([[1, 2, 255]], np.uint8), before=before)
    assert actual.tolist() == [[0.5, 1.0, 127.5]]
    assert actual.dtype == {"FLOAT16": np.float16, "DOUBLE": np.float64}[kind]


def test_subgraphs_read_the_prepared_input() -> None:
    value = helper.make_tensor_value_info
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["x", "x"], [f"{op}:y"])], op, [], [value(f"{op}:y", 1, [2])]
        )
        for op in ("Add", "Mul")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])
    inputs = [value("x", 1, [2]), value("c", TensorProto.BOOL, [])]
    graph = helper.make_graph([node], "choice", inputs, [value("y", 1, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = qg.compile(model, num_threads=1, before={"x": steps.Rescale(3.0)})
    x = np.array([1, 2], np.float32)
    assert compiled.run(None, {"x": x, "c": np.array(True)})[0].tolist() == [6.0, 12.0]
    assert compiled.run(None, {"x": x, "c": np.array(False)})[0].tolist() == [9.0, 36.0]


REFUSED: list[tuple[onnx.ModelProto, dict[str, Any], str]] = [
    (identity([1, 3, 4, 4]), {"before": {"z": steps.Rescale(2)}}, "before names 'z'.*some of"),
    (identity([1, 3, 4, 4]), {"after": {"yy": steps.Sigmoid()}}, "did you mean 'y'"),
    (identity([1, 3, 4, 4]), {"before": steps.Normalize((1, 2), 1)}, "3 channels, not 2"),
    (identity([1, 3, 4, 4]), {"before": steps.Layout("NC")}, "4 axes, 'NC' others"),
    (identity([1, 3, 4, 4]), {"before": steps.Resize(5, 4)}, "the model takes"),
    (identity([1, 3, 4, 4], 10), {"before": steps.Resize(4, 4)}, "opset 10, and the step needs 11"),
    (identity([1, 3]), {"before": steps.Resize(4, 4)}, "no axis 'H'"),
    (
        identity([1, 3, 4, 4], 17),
        {"before": steps.Resize(4, 4, antialias=True)},
        "opset 17, and the step needs 18",
    ),
    (identity([1, None, 4, 4]), {"before": steps.ReverseChannels()}, "number of channels free"),
    (identity([1, 3], kind=TensorProto.INT64), {"before": steps.Rescale(2)}, "takes integers"),
    (identity([1, 3], kind=TensorProto.INT64), {"after": steps.Softmax()}, "gives integers"),
    (identity([1, 3]), {"after": steps.TopK(4)}, "axis 1 has 3 values, k is 4"),
    (identity([1, 3]), {"after": steps.Softmax(2)}, "no axis 2"),
    (identity([1, 3, 2], 12), {"after": steps.Softmax(1)}, "the step needs 13"),
    (identity([1, 3]), {"after": [steps.ArgMax(), steps.Sigmoid()]}, "no step comes behind"),
]


@pytest.mark.parametrize(("model", "options", "message"), REFUSED, ids=[r[2] for r in REFUSED])
def test_steps_that_do_not_fit_are_refused(
    model: onnx.ModelProto, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(qg.OptionError, match=message) as error:
        qg.compile(model, **options)
    assert "Remedy: " in str(error.value)


def test_an_input_that_is_an_output_is_refused() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph([], "none", [value], [value]), opset_imports=opsets)
    with pytest.raises(qg.OptionError, match="is an input and an output"):
        qg.compile(model, before=steps.Rescale(2))


def test_several_inputs_need_names() -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "aby"]
    graph = helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["y"])], "two", values[:2], values[2:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(qg.OptionError, match=r"2 inputs: .*Remedy: map their names"):
        qg.compile(model, before=[steps.Rescale(2)])
    before = {"a": [steps.Rescale(10)], "b": [steps.ElementType("uint8")]}
    compiled = qg.compile(model, num_threads=1, before=before)
    results = compiled.run(None, {"a": np.ones(2, np.float32), "b": np.array([1, 2], np.uint8)})
    assert results[0].tolist() == [9.0, 8.0]
