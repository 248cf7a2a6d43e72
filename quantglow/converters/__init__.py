"""Models of other frameworks as ONNX: PyTorch, scikit-learn, TFLite."""

from __future__ import annotations

from quantglow.converters.conversion import as_onnx, model_as_onnx

__all__ = ["as_onnx", "model_as_onnx"]
