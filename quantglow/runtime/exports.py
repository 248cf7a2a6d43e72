"""ONNX models of compiled ones: int8 values as QDQ."""

from __future__ import annotations

from quantglow.errors import FallbackError, ModelError, OptionError, UnsupportedOpError
from quantglow.files import writing
from quantglow.graph.signature import Shapes
from quantglow.runtime.free_exports import free_model
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specialisations import ModelPrograms, case_of


def whole_model(programs: ModelPrograms, shapes: Shapes | None) -> bytes:
    """The model of some programs; ``shapes`` fixes those of its inputs.

    Raises ``ModelError`` and ``InputError``.
    """
    if shapes is None and isinstance(programs, FreeShapes):
        check_values(programs)
        if programs.signature.is_free:
            return free_model(programs)
    # Imported here because a process that runs a saved model does not need onnx.
    from quantglow.frontend.export.model import export_onnx

    try:
        graph = programs.first.graph if shapes is None else programs.graph_for(shapes)
    except (UnsupportedOpError, FallbackError) as error:
        raise OptionError(
            f"input_shapes: onnxruntime runs the model at these shapes, since {error}. "
            "Remedy: leave input_shapes out."
        ) from error
    return bytes(export_onnx(graph).SerializeToString())


def check_values(programs: FreeShapes) -> None:
    """Raise ``ModelError`` where values of inputs decide shapes or branches: an ONNX model would be
    that of some values only."""
    cases = [] if programs.is_empty else [case_of(programs.first)]
    names = {name for case in (*cases, *programs.cases) for name, _ in case.values or ()}
    if names:
        raise ModelError(
            f"values of the input(s) {', '.join(sorted(names))} decide shapes or branches, so the "
            "exported model would hold for some values only. Remedy: export that of the values "
            "that came first, by input_shapes={name: shape}."
        )


def write(model: bytes, path: str) -> None:
    """Write a model to a file, replaced at once or not at all."""
    with writing(path) as temporary:
        temporary.write_bytes(model)
