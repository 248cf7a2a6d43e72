"""ONNX models of compiled ones: int8 values as QDQ.

The exporter is imported inside of functions: a process that runs a saved model needs no onnx.
"""

from __future__ import annotations

from quantglow.files import writing
from quantglow.graph.signature import Shapes
from quantglow.runtime.shapes.specialisations import ModelPrograms


def whole_model(programs: ModelPrograms, shapes: Shapes | None) -> bytes:
    """The model of some programs; ``shapes`` fixes those of its inputs.

    Raises ``ModelError`` and ``InputError``.
    """
    from quantglow.frontend.export.free_dimensions import export_free
    from quantglow.frontend.export.model import export_onnx

    if shapes is None and programs.signature.is_free:
        known = {node.name: node.type.shape for node in programs.first.graph.inputs}
        made = export_free(programs.signature, programs.graph_for, known)
    else:
        made = export_onnx(programs.first.graph if shapes is None else programs.graph_for(shapes))
    return bytes(made.SerializeToString())


def write(model: bytes, path: str) -> None:
    """Write a model to a file, replaced at once or not at all."""
    with writing(path) as temporary:
        temporary.write_bytes(model)
