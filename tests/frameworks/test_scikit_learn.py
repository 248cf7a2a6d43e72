"""Pipelines of scikit-learn in: labels and probabilities as theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantglow as qg

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")

from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

TRAINED = 1200
"""Images that pipelines are fitted on; the other 597 are new to them."""

CLASSIFIERS = {
    "mlp": lambda: MLPClassifier((64,), max_iter=60, random_state=0),
    "logistic": lambda: LogisticRegression(max_iter=500),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=8, random_state=0),
    "forest": lambda: RandomForestClassifier(10, random_state=0),
}


def digits() -> tuple[Any, Any]:
    return load_digits(return_X_y=True)


def fitted(kind: str) -> Any:
    x, y = digits()
    scalers = [] if kind == "forest" else [StandardScaler()]
    pipeline = make_pipeline(*scalers, CLASSIFIERS[kind]())
    return pipeline.fit(x[:TRAINED], y[:TRAINED])


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_labels_and_probabilities_are_those_of_the_pipeline(kind: str) -> None:
    pipeline, new = fitted(kind), digits()[0][TRAINED:].astype(np.float32)
    labels, probabilities = qg.compile(pipeline, samples=new[:1])(new)
    apart = np.abs(probabilities - pipeline.predict_proba(new)).max(axis=1)
    assert np.mean(labels == pipeline.predict(new)) >= 0.995
    assert np.mean(apart < 1e-4) >= 0.99  # a split of a tree may lie between float32 and float64


@pytest.mark.parametrize("kind", ["mlp", "logistic"])
def test_int8_keeps_the_answers(kind: str) -> None:
    pipeline, (x, y) = fitted(kind), digits()
    compiled = qg.quantize_and_compile(pipeline, x[:300], progress=False)
    labels, _ = compiled(x[TRAINED:].astype(np.float32))
    assert np.mean(labels == y[TRAINED:]) >= pipeline.score(x[TRAINED:], y[TRAINED:]) - 0.015
    assert any(node.type.quant is not None for node in compiled.graph.nodes)


@pytest.mark.parametrize(
    "model", [Ridge(), MLPRegressor(hidden_layer_sizes=(16,), max_iter=20, random_state=0)]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_regressors_give_the_same_numbers(model: Any) -> None:
    x, y = load_diabetes(return_X_y=True)
    pipeline = make_pipeline(MinMaxScaler(), model).fit(x, y)
    compiled = qg.compile(pipeline, samples=x)(x.astype(np.float32))
    np.testing.assert_allclose(compiled.reshape(-1), pipeline.predict(x), rtol=1e-4, atol=1e-3)


def test_a_pipeline_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(qg.ConversionError, match=r"skl2onnx refuses Pipeline.*fit it first"):
        qg.compile(make_pipeline(StandardScaler(), Ridge()), samples=digits()[0])


@pytest.mark.parametrize(
    ("rows", "message"),
    [([["a"]], "table of numbers"), (np.ones(3), r"rows of features, got shape \(3,\)")],
)
def test_rows_that_are_no_table_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(qg.CalibrationError, match=message):
        qg.profile(fitted("logistic"), rows, progress=False)


def test_a_pipeline_needs_rows() -> None:
    with pytest.raises(qg.ConversionError, match="needs rows of the features of Pipeline"):
        qg.compile(fitted("logistic"))
