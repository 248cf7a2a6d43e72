"""Conversion of models of other frameworks to ONNX, at the entrance of public calls.

TFLite files are recognized by their name or first bytes, models of PyTorch and scikit-learn by the
names of their types.  ONNX models pass unchanged.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from quantglow.importer.exporters import from_sklearn
from quantglow.support.arguments import brief
from quantglow.support.arrays import is_estimator, is_exported_program, is_torch_module
from quantglow.support.errors import OptionError
from quantglow.support.extras import package

MARK, MARK_OFFSET = b"TFL3", 4


def as_onnx(model: Any, data: Any = None) -> tuple[Any, Any]:
    """A model and its samples as the rest of quantglow takes them; both unchanged if they are so.

    A ``torch.nn.Module`` is exported on the first sample, and its samples become dicts by input
    name; an estimator of scikit-learn takes a table of rows.

    Raises ``ConversionError``, and ``OptionError`` where a package is missing.
    """
    if is_torch_module(model) or is_exported_program(model):
        for needed in ("torch", "onnxscript"):
            package(needed, "torch", "a PyTorch model")
        from quantglow.importer.torch.modules import convert  # imports torch

        return convert(model, data)
    if _is_tflite(model):
        return _from_tflite(model), data
    if is_estimator(model):
        return from_sklearn(model, data)
    return model, data


def model_as_onnx(model: Any, samples: Any) -> Any:
    """The model alone.  Raises ``OptionError`` for ``samples`` of a model that is ONNX already."""
    converted, _ = as_onnx(model, samples)
    if converted is model and samples is not None:
        raise OptionError(
            "samples are for models of other frameworks, which are exported on the first one; got "
            f"{brief(samples)} for {type(model).__name__}. Remedy: leave samples out."
        )
    return converted


def _is_tflite(model: Any) -> bool:
    """Whether a model is a path that ends in ``.tflite``, or the bytes of such a file."""
    if isinstance(model, bytes):
        return model[MARK_OFFSET : MARK_OFFSET + len(MARK)] == MARK
    return isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".tflite")


def _from_tflite(model: Any) -> Any:
    """The ``ModelProto`` of a TFLite file.  Raises ``ModelError``."""
    package("tflite", "tflite", "a TFLite file")
    from quantglow.importer.onnx.reading.loading import read_file
    from quantglow.importer.tflite import convert

    if isinstance(model, bytes):
        return convert(model, "the model")
    return convert(read_file(Path(model)), str(model))
