"""ONNX import and export: the only rooms that know ``onnx``."""

from quantglow.frontend.export import export_onnx
from quantglow.frontend.importer import import_model

__all__ = ["export_onnx", "import_model"]
