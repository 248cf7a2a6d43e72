"""TFLite files: recognised by their name or first bytes, read as ONNX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from quantglow.extras import package

MARK, MARK_OFFSET = b"TFL3", 4


def is_tflite(model: Any) -> bool:
    """Whether a model is a path that ends in ``.tflite``, or the bytes of such a file."""
    if isinstance(model, bytes):
        return model[MARK_OFFSET : MARK_OFFSET + len(MARK)] == MARK
    return isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".tflite")


def from_tflite(model: Any) -> Any:
    """The ``ModelProto`` of a TFLite file.  Raises ``ModelError``."""
    package("tflite", "tflite", "a TFLite file")
    from quantglow.converters.tflite import converted
    from quantglow.frontend.reading.loading import read_file

    if isinstance(model, bytes):
        return converted(model, "the model")
    return converted(read_file(Path(model)), str(model))
