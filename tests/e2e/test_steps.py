"""Real networks take uint8 images in NHWC and give classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow import steps
from quantglow.evaluation.metrics import sqnr_db
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from tests.support.equality import assert_equal_values
from tools.hashed_networks import NETWORKS

DATASETS = Path(__file__).resolve().parents[2] / "datasets"

IMAGENET = [
    steps.Rescale(1 / 255),
    steps.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]
PREPARATIONS: dict[str, list[Any]] = {
    "mobilenet_v2": IMAGENET,
    "efficientnet_lite0": [steps.Normalize(127, 128)],
}
DECLARED = [steps.ElementType("uint8"), steps.Layout("NHWC")]
AFTER = [steps.Softmax(), steps.TopK(5)]


@dataclass(frozen=True)
class Pair:
    """A model with steps and one without, of float and of int8, and images for both."""

    images: Array
    floats: Array
    float_models: tuple[Any, Any]
    int8_models: tuple[Any, Any]


def photos() -> Array:
    with np.load(DATASETS / "photos.npz", allow_pickle=False) as data:
        return np.ascontiguousarray(data["images"][:12, 16:240, 16:240])


def prepared(x: Array, preparation: list[Any]) -> Array:
    actual = x.astype(np.float32)
    for step in preparation:
        if isinstance(step, steps.Rescale):
            actual = actual * np.float32(step.factor)
        else:
            actual = (actual - np.array(step.mean, np.float32)) / np.array(step.std, np.float32)
    return np.ascontiguousarray(actual.transpose(0, 3, 1, 2))


@pytest.fixture(scope="module", params=PREPARATIONS)
def pair(request: pytest.FixtureRequest) -> Pair:
    preparation = PREPARATIONS[request.param]
    try:
        model = str(NETWORKS[request.param].source())
    except SystemExit as error:
        pytest.skip(f"{request.param} is not in the repository; to get it: {error}")
    x = photos()
    ours = {"before": [*DECLARED, *preparation], "after": AFTER}
    floats, options = prepared(x, preparation), {"num_threads": 1}
    quick = {**options, "progress": False, "verify": False, "effort": "fast"}
    return Pair(
        x,
        floats,
        (qg.compile(model, **options, **ours), qg.compile(model, **options)),
        (
            qg.quantize_and_compile(model, x, **quick, **ours),
            qg.quantize_and_compile(model, floats, **quick),
        ),
    )


def best(scores: Array) -> tuple[Array, Array]:
    """Probabilities of the five best classes, and the classes."""
    p = np.exp(scores.astype(np.float64) - scores.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")[:, :5]
    return np.take_along_axis(p, order, 1), order


@pytest.mark.slow
def test_float_results_are_those_of_prepared_images(pair: Pair) -> None:
    whole, plain = pair.float_models
    for image, value in zip(pair.images[:3, None], pair.floats[:3, None], strict=True):
        values, classes = whole(image)
        expected, order = best(plain(value))
        np.testing.assert_allclose(values, expected, rtol=1e-3)
        assert classes.tolist() == order.tolist()


@pytest.mark.slow
def test_int8_results_are_equal_in_interpreter_and_compiled_code(pair: Pair) -> None:
    whole, _ = pair.int8_models
    integers = [n for n in whole.graph.nodes if n.operands and n.type.dtype is DType.I8]
    body = whole.graph.with_outputs([integers[0], integers[-1]])
    feeds = {"input": pair.images[:1]}
    results = qg.interpret(body, feeds)
    assert [array.dtype for array in results] == [np.int8, np.int8]
    assert_equal_values(qg.compile(body, num_threads=1).run(None, feeds), results)


@pytest.mark.slow
def test_int8_is_as_close_to_float_as_with_prepared_images(pair: Pair) -> None:
    (whole, plain), exact = pair.int8_models, pair.float_models[1]
    name = f"{plain.get_outputs()[0].name}:model"
    body = whole.graph.with_outputs([whole.graph.by_name(name)] * 2)
    errors = []
    for image, value in zip(pair.images[:3, None], pair.floats[:3, None], strict=True):
        expected, ours = exact(value), qg.interpret(body, {"input": image})[0]
        errors.append((sqnr_db(expected, ours), sqnr_db(expected, plain(value))))
    with_steps, without = np.mean(errors, axis=0)
    assert with_steps > without - 1
