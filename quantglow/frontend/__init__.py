"""ONNX import and export: the only rooms that know ``onnx``."""

from quantglow.frontend.importer import import_model

__all__ = ["import_model"]
