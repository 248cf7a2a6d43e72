"""Models of other frameworks as ONNX: PyTorch and scikit-learn."""

from __future__ import annotations

from quantglow.converters.conversion import as_onnx, model_as_onnx

__all__ = ["as_onnx", "model_as_onnx"]
