"""Operators of ai.onnx.ml: arithmetic, which is compiled, and trees and tables, which are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import FLOAT, INTEGER, Drawing, Value
from tests.generators.onnx_models.operators.family import draws

MOST_TREES, MOST_CLASSES = 3, 4


def numbers(d: Drawing, count: int, mean: float = 0.0) -> list[float]:
    """Values of an attribute."""
    return [float(v) for v in d.rng.normal(mean, 1, count).astype(np.float32)]


def rows(d: Drawing, *elements: int) -> Value:
    return d.of(elements or (FLOAT,), 2)


def one_or_each(d: Drawing, x: Value) -> int:
    return d.choose((1, x.shape[-1]))


@draws("Scaler")
def scaling(d: Drawing) -> object:
    x = d.of((FLOAT, FLOAT, INTEGER), 1, 2)
    count = one_or_each(d, x)
    offset, scale = numbers(d, count), numbers(d, count, 2)
    return d.classical("Scaler", [x], (FLOAT, x.shape), offset=offset, scale=scale)


@draws("Normalizer")
def normalizing(d: Drawing) -> object:
    x = d.of((FLOAT, FLOAT, INTEGER), 1, 2)
    return d.classical("Normalizer", [x], (FLOAT, x.shape), norm=d.choose(("MAX", "L1", "L2")))


@draws("Binarizer")
def binarizing(d: Drawing) -> object:
    x = d.floats(1, 2, 3)
    return d.classical("Binarizer", [x], (FLOAT, x.shape), threshold=numbers(d, 1)[0])


@draws("Imputer")
def imputing(d: Drawing) -> object:
    x = d.of((FLOAT, INTEGER), 1, 2)
    count = one_or_each(d, x)
    if x.element == INTEGER:
        values = [d.integer(-9, 9) for _ in range(count)]
        inputs: dict[str, Any] = {"imputed_value_int64s": values, "replaced_value_int64": 2}
    else:
        inputs = {"imputed_value_floats": numbers(d, count), "replaced_value_float": float("nan")}
    return d.classical("Imputer", [x], (x.element, x.shape), **inputs)


@draws("FeatureVectorizer")
def side_by_side(d: Drawing) -> object:
    x = rows(d, FLOAT, INTEGER)
    parts = [x] * d.integer(1, 3)
    widths = [x.shape[1]] * len(parts)
    result = (FLOAT, (x.shape[0], sum(widths)))
    return d.classical("FeatureVectorizer", parts, result, inputdimensions=widths)


@draws("ArrayFeatureExtractor")
def extracting(d: Drawing) -> object:
    x = d.of((FLOAT, INTEGER), 1, 2, 3)
    indices = d.rng.integers(0, x.shape[-1], (1, d.integer(2, 4)))
    shape = (*(x.shape[:-1] or (1,)), indices.size)
    return d.classical("ArrayFeatureExtractor", [x, d.constant(indices)], (x.element, shape))


@draws("OneHotEncoder")
def encoding(d: Drawing) -> object:
    x = d.of((INTEGER,), 1, 2)
    kinds = [int(k) for k in d.rng.permutation(9)[: d.integer(1, 5)] - 4]
    return d.classical("OneHotEncoder", [x], (FLOAT, (*x.shape, len(kinds))), cats_int64s=kinds)


@draws("LinearRegressor")
def regression(d: Drawing) -> object:
    x, targets = rows(d), d.integer(1, 4)
    kinds = ("NONE", "NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO") if targets > 1 else ("NONE",)
    inputs: dict[str, Any] = {"intercepts": numbers(d, targets)} if d.chance(0.7) else {}
    inputs |= {"coefficients": numbers(d, targets * x.shape[1]), "targets": targets}
    result = (FLOAT, (x.shape[0], targets))
    return d.classical("LinearRegressor", [x], result, post_transform=d.choose(kinds), **inputs)


@draws("LinearClassifier")
def classification(d: Drawing) -> object:
    x, classes = rows(d), d.integer(2, MOST_CLASSES)
    scores = d.choose((1, 2)) if classes == 2 else classes
    kinds = ("NONE", "LOGISTIC", "SOFTMAX") if scores > 1 else ("NONE", "LOGISTIC")
    return d.classical(
        "LinearClassifier",
        [x],
        (INTEGER, x.shape[:1]),
        (FLOAT, (x.shape[0], classes)),
        coefficients=numbers(d, scores * x.shape[1]),
        intercepts=numbers(d, scores),
        classlabels_ints=[int(i) for i in d.rng.permutation(9)[:classes]],
        post_transform=d.choose(kinds),
    )


def stumps(d: Drawing, x: Value, leaves: str) -> dict[str, Any]:
    """Trees of two leaves; ``leaves`` (class or target) have the weights."""
    trees = d.integer(1, MOST_TREES)
    features = [d.integer(0, x.shape[1] - 1) for _ in range(trees)]
    return {
        "nodes_treeids": [t for t in range(trees) for _ in range(3)],
        "nodes_nodeids": [0, 1, 2] * trees,
        "nodes_featureids": [f for f in features for _ in range(3)],
        "nodes_values": [v for t in numbers(d, trees) for v in (t, 0.0, 0.0)],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * trees,
        "nodes_truenodeids": [1, 0, 0] * trees,
        "nodes_falsenodeids": [2, 0, 0] * trees,
        f"{leaves}_treeids": [t for t in range(trees) for _ in (1, 2)],
        f"{leaves}_nodeids": [1, 2] * trees,
        f"{leaves}_weights": [abs(v) for v in numbers(d, 2 * trees)],
    }


@draws("TreeEnsembleRegressor")
def trees(d: Drawing) -> object:
    x, targets = rows(d), d.integer(1, 3)
    inputs = stumps(d, x, "target")
    ids = [d.integer(0, targets - 1) for _ in inputs["target_treeids"]]
    result = (FLOAT, (x.shape[0], targets))
    return d.classical(
        "TreeEnsembleRegressor", [x], result, target_ids=ids, n_targets=targets, **inputs
    )


@draws("TreeEnsembleClassifier")
def voting_trees(d: Drawing) -> object:
    x, classes = rows(d), d.integer(2, MOST_CLASSES)
    inputs = stumps(d, x, "class")
    ids = [d.integer(0, classes - 1) for _ in inputs["class_treeids"]]
    return d.classical(
        "TreeEnsembleClassifier",
        [x],
        (INTEGER, x.shape[:1]),
        (FLOAT, (x.shape[0], classes)),
        class_ids=ids,
        classlabels_int64s=list(range(classes)),
        **inputs,
    )


@draws("SVMRegressor")
def support_vectors(d: Drawing) -> object:
    x, count = rows(d), d.integer(1, 3)
    return d.classical(
        "SVMRegressor",
        [x],
        (FLOAT, (x.shape[0], 1)),
        support_vectors=numbers(d, count * x.shape[1]),
        coefficients=numbers(d, count),
        rho=numbers(d, 1),
        n_supports=count,
        kernel_type=d.choose(("LINEAR", "RBF")),
        kernel_params=[0.25, 0.0, 3.0],
    )


@draws("LabelEncoder")
def encoding_labels(d: Drawing) -> object:
    x = d.of((INTEGER,), 1, 2)
    keys = [int(k) for k in d.rng.permutation(9)[:4] - 4]
    values = {"values_floats": numbers(d, 4), "default_float": 0.5}
    return d.classical("LabelEncoder", [x], (FLOAT, x.shape), keys_int64s=keys, **values)
