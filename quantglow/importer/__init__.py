"""Importers: models of ONNX, TFLite, PyTorch and scikit-learn.  README.md has the guide."""

from __future__ import annotations

from quantglow.importer.conversion import as_onnx, model_as_onnx

__all__ = ["as_onnx", "model_as_onnx"]
