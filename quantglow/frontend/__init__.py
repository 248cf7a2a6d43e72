"""ONNX import and export: the only rooms that know ``onnx``."""

from quantglow.frontend.export.model import export_onnx
from quantglow.frontend.source import Source, import_model, open_model
from quantglow.frontend.split import Split, split
from quantglow.frontend.stored_weights import restored, stored

__all__ = [
    "Source",
    "Split",
    "export_onnx",
    "import_model",
    "open_model",
    "restored",
    "split",
    "stored",
]
