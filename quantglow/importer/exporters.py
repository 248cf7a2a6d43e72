"""Exporters of other packages, silenced, and their errors in one line.

``from_sklearn`` writes estimators and pipelines of scikit-learn as ONNX, by skl2onnx.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import numpy as np

from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, ConversionError
from quantglow.support.extras import package


@contextmanager
def quiet(*packages: str) -> Iterator[None]:
    """Inside, nothing warns or prints, and handlers of loggers of ``packages`` write nothing."""
    with ExitStack() as undo:
        undo.enter_context(redirect_stdout(StringIO()))
        undo.enter_context(redirect_stderr(StringIO()))
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for handler in _log_handlers(packages):
            handler.addFilter(_refuse)
            undo.callback(handler.removeFilter, _refuse)
        yield


def _refuse(record: logging.LogRecord) -> bool:
    """A filter that no record passes."""
    return False


def _log_handlers(packages: tuple[str, ...]) -> set[logging.Handler]:
    """The handlers of the packages' own loggers."""
    loggers = logging.root.manager.loggerDict
    names = [*packages, *(n for n in loggers if n.partition(".")[0] in packages)]
    return {handler for name in names for handler in logging.getLogger(name).handlers}


def root_cause(error: BaseException) -> str:
    """The innermost cause of an exporter's error, its first line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def from_sklearn(estimator: Any, data: Any) -> tuple[Any, Any]:
    """A fitted estimator as ONNX with one input, ``X`` [rows, features] in float32, and its rows.

    Classifiers give labels and probabilities.  Raises ``ConversionError`` for estimators that
    skl2onnx refuses, ``CalibrationError`` for rows that are not a table of numbers.
    """
    skl2onnx = package("skl2onnx", "sklearn", "a model of scikit-learn")
    rows = _feature_table(estimator, data)
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "predict_proba") else None
    with quiet("skl2onnx"):
        try:
            return skl2onnx.to_onnx(estimator, rows[:1], options=options), {"X": rows}
        except Exception as error:
            raise ConversionError(
                f"skl2onnx refuses {type(estimator).__name__}: {root_cause(error)}. Remedy: fit it "
                "first; put steps that it names in front of the model."
            ) from error


def _feature_table(estimator: Any, data: Any) -> Array:
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
