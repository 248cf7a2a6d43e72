"""The entrance of every call that takes a model: whatever is no ONNX yet becomes ONNX."""

from __future__ import annotations

from typing import Any

from quantglow.arguments import brief
from quantglow.converters.scikit_learn import from_sklearn
from quantglow.converters.tflite_files import from_tflite, is_tflite
from quantglow.errors import OptionError
from quantglow.extras import package
from quantglow.foreign_types import is_estimator, is_exported_program, is_torch_module


def as_onnx(model: Any, data: Any = None) -> tuple[Any, Any]:
    """A model and its samples as the rest of quantglow takes them; both unchanged if they are so.

    A ``torch.nn.Module`` is exported on the first sample, and its samples become dicts by input
    name; an estimator of scikit-learn takes a table of rows.

    Raises ``ConversionError``, and ``OptionError`` where a package is missing.
    """
    if is_torch_module(model) or is_exported_program(model):
        for needed in ("torch", "onnxscript"):
            package(needed, "torch", "a PyTorch model")
        from quantglow.converters.pytorch import converted  # imports torch

        return converted(model, data)
    if is_tflite(model):
        return from_tflite(model), data
    if is_estimator(model):
        return from_sklearn(model, data)
    return model, data


def model_as_onnx(model: Any, samples: Any) -> Any:
    """The model alone.  Raises ``OptionError`` for ``samples`` of a model that is ONNX already."""
    found, _ = as_onnx(model, samples)
    if found is model and samples is not None:
        raise OptionError(
            "samples are for models of other frameworks, which are exported on the first one; got "
            f"{brief(samples)} for {type(model).__name__}. Remedy: leave samples out."
        )
    return found
