"""Estimators and pipelines of scikit-learn as ONNX, by skl2onnx."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.converters.exporters import cause_of, quiet
from quantglow.errors import CalibrationError, ConversionError
from quantglow.extras import package
from quantglow.foreign_types import Array


def from_sklearn(estimator: Any, data: Any) -> tuple[Any, Any]:
    """A fitted estimator as ONNX with one input, ``X`` [rows, features] in float32, and its rows.

    Classifiers give labels and probabilities.  Raises ``ConversionError`` for estimators that
    skl2onnx refuses, ``CalibrationError`` for rows that are no table of numbers.
    """
    skl2onnx = package("skl2onnx", "sklearn", "a model of scikit-learn")
    rows = feature_table(estimator, data)
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "predict_proba") else None
    with quiet("skl2onnx"):
        try:
            return skl2onnx.to_onnx(estimator, rows[:1], options=options), {"X": rows}
        except Exception as error:
            raise ConversionError(
                f"skl2onnx refuses {type(estimator).__name__}: {cause_of(error)}. Remedy: fit it "
                "first; put steps that it names in front of the model."
            ) from error


def feature_table(estimator: Any, data: Any) -> Array:
    """Rows of features in float32.  Raises ``CalibrationError``."""
    if data is None:
        raise ConversionError(
            f"skl2onnx needs rows of the features of {type(estimator).__name__}. "
            "Remedy: pass samples=X."
        )
    try:
        rows = np.asarray(data, np.float32)
    except (TypeError, ValueError) as error:
        raise CalibrationError(
            f"samples of scikit-learn are a table of numbers: {error}. "
            "Remedy: encode other columns before the pipeline."
        ) from None
    if rows.ndim != 2 or not len(rows):
        raise CalibrationError(
            f"samples of scikit-learn are rows of features, got shape {rows.shape}. Remedy: pass "
            "an array [rows, features]."
        )
    return rows
