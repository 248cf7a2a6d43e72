"""ONNX models of compiled ones: int8 values as QDQ."""

from __future__ import annotations

from quantglow.files import writing
from quantglow.graph.signature import Shapes
from quantglow.runtime.free_exports import free_model
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specialisations import ModelPrograms


def whole_model(programs: ModelPrograms, shapes: Shapes | None) -> bytes:
    """The model of some programs; ``shapes`` fixes those of its inputs.

    Raises ``ModelError`` and ``InputError``.
    """
    if shapes is None and isinstance(programs, FreeShapes) and programs.signature.is_free:
        return free_model(programs)
    # Imported here because a process that runs a saved model does not need onnx.
    from quantglow.frontend.export.model import export_onnx

    graph = programs.first.graph if shapes is None else programs.graph_for(shapes)
    return bytes(export_onnx(graph).SerializeToString())


def write(model: bytes, path: str) -> None:
    """Write a model to a file, replaced at once or not at all."""
    with writing(path) as temporary:
        temporary.write_bytes(model)
